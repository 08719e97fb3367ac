//! The settings that nodes get: those of their roles, which need not be this session's.

use super::super::connection::{Connection, column};
use super::super::output::{Failure, duration};
use super::{Finding, Severity};
use crate::deploy::CATALOGS_ONLY;

/// Whether nodes can run as role `r`, of the schema `$1`. A superuser's limits and settings are its own affair.
pub(super) const RUNS_NODES: &str = "\
    r.rolcanlogin and not r.rolsuper \
    and exists (select from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace \
                 where n.nspname = $1 and p.proname = 'fetch_orchestration_item' \
                   and has_function_privilege(r.oid, p.oid, 'execute'))";

/// What role `r` has of the setting `t.name`, and whether that is its own: what it has for this database counts more than what it has
/// everywhere, that more than what the database has, and that more than what all have.
const OWN: &str = "\
    select s.setrole, substr(e.entry, strpos(e.entry, '=') + 1) as value \
      from pg_db_role_setting as s \
     cross join lateral unnest(s.setconfig) as e (entry) \
     where s.setrole in (0, r.oid) \
       and s.setdatabase in (0, (select d.oid from pg_database as d where d.datname = current_database())) \
       and split_part(e.entry, '=', 1) = t.name \
     order by s.setrole = 0, s.setdatabase = 0 \
     limit 1";

/// What this session has from the database too is found as its own.
fn settings() -> String {
    format!(
        "\
    select r.rolname::text as role, t.name, lower(own.value) as value, \
           format('alter role %I in database %I set %s = ', r.rolname, current_database(), t.name) as fix \
      from pg_roles as r \
     cross join (values ('default_transaction_isolation'), ('default_transaction_read_only'), ('synchronous_commit')) as t (name) \
      join pg_settings as g on g.name = t.name \
     cross join lateral ({OWN}) as own \
     where r.rolname <> session_user and {RUNS_NODES} \
       and not (own.setrole = 0 and g.source in ('global', 'database')) \
       and case t.name when 'default_transaction_isolation' then lower(own.value) <> 'read committed' \
                       when 'default_transaction_read_only' then lower(own.value) in ('on', 'true', 'yes', '1') \
                       else lower(own.value) in ('off', 'false', 'no', '0') end \
     order by 1, 2"
    )
}

pub(super) async fn findings(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for row in &connection.query(&settings(), &[&connection.schema.as_str()]).await? {
        let (role, name, value): (String, String, String) =
            (column(row, "role")?, column(row, "name")?, column(row, "value")?);
        let (severity, why, wanted) = match name.as_str() {
            "default_transaction_isolation" => (
                Severity::Error,
                "the functions refuse anything but read committed",
                "'read committed'",
            ),
            "default_transaction_read_only" => (Severity::Error, "nodes cannot run as it", "off"),
            _ => (
                Severity::Warning,
                "a crash of the server can lose turns and messages that were acknowledged",
                "on",
            ),
        };
        let message = format!("role {role:?} has {name} = {value}: {why}");
        let fix = format!("{}{wanted};", column::<String>(row, "fix")?);
        findings.push(Finding::new(severity, "settings", message, fix));
    }
    Ok(findings)
}

/// Settings that end what nodes do, the least that leaves them in peace (none: whatever it is), and what they do.
const TIMEOUTS: [(&str, Option<i64>, &str); 4] = [
    (
        "statement_timeout",
        Some(30_000),
        "calls that take longer are ended and tried again, in vain",
    ),
    (
        "transaction_timeout",
        Some(30_000),
        "calls that take longer are ended with their connection and tried again, in vain",
    ),
    (
        "lock_timeout",
        Some(5000),
        "calls that wait for a deployment, or for each other, fail instead",
    ),
    (
        "idle_session_timeout",
        None,
        "it ends connections that wait for work, and the one that listens for it",
    ),
];

/// Where a role has nothing, what the server has counts: that is known unless this session got another one.
fn effective_timeouts() -> String {
    format!(
        "\
    select r.rolname::text as role, t.name, m.ms::bigint as ms, \
           format('alter role %I in database %I set %s = 0;', r.rolname, current_database(), t.name) as fix \
      from pg_roles as r \
     cross join unnest($2::text[]) with ordinality as t (name, position) \
      left join lateral ({OWN}) as own on true \
      left join pg_settings as g \
        on g.name = t.name and g.source in ('default', 'configuration file', 'command line', 'override') \
     cross join lateral (select coalesce(own.value, g.reset_val) as value) as v \
     cross join lateral ( \
           select case when v.value ~ '^ *[0-9]+([.][0-9]+)? *$' then round(v.value::numeric) \
                       when v.value ~ '^ *[0-9]+([.][0-9]+)? *(us|ms|s|min|h|d) *$' \
                       then ceil(extract(epoch from v.value::interval) * 1000) end as ms) as m \
     where m.ms > 0 and {RUNS_NODES} \
     order by 1, t.position"
    )
}

/// Timeouts of the roles that nodes can run as, too short for them.
pub(super) async fn timeouts(connection: &Connection) -> Result<Vec<Finding>, Failure> {
    let names: Vec<&str> = TIMEOUTS.iter().map(|(name, ..)| *name).collect();
    // In a transaction that limits waiting, the server would not say where lock_timeout comes from. These are catalogs.
    let rows = connection
        .query_within(
            CATALOGS_ONLY,
            &effective_timeouts(),
            &[&connection.schema.as_str(), &names],
        )
        .await?;
    let mut findings = Vec::new();
    for row in &rows {
        let (role, name, ms): (String, String, i64) = (column(row, "role")?, column(row, "name")?, column(row, "ms")?);
        let Some((_, least, why)) = TIMEOUTS.iter().find(|(known, ..)| *known == name) else {
            continue;
        };
        if least.is_some_and(|least| ms >= least) {
            continue;
        }
        let message = format!("role {role:?} has {name} = {}: {why}", duration(ms));
        findings.push(Finding::new(
            Severity::Warning,
            "settings",
            message,
            column::<String>(row, "fix")?,
        ));
    }
    Ok(findings)
}
