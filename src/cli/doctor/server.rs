//! The server: version, settings, clock, connections, and what holds vacuum up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::connection::{Connection, column};
use super::super::output::{Failure, duration};
use super::{Finding, Severity};

const OLDEST_SERVER: i32 = 140_000;
/// Clocks that differ by more are worth a word: durations and timers of the application go by its own.
const CLOCK_OFFSET: Duration = Duration::from_secs(2);
/// A transaction older than this keeps vacuum from cleaning the queues.
const OLD_SNAPSHOT_MS: i64 = 300_000;
/// Where the server's own warnings begin is 40 million before the end of 2 billion.
const OLD_TRANSACTION_IDS: i64 = 1_500_000_000;
/// A pooler with a single connection lets nobody in meanwhile.
const POOLER_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let mut findings = settings(connection).await?;
    findings.extend(clock(connection).await?);
    findings.extend(pooler(connection).await?);
    findings.extend(connections(connection).await?);
    findings.extend(old_snapshots(connection).await?);
    Ok(findings)
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
                      quote_ident(current_database()) as database, \
                      age(datfrozenxid)::bigint as xid_age \
                 from pg_database where datname = current_database()";
    let rows = connection.query(sql, &[]).await?;
    let Some(row) = rows.first() else {
        return Err(Failure::new("the server does not know its own database"));
    };
    let is = |name| column::<bool>(row, name);
    let database: String = column(row, "database")?;
    let mut findings = Vec::new();
    let mut find = |severity, check, message: String, fix: String| {
        findings.push(Finding::new(severity, check, message, fix));
    };
    let version: String = column(row, "version")?;
    if column::<i32>(row, "number")? < OLDEST_SERVER {
        let message = format!("PostgreSQL {version} is too old: 14 or later is needed");
        find(Severity::Error, "version", message, String::new());
    } else {
        find(
            Severity::Note,
            "version",
            format!("PostgreSQL {version}"),
            String::new(),
        );
    }
    if is("is_standby")? {
        let message = "this is a standby, which cannot run anything: name the primary, or several hosts with target_session_attrs=read-write";
        find(Severity::Error, "settings", message.to_string(), String::new());
    } else if is("read_only")? {
        let message = "transactions are read-only by default (default_transaction_read_only)".to_string();
        let fix = format!("alter database {database} set default_transaction_read_only = off;");
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
            let fix = format!("alter system set {setting} = on; select pg_reload_conf();");
            find(Severity::Error, "settings", format!("{setting} is off: {why}"), fix);
        }
    }
    let synchronous_commit: String = column(row, "synchronous_commit")?;
    if synchronous_commit == "off" {
        let message =
            "synchronous_commit is off: a crash of the server can lose turns and messages that were acknowledged";
        let fix = format!("alter database {database} set synchronous_commit = on;");
        find(Severity::Warning, "settings", message.to_string(), fix);
    }
    let isolation: String = column(row, "isolation")?;
    if isolation != "read committed" {
        let message =
            format!("transactions are {isolation} by default: the functions refuse anything but read committed");
        let fix = format!("alter database {database} set default_transaction_isolation = 'read committed';");
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
        "chronyc makestep",
    )])
}

/// A connection that changes its server process between two statements goes through a pooler in transaction mode. To see
/// it, another one occupies, in a transaction, what the first one had.
async fn pooler(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    const PROCESS: &str = "select pg_backend_pid()";
    let (one, two) = (connection.client().await?, connection.client().await?);
    let looked = async {
        let before: i32 = one.query_one(PROCESS, &[]).await?.try_get(0)?;
        two.batch_execute("begin").await?;
        two.query_one(PROCESS, &[]).await?;
        let after = tokio::time::timeout(POOLER_TIMEOUT, one.query_one(PROCESS, &[])).await;
        Ok::<_, tokio_postgres::Error>(match after {
            Ok(row) => row?.try_get::<_, i32>(0)? != before,
            Err(_) => true,
        })
    };
    let looked = looked.await;
    // However it went: the connection is used again.
    let _ = two.batch_execute("rollback").await;
    let is_pooled = match looked {
        Ok(is_pooled) => is_pooled,
        // A statement prepared on one process, executed on another.
        Err(error)
            if error
                .code()
                .is_some_and(|code| matches!(code.code(), "26000" | "42P05" | "08P01")) =>
        {
            true
        }
        Err(error) => return Err(crate::deploy::database(error).into()),
    };
    if !is_pooled {
        return Ok(Vec::new());
    }
    let message =
        "connections go through a pooler in transaction mode: LISTEN does not work there, so that nodes only poll";
    let fix = "connect nodes to the server itself, or set pool_mode = session for them";
    Ok(vec![Finding::new(Severity::Warning, "pooler", message, fix)])
}

async fn connections(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let sql = "select current_setting('max_connections')::bigint \
                      - current_setting('superuser_reserved_connections')::bigint as allowed, \
                      (select count(*) from pg_stat_activity where backend_type = 'client backend') as used";
    let rows = connection.query(sql, &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let (allowed, used): (i64, i64) = (column(row, "allowed")?, column(row, "used")?);
    let message = format!("{used} of {allowed} connections are in use; each node takes its pool_size and one more");
    let severity = match used * 100 / allowed.max(1) {
        95.. => Severity::Error,
        80.. => Severity::Warning,
        _ => Severity::Note,
    };
    let fix = if severity == Severity::Note {
        String::new()
    } else {
        format!(
            "alter system set max_connections = {}; -- and restart the server",
            allowed * 2
        )
    };
    Ok(vec![Finding::new(severity, "connections", message, fix)])
}

/// What keeps vacuum from removing dead rows. Of other roles' sessions only the age is to be seen, without pg_monitor.
async fn old_snapshots(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let sql = "select 'session ' || a.pid || ' of ' || coalesce(a.usename, '?') || ' (' || coalesce(a.state, '?') || ')' as holder, \
                      floor(extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint as age_ms, \
                      format('select pg_terminate_backend(%s);', a.pid) as fix \
                 from pg_stat_activity as a \
                where a.datname = current_database() and a.backend_type = 'client backend' \
                  and a.xact_start < clock_timestamp() - $1 * interval '1 millisecond' \
                  and (a.backend_xmin is not null or a.backend_xid is not null) \
               union all \
               select 'prepared transaction ' || p.gid, \
                      floor(extract(epoch from clock_timestamp() - p.prepared) * 1000)::bigint, \
                      format('rollback prepared %L;', p.gid) \
                 from pg_prepared_xacts as p \
                where p.database = current_database() and p.prepared < clock_timestamp() - $1 * interval '1 millisecond' \
               union all \
               select 'replication slot ' || s.slot_name || ', which nobody uses', null, \
                      format('select pg_drop_replication_slot(%L);', s.slot_name) \
                 from pg_replication_slots as s \
                where not s.active and (s.xmin is not null or s.catalog_xmin is not null)";
    let rows = connection.query(sql, &[&(OLD_SNAPSHOT_MS as f64)]).await?;
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
    Ok(findings)
}
