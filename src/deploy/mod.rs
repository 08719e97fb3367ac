//! Puts the schema in place, or checks that it is.
//!
//! Tables come from the migrations, functions and views from the files under `sql/`; all in one transaction under one
//! advisory lock, so that any number of processes can start at once and an interrupted one leaves nothing behind. A
//! start that finds everything in place reads one row.

mod drift;
mod functions;
mod migrations;
mod place;
#[cfg(feature = "cli")]
mod removal;
#[cfg(feature = "cli")]
mod roles;
#[cfg(feature = "cli")]
mod script;
#[cfg(feature = "cli")]
mod views;

use semver::Version;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, IsolationLevel, Row, Transaction};
use tracing::{info, warn};

use crate::call::Caller;
use crate::config::DeployPolicy;
use crate::connect::NoConnection;
use crate::error::{CallError, Error, ErrorKind, describe, describe_call};
use crate::schema_name::SchemaName;

#[cfg(feature = "cli")]
pub(crate) use drift::Drift;
pub(crate) use place::Place;
#[cfg(feature = "cli")]
pub(crate) use removal::remove;
#[cfg(feature = "cli")]
pub(crate) use roles::{Grants, RoleKind, grant_problems};
#[cfg(feature = "cli")]
pub(crate) use script::script;

const DESCRIBE_SCHEMA: &str = include_str!("describe_schema.sql");
/// What a deployment looks like, as [`DESCRIBE_SCHEMA`] shows it.
pub(crate) const EXPECTED: &str = include_str!("../../sql/deployed.txt");

/// The release that deploys.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The oldest release whose processes the functions of this one still serve.
const SERVES_FROM: &str = "0.1.0";
const OLDEST_SERVER: i32 = 140_000;

/// What is deployed in a schema.
pub(crate) struct Deployment {
    pub(crate) migration: i32,
    pub(crate) release: String,
    pub(crate) serves_from: String,
    pub(crate) functions_digest: String,
}

/// How a deployment relates to this release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Current,
    Outdated,
    /// By a later release, which serves this one.
    Newer,
}

/// Brings the schema to what the policy asks for.
pub(crate) async fn deploy(place: &Place<'_>, schema: &SchemaName, policy: DeployPolicy) -> Result<(), Error> {
    let found = read(place.caller, schema).await?;
    match policy {
        DeployPolicy::Apply => match found {
            Some(found) if !matches!(standing(&found, schema)?, Standing::Outdated) => Ok(()),
            _ => {
                let mut session = place.session(schema).await?;
                apply(&mut session, schema, false).await?;
                match place.direct {
                    Some(_) if read(place.caller, schema).await?.is_none() => Err(Error::new(
                        ErrorKind::Config,
                        "the direct URL leads to another database than the connection string",
                    )),
                    _ => Ok(()),
                }
            }
        },
        DeployPolicy::Verify => verify(place, schema, found).await,
    }
}

/// The one read of a start when nothing changed. None: not deployed, or not completely.
pub(crate) async fn read(caller: &Caller, schema: &SchemaName) -> Result<Option<Deployment>, Error> {
    match caller.call("get_deployment", &[]).await {
        Ok(rows) => rows
            .first()
            .map(decode)
            .transpose()
            .map_err(|error| Error::new(ErrorKind::Database, describe(&error))),
        Err(error) => match error.sql_state().map(|state| state.code()) {
            // No such schema, no such function, no such table.
            Some("3F000" | "42883" | "42P01") => Ok(None),
            Some("42501") => Err(Error::new(
                ErrorKind::Privilege,
                format!(
                    "this role may not use schema {:?}: {error}. It needs USAGE on the schema and EXECUTE on its functions",
                    schema.as_str()
                ),
            )),
            _ => Err(call_failed(error)),
        },
    }
}

fn decode(row: &Row) -> Result<Deployment, tokio_postgres::Error> {
    Ok(Deployment {
        migration: row.try_get::<_, Option<i32>>("migration")?.unwrap_or(0),
        release: row.try_get("release")?,
        serves_from: row.try_get("serves_from")?,
        functions_digest: row.try_get("functions_digest")?,
    })
}

pub(crate) fn call_failed(error: CallError) -> Error {
    let kind = match &error {
        CallError::NoConnection(NoConnection::Failed(servers)) => {
            return Error::new(ErrorKind::Connect, format!("cannot connect to {servers}"));
        }
        CallError::NoConnection(_) | CallError::Closed | CallError::TimedOut => ErrorKind::Connect,
        _ => ErrorKind::Database,
    };
    Error::new(kind, error.to_string())
}

