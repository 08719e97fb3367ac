//! Statements that wait for a lock no longer than somebody would who looks at a screen.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

/// In a transaction, and only for it: through a pooler, the next one may be on another connection, and somebody else on this.
/// What is asked is of the catalogs, and what is of the schema says so: see [`CATALOGS_ONLY`](crate::deploy::CATALOGS_ONLY).
pub(crate) const LIMIT: &str = "set local lock_timeout = '3s'; set local search_path = pg_catalog, pg_temp";

/// One statement in a transaction of its own.
pub(crate) async fn query(
    client: &Client,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, Error> {
    query_within(client, LIMIT, sql, parameters).await
}

/// The same, with other settings for the transaction.
pub(crate) async fn query_within(
    client: &Client,
    settings: &str,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>, Error> {
    client.batch_execute(&format!("begin; {settings}")).await?;
    match client.query_typed(sql, parameters).await {
        Ok(rows) => client.batch_execute("commit").await.map(|()| rows),
        Err(error) => {
            // However that goes: the connection is used again.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}
