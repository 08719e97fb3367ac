//! Whether views say what they are meant to say.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::{database, functions};
use crate::error::Error;
use crate::schema_name::SchemaName;

/// How often a view can go through pg_dump and still be known. What is printed settles down after once or twice.
const RESTORES: usize = 4;

/// Views whose definition is not ours, or why that cannot be told.
///
/// How a view prints differs between servers, so there is no digest to compare with: what the files say is created
/// beside it, for a moment, and printed by the same server. A view that went through pg_dump was made from what a server
/// had printed, and prints differently again; so that is tried too.
pub(super) async fn changed_views(
    transaction: &Transaction<'_>,
    schema: &SchemaName,
) -> Result<Result<Vec<String>, &'static str>, Error> {
    let run = |sql| async move { transaction.batch_execute(sql).await.map_err(database) };
    run("savepoint duroxide_views").await?;
    let changed = compare(transaction, schema).await;
    // Without the release, what follows would be part of it.
    run("rollback to savepoint duroxide_views; release savepoint duroxide_views").await?;
    match changed {
        Ok(changed) => Ok(Ok(changed)),
        Err(error) => match error.code().map(|code| code.code()) {
            Some("42501") => Ok(Err(
                "that takes temporary views (grant temporary on database), and everything that the views read",
            )),
            Some("25006") => Ok(Err(
                "that takes temporary views, and this is a standby, or the session is read-only (default_transaction_read_only)",
            )),
            // Which is reported as such.
            Some("42P01" | "42703" | "42883") => Ok(Err("something that they read is missing")),
            _ => Err(database(error)),
        },
    }
}

async fn compare(client: &Transaction<'_>, schema: &SchemaName) -> Result<Vec<String>, tokio_postgres::Error> {
    client
        .batch_execute(&format!("set local search_path = {}, pg_temp", schema.quoted()))
        .await?;
    let mut changed = Vec::new();
    for (view, definition) in functions::FUNCTIONS
        .iter()
        .filter_map(|(file, sql)| definition(file, sql))
    {
        // None: missing, which is reported as such.
        if let Some(found) = print(client, view).await?
            && !is_printed_as(client, definition, &found).await?
        {
            changed.push(view.to_string());
        }
    }
    Ok(changed)
}

/// The name of the view that a file is about, and what it says.
pub(super) fn definition<'a>(file: &'a str, sql: &'a str) -> Option<(&'a str, &'a str)> {
    let view = file.rsplit('/').next()?;
    let (_, definition) = sql.split_once(&format!("create or replace view {view} as"))?;
    Some((view, definition))
}

async fn is_printed_as(client: &Transaction<'_>, definition: &str, found: &str) -> Result<bool, tokio_postgres::Error> {
    let mut text = definition.to_string();
    for _ in 0..RESTORES {
        client
            .batch_execute(&format!("create temporary view duroxide_expected as {text}"))
            .await?;
        let printed = print(client, "pg_temp.duroxide_expected").await?.unwrap_or_default();
        client.batch_execute("drop view pg_temp.duroxide_expected").await?;
        if printed == found {
            return Ok(true);
        }
        if printed == text {
            break;
        }
        text = printed;
    }
    Ok(false)
}

async fn print(client: &Transaction<'_>, view: &str) -> Result<Option<String>, tokio_postgres::Error> {
    // Nothing of the schema, which comes first here, is to be run.
    let sql = "select pg_catalog.pg_get_viewdef(pg_catalog.to_regclass($1))";
    client.query_typed_one(sql, &[(&view, Type::TEXT)]).await?.try_get(0)
}
