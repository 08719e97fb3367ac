//! The schema: whether it is as it should be, cleaned, and served by somebody.

use super::super::connection::{Connection, column};
use super::super::output::{Failure, duration};
use super::{Finding, Severity};
use crate::deploy::{self, RELEASE, Standing};

/// Below this many, dead rows do not matter.
const FEW_DEAD_ROWS: i64 = 10_000;
/// Work that waits longer than this has nobody who takes it.
const LONG_WAIT_MS: i64 = 60_000;

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let name = connection.schema.as_str();
    let Some(found) = connection.find_deployment().await? else {
        let failure = connection.not_deployed().await?;
        let fix = format!("duroxide-postgres --schema {name} schema apply");
        return Ok(vec![Finding::new(Severity::Error, "schema", failure.to_string(), fix)]);
    };
    let mut findings = Vec::new();
    match deploy::standing(&found, &connection.schema) {
        Err(error) => {
            let fix = "cargo install duroxide-postgres --features cli";
            return Ok(vec![Finding::new(Severity::Error, "schema", error.to_string(), fix)]);
        }
        Ok(Standing::Newer) => {
            let message = format!(
                "deployed by release {}, which is later than this one, {RELEASE}",
                found.release
            );
            findings.push(Finding::new(Severity::Note, "schema", message, ""));
        }
        Ok(Standing::Current | Standing::Outdated) => findings.extend(drift(connection).await?),
    }
    findings.extend(dead_rows(connection).await?);
    findings.extend(backlog(connection).await?);
    Ok(findings)
}

async fn drift(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let name = connection.schema.as_str();
    let client = connection.client().await?;
    let drift = deploy::find_drift(&client, &connection.schema).await?;
    let mut findings = Vec::new();
    let problems = [("missing", drift.missing), ("changed", drift.changed)];
    for (what, objects) in problems {
        for object in objects {
            let (check, fix) = match (object.strip_prefix("index "), what) {
                (Some(index), "missing") => ("indexes", deploy::index_statement(&connection.schema, index)),
                // Invalid, or another one of that name. Once it is gone, it is missing.
                (Some(index), _) => {
                    let schema = connection.schema.quoted();
                    (
                        "indexes",
                        format!("drop index concurrently {schema}.{index}; -- and look again"),
                    )
                }
                (None, _) => ("schema", format!("duroxide-postgres --schema {name} schema apply")),
            };
            findings.push(Finding::new(Severity::Error, check, format!("{what}: {object}"), fix));
        }
    }
    if !drift.extra.is_empty() {
        let message = format!("not ours: {}", drift.extra.join(", "));
        let fix = "move it to another schema, or nodes that verify the schema do not start";
        findings.push(Finding::new(Severity::Warning, "schema", message, fix));
    }
    for problem in deploy::grant_problems(&client, &connection.schema).await? {
        let (message, fix) = problem.split_once(": ").unwrap_or((problem.as_str(), ""));
        findings.push(Finding::new(Severity::Warning, "privileges", message, fix));
    }
    Ok(findings)
}

async fn dead_rows(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let sql = "select format('%I.%I', t.schemaname, t.relname) as name, t.n_dead_tup as dead, t.n_live_tup as live, \
                      floor(extract(epoch from clock_timestamp() \
                          - greatest(t.last_autovacuum, t.last_vacuum)) * 1000)::bigint as vacuumed_ms \
                 from pg_stat_user_tables as t \
                where t.schemaname = $1 and t.n_dead_tup > $2 and t.n_dead_tup > t.n_live_tup / 2 \
                order by t.n_dead_tup desc";
    let rows = connection
        .query(sql, &[&connection.schema.as_str(), &FEW_DEAD_ROWS])
        .await?;
    let mut findings = Vec::new();
    for row in &rows {
        let table: String = column(row, "name")?;
        let (dead, live): (i64, i64) = (column(row, "dead")?, column(row, "live")?);
        let vacuumed: Option<i64> = column(row, "vacuumed_ms")?;
        let message = format!(
            "{table} has {dead} dead rows beside {live} live ones; {}",
            vacuumed.map_or("never vacuumed".to_string(), |ms| format!(
                "vacuumed {} ago",
                duration(ms)
            ))
        );
        findings.push(Finding::new(
            Severity::Warning,
            "vacuum",
            message,
            format!("vacuum (analyze) {table};"),
        ));
    }
    Ok(findings)
}

async fn backlog(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let sql = format!(
        "select q.queue, q.ready, floor(extract(epoch from q.latency) * 1000)::bigint as latency_ms \
           from {}.queue_health as q where extract(epoch from q.latency) * 1000 > $1::bigint",
        connection.schema.quoted()
    );
    let rows = connection.query(&sql, &[&LONG_WAIT_MS]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let message = format!(
            "{} items of the {} queue are ready, the oldest for {}: too few nodes, or none that can take them",
            column::<i64>(row, "ready")?,
            column::<String>(row, "queue")?,
            duration(column(row, "latency_ms")?)
        );
        let fix = format!("duroxide-postgres --schema {} status", connection.schema.as_str());
        findings.push(Finding::new(Severity::Warning, "backlog", message, fix));
    }
    Ok(findings)
}
