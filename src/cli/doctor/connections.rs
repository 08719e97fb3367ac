//! Connections: whether nodes get as many as they take.

use super::super::arguments::Doctor;
use super::super::connection::{Connection, column};
use super::super::output::Failure;
use super::roles::RUNS_NODES;
use super::{Finding, Severity};

/// What else is in use, beside what nodes take: who deploys, prunes and looks.
const SPARE_CONNECTIONS: i64 = 5;

/// There is one connection, and no other to be had. What could not be checked is still to be said.
pub(super) async fn crowded(connection: &Connection, failure: &Failure) -> Finding {
    let fix = room(connection)
        .await
        .unwrap_or_else(|_| "select pid, usename, application_name, state from pg_stat_activity;".to_string());
    Finding::new(Severity::Error, "connections", failure.to_string(), fix)
}

/// What makes room: where the limit is that was reached.
async fn room(connection: &Connection) -> Result<String, Failure> {
    let sql = "select case when r.rolconnlimit between 0 and u.of_role \
                           then format('alter role %I connection limit %s;', r.rolname, r.rolconnlimit + $1) \
                           when d.datconnlimit between 0 and u.of_database \
                           then format('alter database %I connection limit %s;', d.datname, d.datconnlimit + $1) \
                           end as fix, \
                      s.setting::bigint as max, s.source \
                 from pg_roles as r \
                 join pg_settings as s on s.name = 'max_connections' \
                 join pg_database as d on d.datname = current_database() \
                cross join lateral (select count(*) filter (where a.usesysid = r.oid) as of_role, \
                                           count(*) filter (where a.datid = d.oid) as of_database \
                                      from pg_stat_activity as a) as u \
                where r.rolname = session_user";
    let rows = connection.query(sql, &[&SPARE_CONNECTIONS]).await?;
    let Some(row) = rows.first() else {
        return Err(Failure::new("the server does not know this role"));
    };
    match column(row, "fix")? {
        Some(fix) => Ok(fix),
        None => Ok(raise(column(row, "source")?, column::<i64>(row, "max")? * 2)),
    }
}

/// What raises max_connections. `source`: where it comes from.
fn raise(source: &str, to: i64) -> String {
    match source {
        "command line" => {
            format!("restart the server with max_connections={to} on its command line, where it is given")
        }
        _ => format!("alter system set max_connections = {to}; -- and restart the server"),
    }
}

/// What nodes take when they are busy, beside what others have now.
pub(super) async fn findings(connection: &Connection, wanted: &Doctor) -> Result<Vec<Finding>, Failure> {
    let sql = "select current_setting('max_connections')::bigint as max, \
                      (select s.source from pg_settings as s where s.name = 'max_connections') as source, \
                      current_setting('superuser_reserved_connections')::bigint \
                      + coalesce(current_setting('reserved_connections', true)::bigint, 0) as reserved, \
                      nullif(d.datconnlimit, -1)::bigint as database_limit, quote_ident(d.datname) as database, \
                      (select count(*) from pg_stat_activity \
                        where usename is not null and coalesce(backend_type, 'client backend') = 'client backend') as used \
                 from pg_database as d where d.datname = current_database()";
    let rows = connection.query(sql, &[]).await?;
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    let (max, reserved, used): (i64, i64, i64) = (column(row, "max")?, column(row, "reserved")?, column(row, "used")?);
    let source: &str = column(row, "source")?;
    let allowed = max - reserved;
    let nodes = i64::from(wanted.nodes) * (i64::from(wanted.pool_size) + 1);
    let needed = nodes + SPARE_CONNECTIONS;
    let mut findings = Vec::new();
    let takes = format!(
        "{} nodes with a pool_size of {} take {nodes} connections, and {SPARE_CONNECTIONS} are for others",
        wanted.nodes, wanted.pool_size
    );
    if needed > allowed {
        let message = format!("{takes}: the server has {allowed}");
        let fix = raise(source, needed + reserved);
        findings.push(Finding::new(Severity::Error, "connections", message, fix));
    } else if used * 100 >= allowed * 80 {
        let severity = if used * 100 >= allowed * 95 {
            Severity::Error
        } else {
            Severity::Warning
        };
        let message = format!("{used} of {allowed} connections are in use");
        findings.push(Finding::new(severity, "connections", message, raise(source, max * 2)));
    }
    if let Some(limit) = column::<Option<i64>>(row, "database_limit")?
        && needed > limit
    {
        let database: String = column(row, "database")?;
        let message = format!("{takes}: database {database} is limited to {limit}");
        let fix = format!("alter database {database} connection limit {needed};");
        findings.push(Finding::new(Severity::Error, "connections", message, fix));
    }
    // Roles that nodes can run as. Limits are nothing to a superuser.
    let sql = format!(
        "select r.rolname::text as role, quote_ident(r.rolname) as quoted, r.rolconnlimit::bigint as role_limit \
           from pg_roles as r \
          where {RUNS_NODES} and r.rolconnlimit between 0 and $2 - 1 \
          order by 1"
    );
    for row in &connection.query(&sql, &[&connection.schema.as_str(), &nodes]).await? {
        let (role, limit): (String, i64) = (column(row, "role")?, column(row, "role_limit")?);
        let message = format!("{takes}: role {role:?} is limited to {limit}");
        let fix = format!(
            "alter role {} connection limit {nodes};",
            column::<String>(row, "quoted")?
        );
        findings.push(Finding::new(Severity::Error, "connections", message, fix));
    }
    Ok(findings)
}
