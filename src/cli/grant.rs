//! `grant`: what roles need.

use serde_json::json;

use super::arguments::{Grant, Purpose};
use super::connection::{Connection, column, query_unnamed};
use super::output::{Failure, Outcome};
use crate::call::Parameters;
use crate::deploy::{self, Grants, RoleKind};
use crate::schema_name::{SchemaName, quote_identifier};

/// Prints the statements.
pub(super) fn sql(schema: &str, grant: &Grant) -> Result<Outcome, Failure> {
    let statements = statements(&SchemaName::new(schema)?, grant)?;
    let json = json!({ "role": grant.role, "statements": statements });
    Ok(Outcome::script(statements.join("\n"), json))
}

/// What the role $1 lacks of the functions $3 and the views $4, or was granted of the views $5 nevertheless.
const WRONG: &str = "\
    with view as (select c.oid, c.relname::text as name, c.relacl as acl, c.relowner as owner from pg_class as c \
                   where c.relnamespace = $2::text::regnamespace and c.relkind = 'v') \
    select 'lacks USAGE on the schema' as wrong \
     where not has_schema_privilege($1::text, $2::text::regnamespace::oid, 'usage') \
    union all \
    select 'lacks EXECUTE on ' || p.proname from pg_proc as p \
     where p.pronamespace = $2::text::regnamespace and p.proname = any ($3::text[]) \
       and not has_function_privilege($1::text, p.oid, 'execute') \
    union all \
    select 'lacks SELECT on ' || v.name from view as v \
     where v.name = any ($4::text[]) and not has_table_privilege($1::text, v.oid, 'select') \
    union all \
    select 'still has ' || a.privilege_type || ' on ' || v.name from view as v \
     cross join lateral aclexplode(v.acl) as a join pg_roles as r on r.oid = a.grantee \
     where v.name = any ($5::text[]) and r.rolname = $1::text and a.grantee <> v.owner \
     order by 1";

/// What the role $1 was granted itself, of the schema $2 and what is in it.
const HELD: &str = "\
    with object as ( \
        select n.oid, coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl from pg_namespace as n \
         where n.oid = $2::text::regnamespace \
        union all \
        select p.oid, coalesce(p.proacl, acldefault('f', p.proowner)) from pg_proc as p \
         where p.pronamespace = $2::text::regnamespace \
        union all \
        select c.oid, coalesce(c.relacl, acldefault('r', c.relowner)) from pg_class as c \
         where c.relnamespace = $2::text::regnamespace and c.relkind = 'v' \
    ) \
    select format('%s %s', o.oid, a.privilege_type) from object as o \
     cross join lateral aclexplode(o.acl) as a join pg_roles as r on r.oid = a.grantee \
     where r.rolname = $1::text order by 1";

