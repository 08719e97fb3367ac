//! Deploying, upgrading and verifying the schema.

mod catalog;
mod policies;

use tokio_postgres::Client;

const DESCRIBE_SCHEMA: &str = include_str!("../../src/deploy/describe_schema.sql");

async fn describe(client: &Client, schema: &str) -> Vec<String> {
    let rows = client.query(DESCRIBE_SCHEMA, &[&schema]).await.expect("description");
    rows.iter().map(|row| row.get(0)).collect()
}
