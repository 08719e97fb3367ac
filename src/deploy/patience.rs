//! Waiting for others, and never standing in their way for long.

use std::error::Error as _;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, IsolationLevel, Transaction};
use tracing::{info, warn};

use super::{CATALOGS_ONLY, database, no_transaction};
use crate::call::jittered;
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// How long an attempt waits for a lock. Calls of running processes queue up behind it, so this is less than any lease.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 8;
/// Between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long to wait, in all, for somebody else who deploys the same schema: it may be a while, and nobody queues up behind.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Somebody who wants to know why it takes a while.
pub(crate) type Tell<'a> = &'a (dyn Fn(&str) + Sync);

/// What is left of the time and the attempts to change a schema.
pub(super) struct Patience<'a> {
    schema: &'a SchemaName,
    /// What is so once it gave up.
    unchanged: &'a str,
    tell: Tell<'a>,
    until: Instant,
    attempts: u32,
    pause: Duration,
}

impl<'a> Patience<'a> {
    pub(super) fn new(schema: &'a SchemaName, unchanged: &'a str, tell: Tell<'a>) -> Self {
        Self {
            schema,
            unchanged,
            tell,
            until: Instant::now() + PATIENCE,
            attempts: 1,
            pause: FIRST_PAUSE,
        }
    }

    /// A transaction that nobody else deploys, or removes, this schema beside. Waits for those who do; it waits for other
    /// locks only briefly.
    pub(super) async fn begin<'c>(&self, client: &'c mut Client) -> Result<Transaction<'c>, Error> {
        let Self { schema, unchanged, .. } = self;
        let transaction = client
            .build_transaction()
            // What the previous holder of the lock did must be seen, whatever the server's default is.
            .isolation_level(IsolationLevel::ReadCommitted)
            .read_only(false)
            .start()
            .await
            .map_err(no_transaction)?;
        transaction.batch_execute(CATALOGS_ONLY).await.map_err(database)?;
        // Asked again and again, not waited for: whatever lock_timeout is set, and so that it can be said who has it.
        let mut told = false;
        loop {
            let row = transaction
                .query_typed_one(
                    "select pg_try_advisory_xact_lock(hashtext('duroxide-postgres:deploy'), hashtext($1))",
                    &[(&schema.as_str(), Type::TEXT)],
                )
                .await
                .map_err(database)?;
            if row.try_get(0).map_err(database)? {
                limit_waiting(&transaction).await?;
                return Ok(transaction);
            }
            if told && Instant::now() < self.until {
                tokio::time::sleep(jittered(LOOK)).await;
                continue;
            }
            let who = holders(&transaction, schema, Duration::ZERO, true).await;
            let what = format!("somebody else deploys or drops schema {:?}. {who}", schema.as_str());
            if told {
                return Err(Error::new(
                    ErrorKind::Database,
                    format!(
                        "{unchanged}: {what}. Waited for that for {PATIENCE:?}. Try again later, or end what is in the way"
                    ),
                ));
            }
            info!(schema = schema.as_str(), "waiting for another deployment");
            (self.tell)(&format!("{what}. Waiting"));
            told = true;
        }
    }

    /// Pauses, so that what had queued up gets done. Fails if somebody has been in the way too often, or if that is not
    /// why it failed.
    pub(super) async fn try_again(&mut self, client: &mut Client, error: Error) -> Result<(), Error> {
        // What failed is being rolled back, and whoever hears of the failure and does something about it must not meet its locks.
        let _ = tokio::time::timeout(LOCK_TIMEOUT, client.check_connection()).await;
        if !is_blocked(&error) {
            return Err(error);
        }
        let schema = self.schema;
        if self.attempts == ATTEMPTS {
            let transaction = client.transaction().await.map_err(no_transaction)?;
            transaction.batch_execute(CATALOGS_ONLY).await.map_err(database)?;
            let who = holders(&transaction, schema, LOCK_TIMEOUT, false).await;
            return Err(Error::new(
                ErrorKind::Database,
                format!(
                    "{}, in schema {:?}: {error}, {ATTEMPTS} times. {who}. Try again later, or end what is in the way",
                    self.unchanged,
                    schema.as_str()
                ),
            )
            .caused_by(error));
        }
        warn!(schema = schema.as_str(), %error, "somebody is in the way of the deployment; trying again");
        (self.tell)(&format!("somebody is in the way: {error}; trying again"));
        tokio::time::sleep(jittered(self.pause)).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.attempts += 1;
        Ok(())
    }
}

