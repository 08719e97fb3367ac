//! The migrations: tables, indexes, types.
//!
//! Embedded, numbered and recorded as refinery does it, so that refinery and its tools stay content, but applied in the
//! transaction of the whole deployment, which refinery's runner cannot join.

use std::collections::BTreeMap;

use refinery::{AsyncMigrate, Migration};
use tokio_postgres::{Client, Transaction};

use super::{database, foreign};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// In order.
pub(super) fn all() -> Vec<Migration> {
    let mut migrations = embedded::migrations::runner().get_migrations().clone();
    migrations.sort();
    migrations
}

pub(super) fn latest() -> i32 {
    all().last().map_or(0, Migration::version)
}

/// Creates refinery's table, if need be.
pub(super) fn history_table() -> String {
    <Client as AsyncMigrate>::assert_migrations_table_query("schema_history")
}

/// Records a migration as refinery would.
pub(super) fn record(migration: &Migration) -> String {
    format!(
        "insert into schema_history (version, name, applied_on, checksum)\n\
         values ({}, '{}', to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '{}');",
        migration.version(),
        migration.name(),
        migration.checksum()
    )
}

/// Applies those that are missing.
pub(super) async fn apply(transaction: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    transaction.batch_execute(&history_table()).await.map_err(database)?;
    // It may have been there before.
    foreign::refuse_other_history(transaction, schema).await?;
    let rows = transaction
        .query_typed("select version, name, checksum from schema_history", &[])
        .await
        .map_err(database)?;
    let mut applied = BTreeMap::new();
    for row in &rows {
        let version: i32 = row.try_get(0).map_err(database)?;
        let name: Option<String> = row.try_get(1).map_err(database)?;
        let checksum: Option<String> = row.try_get(2).map_err(database)?;
        applied.insert(version, (name, checksum));
    }
    for migration in all() {
        match applied.get(&migration.version()) {
            None => {
                let sql = migration.sql().unwrap_or_default();
                transaction.batch_execute(sql).await.map_err(|error| {
                    let error = database(error);
                    Error::new(
                        error.kind(),
                        format!("migration {migration} cannot be applied: {error}"),
                    )
                    .caused_by(error)
                })?;
                transaction.batch_execute(&record(&migration)).await.map_err(database)?;
            }
            Some((name, checksum))
                if name.as_deref() == Some(migration.name()) && *checksum == Some(migration.checksum().to_string()) => {
            }
            Some((name, _)) => {
                let name = name.as_deref().unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::Schema,
                    format!(
                        "migration {} of this schema is {name:?} and not what this release knows as {migration}: \
                         it was deployed by something else",
                        migration.version()
                    ),
                ));
            }
        }
    }
    Ok(())
}
