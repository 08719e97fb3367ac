//! Puts the schema in place, or checks that it is.
//!
//! Tables come from the migrations, functions and views from the files under `sql/`; all in one transaction under one
//! advisory lock, so that any number of processes can start at once and an interrupted one leaves nothing behind. A
//! start that finds everything in place reads one row, once it knows that it is no stranger's function that it asks.

mod apply;
mod drift;
#[cfg(feature = "cli")]
mod extras;
mod foreign;
mod functions;
mod migrations;
mod owner;
mod patience;
mod place;
mod records;
#[cfg(feature = "cli")]
mod removal;
#[cfg(feature = "cli")]
mod repairs;
#[cfg(feature = "cli")]
mod roles;
#[cfg(feature = "cli")]
mod script;
mod views;

use semver::Version;
#[cfg(feature = "cli")]
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row, Transaction};
use tracing::warn;

use crate::call::Caller;
use crate::config::DeployPolicy;
use crate::connect::NoConnection;
use crate::error::{CallError, Error, ErrorKind, describe, describe_call};
use crate::schema_name::SchemaName;

pub(crate) use apply::apply;
#[cfg(feature = "cli")]
pub(crate) use apply::{Applied, apply_and_tell};
pub(crate) use drift::Drift;
pub(crate) use foreign::{CATALOGS_ONLY, refuse_planted_reader};
#[cfg(feature = "cli")]
pub(crate) use foreign::{Stranger, planted_view};
pub(crate) use place::Place;
#[cfg(feature = "cli")]
pub(crate) use records::{LOST, incomplete, rewrite_history};
#[cfg(feature = "cli")]
pub(crate) use removal::{Kept, remove};
#[cfg(feature = "cli")]
pub(crate) use repairs::{Repair, repairs};
#[cfg(feature = "cli")]
pub(crate) use roles::{GrantProblem, Grants, RoleKind, grant_problems};
#[cfg(feature = "cli")]
pub(crate) use script::script;

const DESCRIBE_SCHEMA: &str = include_str!("describe_schema.sql");
/// What a deployment looks like, as [`DESCRIBE_SCHEMA`] shows it.
pub(crate) const EXPECTED: &str = include_str!("../../sql/deployed.txt");

/// The release that deploys.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The oldest release whose processes the functions of this one still serve.
const SERVES_FROM: &str = "0.1.0";
pub(crate) const OLDEST_SERVER: i32 = 140_000;
/// What to do where nothing can be written.
pub(crate) const STANDBY: &str = "This server is a standby, or read-only: name the primary, or all hosts and \
     target_session_attrs=read-write, which finds it";

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
    {
        let client = place.pool.get(place.pool.wait()).await.map_err(call_failed)?;
        refuse_planted_reader(&**client, schema).await?;
    }
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

/// The one call of a start when nothing changed. None: not deployed, or not completely.
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

pub(crate) fn decode(row: &Row) -> Result<Deployment, tokio_postgres::Error> {
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
        error if error.sql_state().is_some_and(|state| state.code() == POOLER_ENDED) => ErrorKind::Connect,
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
                     this is {own}. Install release {serves_from} or later",
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
    let (mut client, _) = place.connection().await?;
    let transaction = client.transaction().await.map_err(no_transaction)?;
    transaction.batch_execute(CATALOGS_ONLY).await.map_err(database)?;
    check_server(&*transaction).await?;
    let actual = describe_schema(&*transaction, schema).await?;
    let drift = drift::compare(EXPECTED, &actual);
    if found.is_none() {
        records::require(&*transaction, schema).await?;
    }
    transaction.rollback().await.map_err(database)?;
    let problem = match found {
        _ if actual.is_empty() => "is not deployed".to_string(),
        None => format!("is not completely deployed: {drift}"),
        Some(_) if !drift.is_empty() => format!("is not as release {RELEASE} deploys it: {drift}"),
        // The rest of what the digest covers, bodies of views and permissions, is nothing to a process.
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
pub(crate) async fn find_drift(client: &mut Client, schema: &SchemaName) -> Result<Drift, Error> {
    let transaction = client.transaction().await.map_err(no_transaction)?;
    transaction
        .batch_execute(crate::limited::LIMIT)
        .await
        .map_err(database)?;
    let mut drift = find_drift_within(&transaction, schema).await?;
    extras::add(&mut drift, &transaction, schema).await?;
    Ok(drift)
}

async fn find_drift_within(transaction: &Transaction<'_>, schema: &SchemaName) -> Result<Drift, Error> {
    let mut drift = drift::compare(EXPECTED, &describe_schema(transaction, schema).await?);
    drift.add_views(views::changed_views(transaction, schema).await?);
    Ok(drift)
}

async fn describe_schema(client: &impl GenericClient, schema: &SchemaName) -> Result<Vec<String>, Error> {
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

/// What PgBouncer gives for all that ends a connection of its clients.
const POOLER_ENDED: &str = "08P01";

/// Whether it is how a pooler that hands out its connections by the statement refuses to begin. By its words: the same state
/// stands for a connection to the server that was not to be had in time, or was lost.
pub(crate) fn is_statement_mode(error: &tokio_postgres::Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|error| error.code().code() == POOLER_ENDED && error.message().contains("statement pooling"))
}

/// Why a transaction did not begin.
pub(crate) fn no_transaction(error: tokio_postgres::Error) -> Error {
    if is_statement_mode(&error) {
        let text = format!(
            "{}. It seems that a pooler in statement mode is in between, which knows no transactions: name the server \
             itself, or a pooler in transaction or session mode",
            describe(&error)
        );
        return Error::new(ErrorKind::Config, text).caused_by(error);
    }
    // A standby has no transaction that writes to offer.
    if error.code().is_some_and(|code| code.code() == "0A000") {
        return read_only(error);
    }
    database(error)
}

/// Nothing can be written here.
fn read_only(error: tokio_postgres::Error) -> Error {
    let text = format!("{}. {STANDBY}", describe_call(&error));
    Error::new(ErrorKind::Database, text).caused_by(error)
}

/// What somebody built upon that which is to be dropped. PostgreSQL's hint, CASCADE, would drop that as well.
fn still_used(error: &tokio_postgres::Error) -> Option<String> {
    let error = error.as_db_error().filter(|error| error.code().code() == "2BP01")?;
    Some(format!(
        "{}: {}. Drop or move those first",
        error.message(),
        error.detail().unwrap_or_default()
    ))
}

pub(crate) fn database(error: tokio_postgres::Error) -> Error {
    let kind = match error.code().map(|state| state.code()) {
        Some("25006") => return read_only(error),
        Some("42501") => ErrorKind::Privilege,
        Some(POOLER_ENDED) => ErrorKind::Connect,
        Some(_) => ErrorKind::Database,
        None => ErrorKind::Connect,
    };
    let hint = match kind {
        ErrorKind::Privilege => ". Deploy with a role that may, and use DeployPolicy::Verify for this one",
        ErrorKind::Connect if error.code().is_some() => {
            ". A pooler in between had no connection to the server in time, or lost it: try again"
        }
        _ => "",
    };
    Error::new(kind, format!("{}{hint}", describe_call(&error))).caused_by(error)
}
