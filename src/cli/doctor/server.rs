//! The server: version, settings, clock, connections, and what holds vacuum up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::Client;

use super::super::arguments::Doctor;
use super::super::connection::{Connection, column, query_unnamed};
use super::super::output::{Failure, duration};
use super::origins::{Cure, Origins};
use super::{Examination, Finding, Severity, connections, roles};
use crate::deploy::OLDEST_SERVER;

/// Clocks that differ by more are worth a word: durations and timers of the application go by its own.
const CLOCK_OFFSET: Duration = Duration::from_secs(2);
/// Where the server's own warnings begin is 40 million before the end of 2 billion.
const OLD_TRANSACTION_IDS: i64 = 1_500_000_000;
/// A pooler with a single connection lets nobody in meanwhile.
const POOLER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a pooler is given the chance to show itself.
const POOLER_ROUNDS: usize = 3;

pub(super) async fn examine(examination: &mut Examination<'_>, wanted: &Doctor) -> Result<(), Failure> {
    let connection = examination.connection;
    examination.add("settings", settings(connection).await).await?;
    examination.add("settings", roles::findings(connection).await).await?;
    examination.add("settings", roles::timeouts(connection).await).await?;
    examination.add("clock", clock(connection).await).await?;
    examination.add("pooler", pooler(connection).await).await?;
    let needed = connections::findings(connection, wanted).await;
    examination.add("connections", needed).await?;
    let snapshots = old_snapshots(connection, wanted.old_transaction).await;
    examination.add("snapshots", snapshots).await?;
    examination
        .add("snapshots", slots(connection, wanted.old_transaction).await)
        .await
}

async fn settings(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let sql = "select current_setting('server_version_num')::integer as number, \
                      current_setting('server_version') as version, \
                      pg_is_in_recovery() as is_standby, \
                      current_setting('fsync') = 'on' as fsync, \
                      current_setting('full_page_writes') = 'on' as full_page_writes, \
                      current_setting('autovacuum') = 'on' as autovacuum, \
                      current_setting('track_counts') = 'on' as track_counts, \
                      current_setting('synchronous_commit') as synchronous_commit, \
                      current_setting('default_transaction_isolation') as isolation, \
                      current_setting('default_transaction_read_only') = 'on' as read_only, \
                      age(datfrozenxid)::bigint as xid_age \
                 from pg_database where datname = current_database()";
    let rows = connection.query(sql, &[]).await?;
    let Some(row) = rows.first() else {
        return Err(Failure::new("the server does not know its own database"));
    };
    let is = |name| column::<bool>(row, name);
    let origins = Origins::read(connection).await?;
    let (mut findings, mut of_server) = (Vec::new(), Vec::new());
    let mut find = |severity, check, message: String, fix: String| {
        findings.push(Finding::new(severity, check, message, fix));
    };
    let version: String = column(row, "version")?;
    if column::<i32>(row, "number")? < OLDEST_SERVER {
        let message = format!("PostgreSQL {version} is too old: 14 or later is needed");
        let fix = "pg_upgrade --new-bindir=BINDIR --old-datadir=OLD --new-datadir=NEW".to_string();
        find(Severity::Error, "version", message, fix);
    }
    if is("is_standby")? {
        let message = "this is a standby, which cannot run anything";
        let fix =
            "export DATABASE_URL='postgres://a,b/app?target_session_attrs=read-write' # all hosts: finds the primary";
        find(Severity::Error, "settings", message.to_string(), fix.to_string());
    } else if is("read_only")? {
        let message = "transactions are read-only by default (default_transaction_read_only)".to_string();
        let fix = match origins.cure("default_transaction_read_only", "off") {
            // Otherwise the one that changes it would be read-only too.
            Cure::Sql(sql) => format!("begin read write; {sql} commit;"),
            Cure::Elsewhere(advice) => advice,
        };
        find(Severity::Error, "settings", message, fix);
    }
    for (setting, on, why) in [
        ("fsync", is("fsync")?, "a crash of the machine can destroy the database"),
        (
            "full_page_writes",
            is("full_page_writes")?,
            "a crash of the machine can destroy the database",
        ),
        (
            "autovacuum",
            is("autovacuum")?,
            "queues fill up with dead rows, and every fetch gets slower",
        ),
        (
            "track_counts",
            is("track_counts")?,
            "autovacuum does not know what to do",
        ),
    ] {
        if !on {
            let message = format!("{setting} is off: {why}");
            of_server.push(match origins.cure_server(setting) {
                Some(cure) => Finding::new(Severity::Error, "settings", message, cure),
                // No transaction can contain the first.
                None => Finding::new(
                    Severity::Error,
                    "settings",
                    message,
                    format!("alter system set {setting} = on;"),
                )
                .then("select pg_reload_conf();"),
            });
        }
    }
    let synchronous_commit: String = column(row, "synchronous_commit")?;
    if synchronous_commit == "off" {
        let message =
            "synchronous_commit is off: a crash of the server can lose turns and messages that were acknowledged";
        let fix = origins.cure("synchronous_commit", "on").into();
        find(Severity::Warning, "settings", message.to_string(), fix);
    }
    let isolation: String = column(row, "isolation")?;
    if isolation != "read committed" {
        let message =
            format!("transactions are {isolation} by default: the functions refuse anything but read committed");
        let fix = origins.cure("default_transaction_isolation", "'read committed'").into();
        find(Severity::Error, "settings", message, fix);
    }
    let age: i64 = column(row, "xid_age")?;
    if age > OLD_TRANSACTION_IDS {
        let message = format!("the oldest transaction id is {age} transactions old; the server stops at 2 billion");
        find(
            Severity::Error,
            "vacuum",
            message,
            "vacuum (freeze, verbose);".to_string(),
        );
    }
    findings.extend(of_server);
    Ok(findings)
}

