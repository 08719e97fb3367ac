//! Drops the schemas of tests.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::Pooled;
use crate::deploy;
use crate::error::{Error, ErrorKind, describe};
use crate::provider::PostgresProvider;
use crate::schema_name::quote_identifier;

/// How often sessions that are in the way are ended, and the schema is tried again.
const ATTEMPTS: u32 = 5;

/// The sessions of a test that hold locks in its schema: its own, and those of a role that has the schema's name.
const END_SESSIONS: &str = "\
    select pg_terminate_backend(a.pid) \
      from pg_stat_activity as a \
     where a.pid <> pg_backend_pid() \
       and a.datname = current_database() \
       and a.usename in (current_user, $1) \
       and exists (select from pg_locks as l \
                     join pg_class as c on c.oid = l.relation \
                    where l.pid = a.pid \
                      and l.granted \
                      and l.database = (select d.oid from pg_database as d where d.datname = current_database()) \
                      and c.relnamespace = to_regnamespace($1))";

/// The schema, and the role of its name, if there are any. Ends sessions that are in the way.
pub(super) async fn remove(url: &str, schema: &str) -> Result<(), Error> {
    let client = connect(url).await?;
    for _ in 1..ATTEMPTS {
        match drop_schema(&client, schema).await {
            Err(error) if is_blocked(&error) => {
                // Should that not be permitted, the next attempt says what is in the way.
                let _ = client.query_typed(END_SESSIONS, &[(&schema, Type::TEXT)]).await;
            }
            done => return done.map_err(failed),
        }
    }
    drop_schema(&client, schema).await.map_err(failed)
}

/// Those of the schemas whose name begins so, and is old.
pub(super) async fn sweep(url: &str, prefix: &str, is_old: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let client = connect(url).await?;
    let all = "select nspname::text from pg_namespace where starts_with(nspname, $1) order by 1";
    let rows = client
        .query_typed(all, &[(&prefix, Type::TEXT)])
        .await
        .map_err(failed)?;
    let (mut dropped, mut left) = (Vec::new(), Vec::new());
    for row in &rows {
        let schema: String = row.try_get(0).map_err(failed)?;
        if !is_old(&schema) {
            continue;
        }
        match drop_schema(&client, &schema).await {
            Ok(()) => dropped.push(schema),
            Err(error) => left.push(format!("{schema}: {}", describe(&error))),
        }
    }
    if left.is_empty() {
        return Ok(dropped);
    }
    Err(Error::new(
        ErrorKind::Database,
        format!("schemas that could not be dropped: {}", left.join("; ")),
    ))
}

/// Settings and all in one message, hence one transaction, for a pooler may be in between.
async fn drop_schema(client: &Client, schema: &str) -> Result<(), tokio_postgres::Error> {
    let name = quote_identifier(schema);
    client
        .batch_execute(&format!(
            "set local lock_timeout = '2s'; set local client_min_messages = warning; drop schema if exists {name} cascade"
        ))
        .await?;
    // Asked first, because DROP ROLE IF EXISTS is refused to many even if there is none.
    let roles = client
        .query_typed("select from pg_roles where rolname = $1", &[(&schema, Type::TEXT)])
        .await?;
    if roles.is_empty() {
        return Ok(());
    }
    client.batch_execute(&format!("drop role if exists {name}")).await
}

/// By a lock that somebody holds.
fn is_blocked(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|state| matches!(state.code(), "55P03" | "40P01"))
}

async fn connect(url: &str) -> Result<Pooled, Error> {
    let pool = PostgresProvider::builder(url).pool_size(1).open_pool()?;
    pool.get(None).await.map_err(deploy::call_failed)
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Database, describe(&error)).caused_by(error)
}
