//! `grant`: what roles need.

use serde_json::json;

use super::arguments::{Grant, Purpose};
use super::connection::{Connection, query_unnamed};
use super::output::{Failure, Outcome};
use crate::deploy::{self, Grants, RoleKind};
use crate::schema_name::SchemaName;

/// Prints the statements.
pub(super) fn sql(schema: &str, grant: &Grant) -> Result<Outcome, Failure> {
    let statements = statements(&SchemaName::new(schema)?, grant)?;
    let json = json!({ "role": grant.role, "statements": statements });
    Ok(Outcome::new(statements.join("\n"), json))
}

/// Executes them, all or none.
pub(super) async fn run(connection: &Connection, grant: &Grant) -> Result<Outcome, Failure> {
    let statements = statements(&connection.schema, grant)?;
    connection.require_deployment().await?;
    let exists = "select from pg_roles where rolname = $1";
    if connection.query(exists, &[&grant.role]).await?.is_empty() {
        return Err(Failure::new(format!(
            "role {0:?} does not exist: create it first, for example with: create role {1} login",
            grant.role,
            crate::schema_name::quote_identifier(&grant.role)
        )));
    }
    let mut client = connection.client().await?;
    let granted = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(&statements.join("\n")).await?;
        // Without the right to grant, GRANT only warns.
        let schema = connection.schema.quoted();
        let check = "select has_schema_privilege($1::text, $2::text::regnamespace::oid, 'usage') \
                        and has_function_privilege($1::text, to_regproc($2 || '.get_deployment')::oid, 'execute')";
        let rows = query_unnamed(&*transaction, check, &[&grant.role, &schema]).await?;
        let granted = rows.first().map_or(Ok(false), |row| row.try_get(0))?;
        if granted {
            transaction.commit().await?;
        }
        Ok(granted)
    };
    if !granted.await.map_err(deploy::database)? {
        return Err(Failure::new(format!(
            "nothing was granted: only the owner of schema {:?} can do that",
            connection.schema.as_str()
        )));
    }
    let text = format!(
        "role {:?} has what it needs for {} in schema {:?}",
        grant.role,
        purpose(grant),
        connection.schema.as_str()
    );
    let json = json!({ "role": grant.role, "purpose": purpose(grant), "statements": statements });
    Ok(Outcome::new(text, json))
}

fn statements(schema: &SchemaName, grant: &Grant) -> Result<Vec<String>, Failure> {
    let kind = match (grant.purpose, grant.payloads) {
        (Purpose::Runtime, false) => RoleKind::Runtime,
        (Purpose::Cleanup, false) => RoleKind::Cleanup,
        (Purpose::Dashboard, false) => RoleKind::Dashboard,
        (Purpose::Dashboard, true) => RoleKind::Payloads,
        _ => {
            return Err(Failure::usage(
                "--payloads is for dashboards: use it with --for dashboard",
            ));
        }
    };
    if grant.role.is_empty() || grant.role.contains('\0') {
        return Err(Failure::usage("the role has no name"));
    }
    Ok(Grants::of(kind).statements(schema, &grant.role))
}

fn purpose(grant: &Grant) -> &'static str {
    match grant.purpose {
        Purpose::Runtime => "runtime",
        Purpose::Cleanup => "cleanup",
        Purpose::Dashboard => "dashboard",
    }
}