/// Measured against the middle of a round trip.
async fn clock(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    // The first query of a connection takes longer.
    connection.query("select", &[]).await?;
    let sent = SystemTime::now();
    let rows = connection.query("select clock_timestamp() as now", &[]).await?;
    let round_trip = sent.elapsed().unwrap_or_default();
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let offset = since(column(row, "now")?) - since(sent + round_trip / 2);
    if offset.unsigned_abs() <= CLOCK_OFFSET.as_millis() as u64 + round_trip.as_millis() as u64 {
        return Ok(Vec::new());
    }
    let message = format!(
        "the server's clock is {} {} this machine's: timers fire that much off, and times in histories do not compare",
        duration(offset.abs()),
        if offset > 0 { "ahead of" } else { "behind" }
    );
    Ok(vec![Finding::new(
        Severity::Warning,
        "clock",
        message,
        "chronyc tracking # on this machine and on the server's. Let the one that is off slew; step it (chronyc makestep) \
         only while no node runs",
    )])
}

/// A connection that changes its server process between two statements goes through a pooler in transaction mode. To see
/// it, another one occupies, in a transaction, what the first one had.
async fn pooler(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let (one, two) = (connection.client().await?, connection.client().await?);
    let mut is_pooled = false;
    for _ in 0..POOLER_ROUNDS {
        let looked = changes_process(&one, &two).await;
        if let Ok(None) = looked {
            // What they wait for may come later: nobody else shall get them.
            drop((one.take(), two.take()));
            return Err(Failure::new(format!(
                "of two connections, one was not answered within {POOLER_TIMEOUT:?}: the server is busy, or a pooler in \
                 between has no second connection to it"
            )));
        }
        // However it went: the connection is used again.
        let _ = two.batch_execute("rollback").await;
        is_pooled = match looked {
            Err(error) if crate::deploy::is_statement_mode(&error) => {
                let message = "connections go through a pooler in statement mode, which knows no transactions";
                let fix = "pool_mode = transaction # in pgbouncer.ini, or name the server itself";
                return Ok(vec![Finding::new(Severity::Error, "pooler", message, fix)]);
            }
            // The pooler is there, and may have enough for the rest.
            Err(error) if error.code().is_some() => {
                return Err(Failure::new(crate::deploy::database(error).to_string()));
            }
            looked => looked.map_err(crate::deploy::database)?.unwrap_or_default(),
        };
        if is_pooled {
            break;
        }
    }
    if !is_pooled {
        return Ok(Vec::new());
    }
    let message = "connections go through a pooler in transaction mode: nodes fail there unless they are told so, and only \
                   poll for work unless they can listen elsewhere";
    let fix = "Builder::transaction_pooler(true), and Builder::direct_url with the URL of the server itself";
    Ok(vec![Finding::new(Severity::Warning, "pooler", message, fix)])
}

