//! Whether views say what they are meant to say.

use tokio_postgres::Client;

use super::{database, functions};
use crate::error::Error;
use crate::schema_name::SchemaName;

/// Views whose definition is not ours. None if that cannot be told: the role may not create temporary views.
///
/// How a view prints differs between servers, so there is no digest to compare with: what the files say is created
/// beside it, for a moment, and printed by the same server.
pub(crate) async fn changed_views(client: &Client, schema: &SchemaName) -> Result<Option<Vec<String>>, Error> {
    client.batch_execute("begin").await.map_err(database)?;
    let changed = compare(client, schema).await;
    client.batch_execute("rollback").await.map_err(database)?;
    match changed {
        Ok(changed) => Ok(Some(changed)),
        Err(error) => match error.code().map(|code| code.code()) {
            // No privilege, a standby, or something it needs is missing, which is reported as such.
            Some("42501" | "25006" | "42P01" | "42703" | "42883") => Ok(None),
            _ => Err(database(error)),
        },
    }
}

async fn compare(client: &Client, schema: &SchemaName) -> Result<Vec<String>, tokio_postgres::Error> {
    client
        .batch_execute(&format!("set local search_path = {}, pg_temp", schema.quoted()))
        .await?;
    let mut changed = Vec::new();
    for (file, sql) in functions::FUNCTIONS {
        let name = file.rsplit('/').next().unwrap_or(file);
        let Some((_, definition)) = sql.split_once(&format!("create or replace view {name} as")) else {
            continue;
        };
        client
            .batch_execute(&format!("create temporary view duroxide_expected as {definition}"))
            .await?;
        let row = client
            .query_one(
                "select pg_get_viewdef(to_regclass($1)) <> pg_get_viewdef('pg_temp.duroxide_expected'::regclass)",
                &[&name],
            )
            .await?;
        // NULL: missing, which is reported as such.
        if row.try_get::<_, Option<bool>>(0)? == Some(true) {
            changed.push(name.to_string());
        }
        client.batch_execute("drop view pg_temp.duroxide_expected").await?;
    }
    Ok(changed)
}
