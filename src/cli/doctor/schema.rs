//! The schema: whether it is as it should be, cleaned, and served by somebody.

use super::super::connection::{Connection, Place, column};
use super::super::output::{Failure, duration};
use super::{Examination, Finding, Severity};
use crate::deploy::{self, Drift, RELEASE, Repair, Standing};
use crate::error::ErrorKind;
use crate::shell::quoted;

/// The view that says whether work waits.
const QUEUES: &str = "queue_health";
/// Below this many, dead rows do not matter.
const FEW_DEAD_ROWS: i64 = 10_000;
/// Work that waits longer than this has nobody who takes it.
const LONG_WAIT_MS: i64 = 60_000;

pub(super) async fn examine(examination: &mut Examination<'_>) -> Result<(), Failure> {
    let connection = examination.connection;
    let command = connection.command();
    let apply = format!("{command} schema apply");
    let role = match shut_out(connection).await {
        Ok(role) => role,
        Err(failure) => return examination.add("schema", Err(failure)).await,
    };
    if let Some(role) = role {
        let message = format!(
            "role {role:?} may not use the schema: it lacks USAGE on it, or EXECUTE on get_deployment. What it looks like, \
             and whether work waits, was not checked"
        );
        let fix = format!("{command} grant --for dashboard {}", quoted(&role));
        let finding = Finding::new(Severity::Error, "privileges", message, fix);
        examination.add("privileges", Ok(vec![finding])).await?;
        examination.add("privileges", privileges(connection).await).await?;
        return examination.add("vacuum", dead_rows(connection).await).await;
    }
    let found = match connection.find_deployment().await {
        Ok(Some(found)) => found,
        Ok(None) => return examination.add("schema", not_deployed(connection, apply).await).await,
        Err(failure) => {
            let of_schema = match connection.stranger().await {
                Ok(Some(stranger)) => {
                    let finding = Finding::new(Severity::Error, "schema", stranger.problem, stranger.cure);
                    Ok(vec![finding.then(format!("{command} doctor # again"))])
                }
                _ => Err(failure),
            };
            examination.add("schema", of_schema).await?;
            // A table of another owner than the functions' is one that they may not read.
            examination.add("privileges", privileges(connection).await).await?;
            examination.add("vacuum", dead_rows(connection).await).await?;
            // The view may be anybody's.
            let message = "whether work waits was not checked: nothing says what is deployed";
            let fix = format!("{command} doctor # again, once that is put right");
            let finding = Finding::new(Severity::Note, "backlog", message, fix);
            return examination.add("backlog", Ok(vec![finding])).await;
        }
    };
    let newer = format!(
        "cargo install duroxide-postgres --version {} --features cli",
        quoted(&found.release)
    );
    // Whether the view is the one that this release knows.
    let mut knows_queues = true;
    let of_schema = match deploy::standing(&found, &connection.schema) {
        Err(error) => {
            let finding = |fix: String| Finding::new(Severity::Error, "schema", error.to_string(), fix);
            let finding = match error.kind() {
                // No release of that name can be had. What is deployed is written down anew, unless a later one's migrations
                // show.
                ErrorKind::Schema => {
                    finding(format!("delete from {}.deployment;", connection.schema.quoted())).then(apply)
                }
                _ => finding(newer),
            };
            return examination.add("schema", Ok(vec![finding])).await;
        }
        Ok(Standing::Newer) => {
            let message = format!(
                "deployed by release {}, which is later than this one, {RELEASE}: what it looks like was not checked",
                found.release
            );
            Ok(vec![Finding::new(Severity::Note, "schema", message, newer)])
        }
        // What differs then is what the upgrade changes.
        Ok(Standing::Outdated) => {
            let message = format!(
                "deployed by release {}, or another build of it, migration {}; this is {RELEASE}",
                found.release, found.migration
            );
            Ok(vec![Finding::new(Severity::Error, "schema", message, apply)])
        }
        Ok(Standing::Current) => match find_drift(connection).await {
            Ok(drift) => {
                knows_queues = !drift.differs_in_view(QUEUES);
                differences(connection, &drift).await
            }
            Err(failure) => Err(failure),
        },
    };
    examination.add("schema", of_schema).await?;
    examination.add("privileges", privileges(connection).await).await?;
    examination.add("vacuum", dead_rows(connection).await).await?;
    if knows_queues {
        examination.add("backlog", backlog(connection).await).await?;
    }
    Ok(())
}

/// What there is instead. Where it is damaged, the last thing to do is to write down what is deployed.
async fn not_deployed(connection: &Connection, apply: String) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    let mut why = connection.not_deployed().await?.to_string();
    let fix = match connection.place().await? {
        Place::Missing | Place::Empty => apply,
        Place::Theirs => "export DUROXIDE_SCHEMA=NAME # the one it is deployed in, or a new one".to_string(),
        Place::Damaged(lost) => {
            let drift = find_drift(connection).await?;
            if lost.iter().any(|table| table == "schema_history") {
                let fix = deploy::rewrite_history(&drift, &connection.schema);
                let message = "missing: table schema_history, which says what migrations were applied";
                findings.push(Finding::new(Severity::Error, "schema", message, fix));
            }
            findings.extend(differences(connection, &drift).await?);
            why = "not completely deployed: nothing says by which release. That one, or a later one, writes it down"
                .to_string();
            apply
        }
    };
    findings.push(Finding::new(Severity::Error, "schema", why, fix));
    Ok(findings)
}