/// Whoever set a shorter time keeps it.
async fn limit_waiting(transaction: &Transaction<'_>) -> Result<(), Error> {
    transaction
        .query_typed(
            "select set_config('lock_timeout', least(nullif(s.setting::bigint, 0), $1)::text, true) \
               from pg_settings as s where s.name = 'lock_timeout'",
            &[(&(LOCK_TIMEOUT.as_millis() as i64), Type::INT8)],
        )
        .await
        .map_err(database)?;
    Ok(())
}

/// A lock was not to be had in time, or was part of a deadlock.
fn is_blocked(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(error) = current.downcast_ref::<tokio_postgres::Error>() {
            return error
                .code()
                .is_some_and(|code| matches!(code.code(), "55P03" | "40P01"));
        }
        cause = current.source();
    }
    false
}

/// Who is in the way: a session that has had a lock on something in the schema for that long; or the lock of deployments.
async fn holders(client: &impl GenericClient, schema: &SchemaName, since: Duration, deploying: bool) -> String {
    let holders = client
        .query_typed(
            HOLDERS,
            &[
                (&schema.as_str(), Type::TEXT),
                (&since.as_secs_f64(), Type::FLOAT8),
                (&deploying, Type::BOOL),
            ],
        )
        .await
        .and_then(|rows| {
            rows.iter()
                .map(|row| row.try_get(0))
                .collect::<Result<Vec<String>, _>>()
        })
        .unwrap_or_default();
    if holders.is_empty() {
        "Who that was is not to be seen any more".to_string()
    } else {
        format!("In the way: {}", holders.join("; "))
    }
}

/// A prepared transaction has no session.
const HOLDERS: &str = "\
    select format('%s, has %s (%s)', \
                  case when l.pid is not null \
                       then format('session %s of %s, application_name %L%s', \
                                   l.pid, coalesce(a.usename, '?'), coalesce(a.application_name, ''), \
                                   coalesce(', ' || a.state || ' since ' || date_trunc('second', a.state_change)::text, '')) \
                       else coalesce('prepared transaction ' || quote_literal(p.gid), 'a prepared transaction') end, \
                  string_agg(distinct coalesce(l.mode || ' on ' || c.relname, 'the lock of deployments'), ', '), \
                  coalesce('select pg_terminate_backend(' || l.pid || ')', 'rollback prepared ' || quote_literal(p.gid), \
                           'select * from pg_prepared_xacts')) \
      from pg_locks as l \
      left join pg_class as c on c.oid = l.relation \
      left join pg_namespace as n on n.oid = c.relnamespace \
      left join pg_stat_activity as a on a.pid = l.pid \
      left join pg_prepared_xacts as p \
        on l.pid is null \
       and exists (select from pg_locks as x \
                    where x.pid is null and x.virtualtransaction = l.virtualtransaction and x.transactionid = p.transaction) \
     cross join lateral (select coalesce(a.xact_start, p.prepared) as at) as begun \
     where l.database = (select d.oid from pg_database as d where d.datname = current_database()) \
       and l.granted \
       and l.pid is distinct from pg_backend_pid() \
       and case when $3 then l.locktype = 'advisory' and l.objsubid = 2 \
                             and l.classid = (hashtext('duroxide-postgres:deploy')::bigint & 4294967295)::oid \
                             and l.objid = (hashtext($1)::bigint & 4294967295)::oid \
                else n.nspname = $1 and c.relkind in ('r', 'p', 'v') end \
       and (begun.at is null or begun.at < clock_timestamp() - $2 * interval '1 second') \
     group by l.pid, l.virtualtransaction, p.gid, a.usename, a.application_name, a.state, a.state_change, begun.at \
     order by begun.at \
     limit 3";
