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
    /// Whether the schema itself is gone. It stays when something of somebody else is in it.
    pub(crate) schema_dropped: bool,
}

/// Drops what a deployment made, all or nothing, and the schema if nothing else is in it.
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
    let left = transaction
        .query_typed_one(LEFT_OBJECTS, &[(&schema.quoted(), Type::TEXT)])
        .await
        .and_then(|row| row.try_get::<_, i64>(0))
        .map_err(database)?;
    if left == 0 {
        let statement = format!("drop schema {}", schema.quoted());
        transaction.batch_execute(&statement).await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(Removal {
        objects,
        schema_dropped: left == 0,
    })
}

const RELATIONS: &str = "select c.oid::regclass::text from pg_class as c \
     where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'v') and c.relname = any ($2::text[])";
const FUNCTIONS: &str = "select p.oid::regprocedure::text from pg_proc as p \
     where p.pronamespace = $1::text::regnamespace and p.proname = any ($2::text[])";
/// Whatever depends on the schema: relations, functions, types, operators…
const LEFT_OBJECTS: &str = "select count(*) from pg_depend as d \
     where d.refclassid = 'pg_namespace'::regclass and d.refobjid = $1::text::regnamespace and d.deptype = 'n'";

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