/// The role, if it may not even ask what is deployed. Catalogs it may read.
async fn shut_out(connection: &Connection) -> Result<Option<String>, Failure> {
    let sql = "select current_user::text as role \
                 from pg_namespace as n left join pg_proc as p on p.pronamespace = n.oid and p.proname = 'get_deployment' \
                where n.nspname = $1 \
                  and not (has_schema_privilege(n.oid, 'usage') \
                           and coalesce(has_function_privilege(p.oid, 'execute'), true))";
    let rows = connection.query(sql, &[&connection.schema.as_str()]).await?;
    rows.first().map(|row| column(row, "role")).transpose()
}

async fn find_drift(connection: &Connection) -> Result<Drift, Failure> {
    let mut client = connection.client().await?;
    let found = deploy::find_drift(&mut client, &connection.schema).await;
    if found
        .as_ref()
        .is_err_and(|error| matches!(error.kind(), ErrorKind::Config | ErrorKind::Connect))
    {
        // A pooler that refuses ends the connection, sooner or later: nobody else shall get it. Otherwise it may be the last.
        drop(client.take());
    }
    Ok(found?)
}

async fn differences(connection: &Connection, drift: &Drift) -> Result<Vec<Finding>, Failure> {
    let findings = deploy::repairs(drift, &connection.schema).into_iter().map(|repair| {
        let Repair {
            message,
            command,
            is_index,
        } = repair;
        // What is not ours keeps nodes that verify the schema from starting, too.
        let check = if is_index { "indexes" } else { "schema" };
        Finding::new(Severity::Error, check, message, command)
    });
    let mut findings: Vec<Finding> = findings.collect();
    let sql = "select quote_ident(current_user) as role, quote_ident(current_database()) as database \
                where not has_database_privilege(current_database(), 'temporary')";
    for row in &connection.query(sql, &[]).await? {
        let (role, database): (String, String) = (column(row, "role")?, column(row, "database")?);
        let message = format!("role {role} may create no temporary views: what the views say was not compared");
        let fix = format!("grant temporary on database {database} to {role};");
        findings.push(Finding::new(Severity::Note, "schema", message, fix));
    }
    Ok(findings)
}

async fn privileges(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for problem in connection.grant_problems().await? {
        let severity = if problem.is_lack {
            Severity::Error
        } else {
            Severity::Warning
        };
        findings.push(Finding::new(severity, "privileges", problem.message, problem.command));
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

/// Who may not see the queues is told so.
async fn backlog(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let command = connection.command();
    let visible = "select has_table_privilege(to_regclass($1), 'select') as visible, current_user::text as role";
    let view = format!("{}.{QUEUES}", connection.schema.quoted());
    let rows = connection.query(visible, &[&view]).await?;
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    // NULL: there is no such view.
    if column::<Option<bool>>(row, "visible")? != Some(true) {
        let role: String = column(row, "role")?;
        let message = format!("role {role:?} may not read the views: whether work waits was not checked");
        let fix = format!("{command} grant --for dashboard {}", quoted(&role));
        return Ok(vec![Finding::new(Severity::Note, "backlog", message, fix)]);
    }
    let sql = format!(
        "select q.queue, q.ready, floor(extract(epoch from q.latency) * 1000)::bigint as latency_ms \
           from {view} as q where extract(epoch from q.latency) * 1000 > $1::bigint"
    );
    let rows = connection.query(&sql, &[&LONG_WAIT_MS]).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let queue: String = column(row, "queue")?;
        let is_worker = queue == "worker";
        let message = format!(
            "{} items of the {queue} queue are ready, the oldest for {}: too few nodes, or none that can take them{}",
            column::<i64>(row, "ready")?,
            duration(column(row, "latency_ms")?),
            if is_worker {
                ""
            } else {
                ", or messages for instances that were never started"
            }
        );
        let finding = Finding::new(Severity::Warning, "backlog", message, format!("{command} status"));
        findings.push(if is_worker {
            finding
        } else {
            finding.then(never_started(connection))
        });
    }
    Ok(findings)
}

/// Messages wait for the start of their instance, which may never come. Only the owner can tell. Where it has come, they wait
/// for a node, as everything does.
fn never_started(connection: &Connection) -> String {
    let schema = connection.schema.quoted();
    format!(
        "select q.instance_id, count(*) from {schema}.orchestrator_queue as q where not exists \
         (select from {schema}.instances as i where i.instance_id = q.instance_id) group by 1 \
         having not bool_or(q.kind = 's') \
         and not exists (select from {schema}.mailboxes as m where m.instance_id = q.instance_id and m.start_item is not null);"
    )
}