/// None: that took too long to be told.
async fn changes_process(one: &Client, two: &Client) -> Result<Option<bool>, tokio_postgres::Error> {
    let occupied = async {
        let before = process(one).await?;
        // In statement mode even that is refused.
        two.batch_execute("begin").await?;
        process(two).await?;
        Ok::<_, tokio_postgres::Error>(before)
    };
    let Ok(before) = tokio::time::timeout(POOLER_TIMEOUT, occupied).await else {
        return Ok(None);
    };
    let before = before?;
    match tokio::time::timeout(POOLER_TIMEOUT, process(one)).await {
        Ok(after) => Ok(Some(after? != before)),
        Err(_) => Ok(Some(true)),
    }
}

async fn process(client: &Client) -> Result<i32, tokio_postgres::Error> {
    let rows = query_unnamed(client, "select pg_backend_pid()", &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

/// What keeps vacuum from removing dead rows.
async fn old_snapshots(connection: &Connection, old_ms: i64) -> Result<Vec<Finding>, Failure> {
    let sql = "select 'session ' || a.pid || ' of ' || coalesce(a.usename, '?') || ' (' || coalesce(a.state, '?') \
                      || coalesce(', application_name ' || nullif(a.application_name, ''), '') || ')' as holder, \
                      floor(extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint as age_ms, \
                      format('select pg_terminate_backend(%s);', a.pid) as fix \
                 from pg_stat_activity as a \
                where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid() \
                  and a.xact_start < clock_timestamp() - $1 * interval '1 millisecond' \
                  and (a.backend_xmin is not null or a.backend_xid is not null) \
               union all \
               select 'prepared transaction ' || p.gid, \
                      floor(extract(epoch from clock_timestamp() - p.prepared) * 1000)::bigint, \
                      format('rollback prepared %L;', p.gid) \
                 from pg_prepared_xacts as p \
                where p.database = current_database() and p.prepared < clock_timestamp() - $1 * interval '1 millisecond'";
    let rows = connection.query(sql, &[&(old_ms as f64)]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let age: Option<i64> = column(row, "age_ms")?;
        let message = format!(
            "{} holds an old snapshot{}: vacuum cannot clean the queues",
            column::<String>(row, "holder")?,
            age.map_or(String::new(), |age| format!(", for {}", duration(age)))
        );
        findings.push(Finding::new(
            Severity::Warning,
            "snapshots",
            message,
            column::<String>(row, "fix")?,
        ));
    }
    let sql = "select quote_ident(current_user) as role, pg_has_role('pg_read_all_stats', 'usage') as sees_all";
    for row in &connection.query(sql, &[]).await? {
        if !column::<bool>(row, "sees_all")? {
            let role: String = column(row, "role")?;
            let message =
                format!("role {role} sees little of other roles' sessions: old transactions there were not looked for");
            let fix = format!("grant pg_read_all_stats to {role};");
            findings.push(Finding::new(Severity::Note, "snapshots", message, fix));
        }
    }
    Ok(findings)
}

/// Slots that nobody reads. Servers before 17 do not say since when.
async fn slots(connection: &Connection, old_ms: i64) -> Result<Vec<Finding>, Failure> {
    let sql = "select s.slot_name::text as slot, s.xmin is not null as holds_rows, \
                      floor(extract(epoch from clock_timestamp() - i.since) * 1000)::bigint as age_ms, \
                      format('select pg_drop_replication_slot(%L);', s.slot_name) as remove \
                 from pg_replication_slots as s \
                cross join lateral (select (to_jsonb(s) ->> 'inactive_since')::timestamptz as since) as i \
                where not s.active and (s.xmin is not null or s.catalog_xmin is not null) \
                  and coalesce(i.since < clock_timestamp() - $1 * interval '1 millisecond', true)";
    let mut findings = Vec::new();
    for row in &connection.query(sql, &[&(old_ms as f64)]).await? {
        let age: Option<i64> = column(row, "age_ms")?;
        let message = format!(
            "nobody reads replication slot {}{}: {}",
            column::<String>(row, "slot")?,
            age.map_or(", at least now".to_string(), |age| format!(", for {}", duration(age))),
            if column::<bool>(row, "holds_rows")? {
                "vacuum cannot clean the queues, and WAL piles up"
            } else {
                "WAL piles up, and vacuum cannot clean the system catalogs"
            }
        );
        let fix = format!(
            "/* bring its reader back; only if that is gone for good: */ {}",
            column::<String>(row, "remove")?
        );
        findings.push(Finding::new(Severity::Warning, "snapshots", message, fix));
    }
    Ok(findings)
}
