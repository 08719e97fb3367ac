//! Takes a deployment away.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::patience::{Patience, Tell};
use super::{EXPECTED, database, drift, still_used};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// What was removed.
pub(crate) struct Removal {
    pub(crate) objects: usize,
    /// Why the schema itself is still there; none if it is gone.
    pub(crate) kept: Option<Kept>,
}

/// Why a schema stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Something of somebody else is in it.
    InUse,
    /// Every database has `public`, and others rely on it.
    Public,
    /// Whoever made it only let this role create in it.
    NotOwned,
}

/// Drops what a deployment made, all or nothing, and the schema if nothing else is in it and it can have been made for this.
pub(crate) async fn remove(client: &mut Client, schema: &SchemaName, tell: Tell<'_>) -> Result<Removal, Error> {
    let mut patience = Patience::new(schema, "nothing was dropped", tell);
    loop {
        match attempt(client, schema, &patience).await {
            Err(error) => patience.try_again(client, error).await?,
            done => return done,
        }
    }
}

async fn attempt(client: &mut Client, schema: &SchemaName, patience: &Patience<'_>) -> Result<Removal, Error> {
    let transaction = patience.begin(client).await?;
    transaction
        .batch_execute("set local client_min_messages = warning")
        .await
        .map_err(database)?;
    let ours = |kind| drift::names(EXPECTED, kind).map(str::to_string);
    let tables: Vec<String> = ours("table").chain(["schema_history".to_string()]).collect();
    let found = |kind: &'static str, sql: &'static str, names: Vec<String>| {
        let transaction = &transaction;
        async move {
            identities(transaction, schema, sql, &names)
                .await
                .map(|found| (kind, found))
        }
    };
    // Views use functions and tables; triggers, which go with their tables, use functions.
    let drops = [
        found("view", RELATIONS, ours("view").collect()).await?,
        found("table", RELATIONS, tables).await?,
        found("function", FUNCTIONS, ours("function").collect()).await?,
    ];
    let mut objects = 0;
    for (kind, identities) in drops.iter().filter(|(_, identities)| !identities.is_empty()) {
        // Without CASCADE: what somebody else built on it is theirs. One statement, for they refer to each other.
        transaction
            .batch_execute(&format!("drop {kind} {}", identities.join(", ")))
            .await
            .map_err(|error| match still_used(&error) {
                Some(cause) => Error::new(ErrorKind::Schema, format!("nothing was dropped: {cause}")).caused_by(error),
                None => database(error),
            })?;
        objects += identities.len();
    }
    let row = transaction
        .query_typed_one(LEFT, &[(&schema.quoted(), Type::TEXT)])
        .await
        .map_err(database)?;
    let (in_use, owned): (bool, bool) = (row.try_get(0).map_err(database)?, row.try_get(1).map_err(database)?);
    let kept = match () {
        () if in_use => Some(Kept::InUse),
        () if schema.as_str() == "public" => Some(Kept::Public),
        () if !owned => Some(Kept::NotOwned),
        () => None,
    };
    if kept.is_none() {
        let statement = format!("drop schema {}", schema.quoted());
        transaction.batch_execute(&statement).await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(Removal { objects, kept })
}

const RELATIONS: &str = "select c.oid::regclass::text from pg_class as c \
     where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'v') and c.relname = any ($2::text[])";
const FUNCTIONS: &str = "select p.oid::regprocedure::text from pg_proc as p \
     where p.pronamespace = $1::text::regnamespace and p.proname = any ($2::text[])";
/// Whether anything depends on the schema (relations, functions, types, operators…), and whether this role may drop it.
const LEFT: &str = "select exists (select from pg_depend as d \
                                    where d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.oid and d.deptype = 'n'), \
                           pg_has_role(n.nspowner, 'usage') \
                      from pg_namespace as n where n.oid = $1::text::regnamespace";

async fn identities(
    transaction: &Transaction<'_>,
    schema: &SchemaName,
    sql: &str,
    names: &[String],
) -> Result<Vec<String>, Error> {
    let rows = transaction
        .query_typed(sql, &[(&schema.quoted(), Type::TEXT), (&names, Type::TEXT_ARRAY)])
        .await
        .map_err(database)?;
    rows.iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()
        .map_err(database)
}