pub(crate) fn standing(found: &Deployment, schema: &SchemaName) -> Result<Standing, Error> {
    let parse = |text: &str| {
        Version::parse(text).map_err(|error| {
            Error::new(
                ErrorKind::Schema,
                format!(
                    "schema {:?} names no release that deployed it ({text:?})",
                    schema.as_str()
                ),
            )
            .caused_by(error)
        })
    };
    let (own, deployed, serves_from) = (parse(RELEASE)?, parse(&found.release)?, parse(&found.serves_from)?);
    if deployed > own || found.migration > migrations::latest() {
        if serves_from > own {
            return Err(Error::new(
                ErrorKind::NewerSchema,
                format!(
                    "schema {:?} was deployed by release {deployed}, which serves processes from release {serves_from} on; \
                     this is {own}",
                    schema.as_str()
                ),
            ));
        }
        warn!(schema = schema.as_str(), %deployed, %own, "the schema was deployed by a later release; leaving it alone");
        return Ok(Standing::Newer);
    }
    if found.migration == migrations::latest()
        && found.functions_digest == functions::FUNCTIONS_DIGEST
        && deployed == own
    {
        Ok(Standing::Current)
    } else {
        Ok(Standing::Outdated)
    }
}

async fn verify(place: &Place<'_>, schema: &SchemaName, found: Option<Deployment>) -> Result<(), Error> {
    if let Some(found) = &found
        && matches!(standing(found, schema)?, Standing::Newer)
    {
        return Ok(());
    }
    let (client, _) = place.connection().await?;
    check_server(&**client).await?;
    let actual = describe_schema(&client, schema).await?;
    let drift = drift::compare(EXPECTED, &actual);
    let problem = match found {
        _ if actual.is_empty() => "is not deployed".to_string(),
        None => format!("is not completely deployed: {drift}"),
        Some(_) if !drift.is_empty() => format!("is not as release {RELEASE} deploys it: {drift}"),
        // Only what the digest covers and the description does not: comments in the files.
        Some(_) => return Ok(()),
    };
    Err(Error::new(
        ErrorKind::Schema,
        format!(
            "schema {:?} {problem}. Deploy it with release {RELEASE} (DeployPolicy::Apply), or ask its owner to",
            schema.as_str()
        ),
    ))
}

/// How the schema differs from what this release deploys, the bodies of its views included.
#[cfg(feature = "cli")]
pub(crate) async fn find_drift(client: &Client, schema: &SchemaName) -> Result<Drift, Error> {
    let mut drift = drift::compare(EXPECTED, &describe_schema(client, schema).await?);
    if let Some(views) = views::changed_views(client, schema).await? {
        drift.changed.extend(views.iter().map(|view| format!("view {view}")));
        // A view can differ in both ways.
        drift.changed.sort();
        drift.changed.dedup();
    }
    Ok(drift)
}

/// Creates an index of ours, beside running work.
#[cfg(feature = "cli")]
pub(crate) fn index_statement(schema: &SchemaName, index: &str) -> String {
    let definition = EXPECTED
        .lines()
        .find_map(|line| line.strip_prefix("index ")?.strip_prefix(index)?.strip_prefix(' '))
        .unwrap_or_default();
    let concurrently = definition.replacen(" INDEX ", " INDEX CONCURRENTLY ", 1);
    format!(
        "{};",
        concurrently.replacen(" ON ", &format!(" ON {}.", schema.quoted()), 1)
    )
}

async fn describe_schema(client: &Client, schema: &SchemaName) -> Result<Vec<String>, Error> {
    let rows = client
        .query_typed(DESCRIBE_SCHEMA, &[(&schema.as_str(), Type::TEXT)])
        .await
        .map_err(database)?;
    rows.iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()
        .map_err(database)
}

async fn check_server(client: &impl GenericClient) -> Result<(), Error> {
    let row = client
        .query_typed_one(
            "select current_setting('server_version_num')::integer, current_setting('server_version')",
            &[],
        )
        .await
        .map_err(database)?;
    let (number, text): (i32, String) = (row.try_get(0).map_err(database)?, row.try_get(1).map_err(database)?);
    if number < OLDEST_SERVER {
        return Err(Error::new(
            ErrorKind::UnsupportedServer,
            format!("the server is PostgreSQL {text}; this crate needs PostgreSQL 14 or later"),
        ));
    }
    Ok(())
}

