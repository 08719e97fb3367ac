//! Deploys, and never stands in the way for long.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};
use tracing::info;

use super::patience::{Patience, Tell};
use super::{
    Deployment, EXPECTED, RELEASE, Standing, check_server, database, decode, drift, find_drift_within, foreign,
    functions, migrations, owner, records, standing,
};
use crate::error::{Error, ErrorKind, describe};
use crate::schema_name::SchemaName;

/// What a deployment did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    Deployed,
    /// Everything was in place already. No lock was taken that anybody could notice.
    Unchanged,
    /// A later release deployed it: left alone.
    Newer,
}

/// Deploys, in one transaction. Leaves alone what is current already, unless it is to be repaired, and what is newer.
pub(crate) async fn apply(client: &mut Client, schema: &SchemaName, repair: bool) -> Result<Applied, Error> {
    apply_and_tell(client, schema, repair, &|_| ()).await
}

/// The same, and tells somebody what it waits for.
pub(crate) async fn apply_and_tell(
    client: &mut Client,
    schema: &SchemaName,
    repair: bool,
    tell: Tell<'_>,
) -> Result<Applied, Error> {
    let mut patience = Patience::new(schema, "nothing was changed", tell);
    loop {
        match attempt(client, schema, repair, &patience).await {
            Err(error) => patience.try_again(client, error).await?,
            done => return done,
        }
    }
}

async fn attempt(
    client: &mut Client,
    schema: &SchemaName,
    repair: bool,
    patience: &Patience<'_>,
) -> Result<Applied, Error> {
    let transaction = patience.begin(client).await?;
    check_server(&transaction).await?;
    records::require(&transaction, schema).await?;
    foreign::refuse_planted(&transaction, schema).await?;
    // Somebody else may have been faster.
    let found = match read_locked(&transaction, schema).await? {
        Some(found) => Some(standing(&found, schema)?),
        None => None,
    };
    match found {
        Some(Standing::Newer) => return Ok(Applied::Newer),
        Some(Standing::Current) if !repair => return Ok(Applied::Unchanged),
        _ => {}
    }
    create_schema(&transaction, schema).await?;
    refuse_foreign_objects(&transaction, schema).await?;
    migrations::apply(&transaction, schema).await?;
    if found.is_none() {
        records::refuse_later_migrations(&transaction, schema).await?;
    }
    let drift = find_drift_within(&transaction, schema).await?;
    if found == Some(Standing::Current) && !drift.can_be_repaired() && !is_open_to_public(&transaction, schema).await? {
        return Ok(Applied::Unchanged);
    }
    functions::deploy(&transaction, &drift).await?;
    transaction.commit().await.map_err(database)?;
    info!(schema = schema.as_str(), release = RELEASE, "schema deployed");
    Ok(Applied::Deployed)
}

async fn read_locked(client: &Transaction<'_>, schema: &SchemaName) -> Result<Option<Deployment>, Error> {
    let exists = client
        .query_typed_one(
            "select to_regproc($1) is not null",
            &[(&format!("{}.get_deployment", schema.quoted()), Type::TEXT)],
        )
        .await
        .map_err(database)?;
    if !exists.try_get::<_, bool>(0).map_err(database)? {
        return Ok(None);
    }
    let rows = client
        .query_typed(&format!("select * from {}.get_deployment()", schema.quoted()), &[])
        .await
        .map_err(database)?;
    rows.first().map(decode).transpose().map_err(database)
}

async fn create_schema(transaction: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    let row = transaction
        .query_typed_one(
            "select exists (select from pg_namespace where nspname = $1), \
                    quote_ident(current_database()), quote_ident(current_user)",
            &[(&schema.as_str(), Type::TEXT)],
        )
        .await
        .map_err(database)?;
    let text = |i| row.try_get::<_, String>(i).map_err(super::database);
    let (database, role) = (text(1)?, text(2)?);
    if !row.try_get::<_, bool>(0).map_err(super::database)? {
        let created = transaction
            .batch_execute(&format!("create schema {}", schema.quoted()))
            .await;
        created.map_err(|error| match error.code().map(|state| state.code()) {
            Some("42501") => Error::new(
                ErrorKind::Privilege,
                format!(
                    "schema {:?} cannot be created: {}. Deploy with a role that may, and use \
                     DeployPolicy::Verify for this one; or let it: grant create, temporary on database {database} to {role};",
                    schema.as_str(),
                    describe(&error)
                ),
            )
            .caused_by(error),
            _ => super::database(error),
        })?;
    }
    // pg_temp last: otherwise temporary tables would be found first.
    transaction
        .batch_execute(&format!(
            "set local search_path = {}, pg_temp; {}",
            schema.quoted(),
            owner::BECOME_OWNER
        ))
        .await
        .map_err(super::database)
}

/// Before the first deployment, nothing in the schema may have a name of ours: later all of them are.
async fn refuse_foreign_objects(client: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    let rows = client
        .query_typed(
            "select case when c.relkind = 'v' then 'view' else 'table' end, c.relname::text from pg_class as c \
              where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') \
             union all \
             select 'function', p.proname::text from pg_proc as p where p.pronamespace = $1::text::regnamespace",
            &[(&schema.quoted(), Type::TEXT)],
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

/// Whether PUBLIC has something of what `permissions.sql` takes away, functions aside: those are in the description. What
/// somebody else granted, or CREATE on a schema that is somebody else's, a deployment cannot take away.
async fn is_open_to_public(client: &Transaction<'_>, schema: &SchemaName) -> Result<bool, Error> {
    let ours: Vec<&str> = drift::names(EXPECTED, "table")
        .chain(drift::names(EXPECTED, "view"))
        .chain(["schema_history"])
        .collect();
    client
        .query_typed_one(
            OPEN_TO_PUBLIC,
            &[(&schema.quoted(), Type::TEXT), (&ours, Type::TEXT_ARRAY)],
        )
        .await
        .and_then(|row| row.try_get(0))
        .map_err(database)
}

const OPEN_TO_PUBLIC: &str = "\
    with relation as ( \
        select c.oid, c.relacl, c.relowner from pg_class as c \
         where c.relnamespace = $1::text::regnamespace \
           and (c.relname = any ($2) \
                or c.relkind = 'S' and exists ( \
                   select from pg_depend as d join pg_class as t on t.oid = d.refobjid \
                    where d.objid = c.oid and d.deptype in ('a', 'i') and t.relname = any ($2))) \
    ), privilege as ( \
        select a.grantee, a.grantor, r.relowner as owner \
          from relation as r cross join lateral aclexplode(r.relacl) as a \
        union all \
        select a.grantee, a.grantor, r.relowner \
          from relation as r \
          join pg_attribute as t on t.attrelid = r.oid and not t.attisdropped \
         cross join lateral aclexplode(t.attacl) as a \
        union all \
        select a.grantee, a.grantor, n.nspowner \
          from pg_namespace as n cross join lateral aclexplode(n.nspacl) as a \
         where n.oid = $1::text::regnamespace and a.privilege_type = 'CREATE' and pg_has_role(n.nspowner, 'usage') \
    ) \
    select exists (select from privilege as p where p.grantee = 0 and p.grantor = p.owner)";
