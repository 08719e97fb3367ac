//! The settings that nodes get: those of their roles, which need not be this session's.

use super::super::connection::{Connection, column};
use super::super::output::Failure;
use super::{Finding, Severity};

/// Whether nodes can run as role `r`, of the schema `$1`. A superuser's limits and settings are its own affair.
pub(super) const RUNS_NODES: &str = "\
    r.rolcanlogin and not r.rolsuper \
    and exists (select from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace \
                 where n.nspname = $1 and p.proname = 'fetch_orchestration_item' \
                   and has_function_privilege(r.oid, p.oid, 'execute'))";

/// What a role has for this database counts more than what it has everywhere.
fn settings() -> String {
    format!(
        "\
    with setting as ( \
        select distinct on (r.rolname, c.name) r.rolname, c.name, lower(c.value) as value \
          from pg_db_role_setting as s \
          join pg_roles as r on r.oid = s.setrole \
         cross join lateral unnest(s.setconfig) as e (entry) \
         cross join lateral (select split_part(e.entry, '=', 1) as name, \
                                    substr(e.entry, strpos(e.entry, '=') + 1) as value) as c \
         where s.setdatabase in (0, (select d.oid from pg_database as d where d.datname = current_database())) \
           and r.rolname <> session_user and {RUNS_NODES} \
         order by r.rolname, c.name, s.setdatabase desc \
    ) \
    select s.rolname::text as role, s.name, s.value, \
           format('alter role %I in database %I set %s = ', s.rolname, current_database(), s.name) as fix \
      from setting as s \
     where case s.name when 'default_transaction_isolation' then s.value <> 'read committed' \
                       when 'default_transaction_read_only' then s.value in ('on', 'true', 'yes', '1') \
                       when 'synchronous_commit' then s.value in ('off', 'false', 'no', '0') \
                       else false end \
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