/// Deploys, in one transaction. Leaves alone what is current already, unless it is to be repaired, and what is newer.
/// Returns whether it deployed.
pub(crate) async fn apply(client: &mut Client, schema: &SchemaName, repair: bool) -> Result<bool, Error> {
    let transaction = begin(client, schema).await?;
    check_server(&transaction).await?;

    // Somebody else may have been faster.
    if let Some(found) = read_locked(&transaction, schema).await? {
        match standing(&found, schema)? {
            Standing::Newer => return Ok(false),
            Standing::Current if !repair => return Ok(false),
            Standing::Current | Standing::Outdated => {}
        }
    }
    create_schema(&transaction, schema).await?;
    refuse_foreign_objects(&transaction, schema).await?;
    migrations::apply(&transaction).await?;
    functions::deploy(&transaction).await?;
    transaction.commit().await.map_err(database)?;
    info!(schema = schema.as_str(), release = RELEASE, "schema deployed");
    Ok(true)
}

/// A transaction that nobody else deploys, or removes, this schema beside.
async fn begin<'a>(client: &'a mut Client, schema: &SchemaName) -> Result<Transaction<'a>, Error> {
    let transaction = client
        .build_transaction()
        // What the previous holder of the lock did must be seen, whatever the server's default is.
        .isolation_level(IsolationLevel::ReadCommitted)
        .read_only(false)
        .start()
        .await
        .map_err(database)?;
    transaction
        .execute(
            "select pg_advisory_xact_lock(hashtext('duroxide-postgres:deploy'), hashtext($1))",
            &[&schema.as_str()],
        )
        .await
        .map_err(database)?;
    Ok(transaction)
}

async fn read_locked(client: &Transaction<'_>, schema: &SchemaName) -> Result<Option<Deployment>, Error> {
    let exists = client
        .query_one(
            "select to_regproc($1) is not null",
            &[&format!("{}.get_deployment", schema.quoted())],
        )
        .await
        .map_err(database)?;
    if !exists.try_get::<_, bool>(0).map_err(database)? {
        return Ok(None);
    }
    let row = client
        .query_opt(&format!("select * from {}.get_deployment()", schema.quoted()), &[])
        .await
        .map_err(database)?;
    row.as_ref().map(decode).transpose().map_err(database)
}

async fn create_schema(transaction: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    let row = transaction
        .query_one(
            "select exists (select from pg_namespace where nspname = $1)",
            &[&schema.as_str()],
        )
        .await
        .map_err(database)?;
    if !row.try_get::<_, bool>(0).map_err(database)? {
        transaction
            .batch_execute(&format!("create schema {}", schema.quoted()))
            .await
            .map_err(database)?;
    }
    // pg_temp last: otherwise temporary tables would be found first.
    transaction
        .batch_execute(&format!("set local search_path = {}, pg_temp", schema.quoted()))
        .await
        .map_err(database)
}

/// Before the first deployment, nothing in the schema may have a name of ours: later all of them are.
async fn refuse_foreign_objects(client: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    let rows = client
        .query(
            "select case when c.relkind = 'v' then 'view' else 'table' end, c.relname::text from pg_class as c \
              where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') \
             union all \
             select 'function', p.proname::text from pg_proc as p where p.pronamespace = $1::text::regnamespace",
            &[&schema.quoted()],
        )
        .await
        .map_err(database)?;
    let mut foreign = None;
    for row in &rows {
        let (kind, name): (String, String) = (row.try_get(0).map_err(database)?, row.try_get(1).map_err(database)?);
        if name == "schema_history" {
            return Ok(());
        }
        let kinds: &[&str] = if kind == "function" {
            &["function"]
        } else {
            &["table", "view"]
        };
        if kinds
            .iter()
            .any(|kind| drift::names(EXPECTED, kind).any(|own| own == name))
        {
            foreign = Some((kind, name));
        }
    }
    match foreign {
        None => Ok(()),
        Some((kind, name)) => Err(Error::new(
            ErrorKind::Schema,
            format!(
                "schema {:?} has a {kind} {name:?} that this crate did not create: choose another schema, or move the {kind}",
                schema.as_str()
            ),
        )),
    }
}

pub(crate) fn database(error: tokio_postgres::Error) -> Error {
    let kind = match error.code().map(|state| state.code()) {
        Some("42501") => ErrorKind::Privilege,
        Some(_) => ErrorKind::Database,
        None => ErrorKind::Connect,
    };
    let hint = if kind == ErrorKind::Privilege {
        ". Deploy with a role that may, and use DeployPolicy::Verify for this one"
    } else {
        ""
    };
    Error::new(kind, format!("{}{hint}", describe_call(&error))).caused_by(error)
}