/// Executes them, all or none.
pub(super) async fn run(connection: &Connection, grant: &Grant) -> Result<Outcome, Failure> {
    let mut statements = statements(&connection.schema, grant)?;
    connection.require_deployment().await?;
    let schema = connection.schema.quoted();
    let exists = "select exists (select from pg_class as c where c.relowner = r.oid and c.relnamespace = $2::text::regnamespace) \
                      as is_owner \
                    from pg_roles as r where r.rolname = $1";
    let rows = connection.query(exists, &[&grant.role, &schema]).await?;
    if let Some(row) = rows.first() {
        if column(row, "is_owner")? {
            // What is its own cannot be kept from it, only made tedious.
            statements.retain(|statement| !statement.starts_with("revoke "));
        }
    } else if grant.role.starts_with("pg_") {
        return Err(Failure::usage(format!(
            "role {:?} does not exist, and cannot be created: PostgreSQL keeps names that begin with pg_ for itself",
            grant.role
        )));
    } else {
        return Err(Failure::new(format!(
            "role {0:?} does not exist: create it first, for example with: create role {1} login",
            grant.role,
            quote_identifier(&grant.role)
        )));
    }
    let mut client = connection.client().await?;
    let grants = Grants::of(kind(grant)?);
    let withheld = withheld(kind(grant)?);
    let granted = async {
        // As a deployment does: whatever the session's default is.
        let transaction = client.build_transaction().read_only(false).start().await?;
        transaction.batch_execute(crate::limited::LIMIT).await?;
        let list = async |sql, parameters: Parameters<'_>| {
            let rows = query_unnamed(&*transaction, sql, parameters).await?;
            rows.iter()
                .map(|row| row.try_get(0))
                .collect::<Result<Vec<String>, _>>()
        };
        // Without the right to grant, GRANT only warns, for each object on its own; and there may be nothing left to grant.
        let mut held = list(HELD, &[&grant.role, &schema]).await?;
        let mut effective = Vec::new();
        for statement in &statements {
            transaction.batch_execute(statement).await?;
            let before = std::mem::replace(&mut held, list(HELD, &[&grant.role, &schema]).await?);
            if before != held {
                effective.push(statement.as_str());
            }
        }
        let parameters: Parameters<'_> = &[&grant.role, &schema, &grants.functions, &grants.views, &withheld];
        let wrong = list(WRONG, parameters).await?;
        if wrong.is_empty() {
            transaction.commit().await?;
        }
        Ok((wrong, effective))
    };
    let (wrong, effective) = granted.await.map_err(deploy::no_transaction)?;
    if let Some(first) = wrong.first() {
        let more = match wrong.len() {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        return Err(Failure::new(format!(
            "nothing was granted: only the owner of schema {:?} can do that, and only what it granted itself can it take away. \
             Role {:?} {first}{more}",
            connection.schema.as_str(),
            grant.role
        )));
    }
    let unchanged = if effective.is_empty() {
        " already; nothing was changed"
    } else {
        ""
    };
    let text = format!(
        "role {:?} has what it needs for {} in schema {:?}{unchanged}",
        grant.role,
        purpose(grant),
        connection.schema.as_str()
    );
    let json = json!({ "role": grant.role, "purpose": purpose(grant), "statements": effective });
    Ok(Outcome::new(text, json))
}

fn kind(grant: &Grant) -> Result<RoleKind, Failure> {
    match (grant.purpose, grant.payloads) {
        (Purpose::Runtime, false) => Ok(RoleKind::Runtime),
        (Purpose::Cleanup, false) => Ok(RoleKind::Cleanup),
        (Purpose::Dashboard, false) => Ok(RoleKind::Dashboard),
        (Purpose::Dashboard, true) => Ok(RoleKind::Payloads),
        _ => Err(Failure::usage(
            "--payloads is for dashboards: use it with --for dashboard",
        )),
    }
}

/// The views that a dashboard without payloads shall not see, even if it did before.
fn withheld(kind: RoleKind) -> Vec<&'static str> {
    if kind != RoleKind::Dashboard {
        return Vec::new();
    }
    let seen = Grants::of(kind).views;
    let mut withheld = Grants::of(RoleKind::Payloads).views;
    withheld.retain(|view| !seen.contains(view));
    withheld
}

fn statements(schema: &SchemaName, grant: &Grant) -> Result<Vec<String>, Failure> {
    let kind = kind(grant)?;
    if grant.role.is_empty() || grant.role.contains('\0') {
        return Err(Failure::usage("the role has no name"));
    }
    // Quoted or not, GRANT takes the one for everybody, and refuses the other.
    if matches!(grant.role.as_str(), "public" | "none") {
        return Err(Failure::usage(format!(
            "{:?} is no role: PostgreSQL keeps that name for itself. PUBLIC, which is everybody, shall have nothing here; name \
             the role that needs it",
            grant.role
        )));
    }
    let mut statements = Grants::of(kind).statements(schema, &grant.role);
    let withheld: Vec<String> = withheld(kind)
        .iter()
        .map(|view| format!("{}.{view}", schema.quoted()))
        .collect();
    if !withheld.is_empty() {
        let role = quote_identifier(&grant.role);
        statements.push(format!("revoke all on\n    {}\nfrom {role};", withheld.join(",\n    ")));
    }
    Ok(statements)
}

fn purpose(grant: &Grant) -> &'static str {
    match grant.purpose {
        Purpose::Runtime => "runtime",
        Purpose::Cleanup => "cleanup",
        Purpose::Dashboard => "dashboard",
    }
}
