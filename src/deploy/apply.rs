//! Deploys, and never stands in the way for long.

use std::error::Error as _;
use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, IsolationLevel, Transaction};
use tracing::{info, warn};

use super::{
    Deployment, EXPECTED, RELEASE, Standing, check_server, database, decode, drift, find_drift_within, functions,
    migrations, no_transaction, standing,
};
use crate::call::jittered;
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// How long an attempt waits for a lock. Calls of running processes queue up behind it, so this is less than any lease.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 8;
/// Between attempts, so that what had queued up gets done.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long to wait, in all, for somebody else who deploys the same schema: it may be a while, and nobody queues up behind.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// Somebody who wants to know why it takes a while.
pub(crate) type Tell<'a> = &'a (dyn Fn(&str) + Sync);

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
    let patience = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    let mut attempts = 1;
    loop {
        match attempt(client, schema, repair, patience, tell).await {
            Err(error) if is_blocked(&error) => {
                if attempts == ATTEMPTS {
                    return Err(gave_up(client, schema, error).await);
                }
                warn!(schema = schema.as_str(), %error, "somebody is in the way of the deployment; trying again");
                tell(&format!("somebody is in the way: {error}; trying again"));
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(MAX_PAUSE);
                attempts += 1;
            }
            result => return result,
        }
    }
}

async fn attempt(
    client: &mut Client,
    schema: &SchemaName,
    repair: bool,
    patience: Instant,
    tell: Tell<'_>,
) -> Result<Applied, Error> {
    let transaction = begin(client, schema, patience, tell).await?;
    limit_waiting(&transaction).await?;
    check_server(&transaction).await?;
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
    migrations::apply(&transaction).await?;
    let drift = find_drift_within(&transaction, schema).await?;
    if found == Some(Standing::Current) && !drift.can_be_repaired() && !is_open_to_public(&transaction, schema).await? {
        return Ok(Applied::Unchanged);
    }
    functions::deploy(&transaction, &drift).await?;
    transaction.commit().await.map_err(database)?;
    info!(schema = schema.as_str(), release = RELEASE, "schema deployed");
    Ok(Applied::Deployed)
}

/// A transaction that nobody else deploys, or removes, this schema beside. Waits for those who do until `patience` ends.
async fn begin<'a>(
    client: &'a mut Client,
    schema: &SchemaName,
    patience: Instant,
    tell: Tell<'_>,
) -> Result<Transaction<'a>, Error> {
    let transaction = client
        .build_transaction()
        // What the previous holder of the lock did must be seen, whatever the server's default is.
        .isolation_level(IsolationLevel::ReadCommitted)
        .read_only(false)
        .start()
        .await
        .map_err(no_transaction)?;
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
            return Ok(transaction);
        }
        if told && Instant::now() < patience {
            tokio::time::sleep(jittered(LOOK)).await;
            continue;
        }
        let who = holders(&transaction, schema, Duration::ZERO, true).await;
        let what = format!("somebody else deploys or drops schema {:?}. {who}", schema.as_str());
        if told {
            return Err(Error::new(
                ErrorKind::Database,
                format!(
                    "nothing was changed: {what}. Waited for that for {PATIENCE:?}. Try again later, or end what is in the way"
                ),
            ));
        }
        info!(schema = schema.as_str(), "waiting for another deployment");
        tell(&format!("{what}. Waiting"));
        told = true;
    }
}

/// The same, for something that is done once.
#[cfg(feature = "cli")]
pub(super) async fn begin_patiently<'a>(
    client: &'a mut Client,
    schema: &SchemaName,
    tell: Tell<'_>,
) -> Result<Transaction<'a>, Error> {
    begin(client, schema, Instant::now() + PATIENCE, tell).await
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

async fn gave_up(client: &Client, schema: &SchemaName, error: Error) -> Error {
    let who = holders(client, schema, LOCK_TIMEOUT, false).await;
    Error::new(
        ErrorKind::Database,
        format!(
            "schema {:?} was not changed: {error}, {ATTEMPTS} times. {who}. Try again later, or end what is in the way",
            schema.as_str()
        ),
    )
    .caused_by(error)
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

const HOLDERS: &str = "\
    select format('session %s of %s, application_name %L%s, has %s (select pg_terminate_backend(%s))', \
                  l.pid, coalesce(a.usename, '?'), coalesce(a.application_name, ''), \
                  coalesce(', ' || a.state || ' since ' || date_trunc('second', a.state_change)::text, ''), \
                  string_agg(distinct coalesce(l.mode || ' on ' || c.relname, 'the lock of deployments'), ', '), l.pid) \
      from pg_locks as l \
      left join pg_class as c on c.oid = l.relation \
      left join pg_namespace as n on n.oid = c.relnamespace \
      left join pg_stat_activity as a on a.pid = l.pid \
     where l.database = (select d.oid from pg_database as d where d.datname = current_database()) \
       and l.granted \
       and l.pid <> pg_backend_pid() \
       and case when $3 then l.locktype = 'advisory' and l.objsubid = 2 \
                             and l.classid = (hashtext('duroxide-postgres:deploy')::bigint & 4294967295)::oid \
                             and l.objid = (hashtext($1)::bigint & 4294967295)::oid \
                else n.nspname = $1 and c.relkind in ('r', 'p', 'v') end \
       and (a.xact_start is null or a.xact_start < clock_timestamp() - $2 * interval '1 second') \
     group by l.pid, a.usename, a.application_name, a.state, a.state_change, a.xact_start \
     order by a.xact_start \
     limit 3";

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
            "select exists (select from pg_namespace where nspname = $1)",
            &[(&schema.as_str(), Type::TEXT)],
        )
        .await
        .map_err(database)?;
    if !row.try_get::<_, bool>(0).map_err(database)? {
        transaction
            .batch_execute(&format!("create schema {}", schema.quoted()))
            .await
            .map_err(database)?;
    }
    // pg_temp last: otherwise temporary tables would be found first.
    transaction
        .batch_execute(&format!("set local search_path = {}, pg_temp", schema.quoted()))
        .await
        .map_err(database)
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
