//! Applies the functions.

use tokio_postgres::{Client, Transaction};

use super::{EXPECTED, RELEASE, SERVES_FROM, database, describe_schema, drift};
use crate::error::{Error, ErrorKind, describe};
use crate::schema_name::SchemaName;

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

const PERMISSIONS: &str = include_str!("../../sql/permissions.sql");

/// All functions, their permissions and the record of it, in one transaction.
pub(super) async fn deploy(client: &mut Client, schema: &SchemaName) -> Result<(), Error> {
    let actual = describe_schema(client, schema).await?;
    let transaction = client.transaction().await.map_err(database)?;
    transaction
        .batch_execute("set local check_function_bodies = off")
        .await
        .map_err(database)?;
    // A signature that changed would become an overload, or be refused.
    let mut grants = Vec::new();
    for name in drift::changed_signatures(EXPECTED, &actual) {
        grants.extend(drop_overloads(&transaction, schema, &name).await?);
    }
    for (name, sql) in FUNCTIONS {
        transaction.batch_execute(sql).await.map_err(|error| {
            Error::new(
                ErrorKind::Database,
                format!("function {name} cannot be deployed: {}", describe(&error)),
            )
            .caused_by(error)
        })?;
    }
    transaction.batch_execute(PERMISSIONS).await.map_err(database)?;
    for grant in grants {
        transaction.batch_execute(&grant).await.map_err(database)?;
    }
    transaction
        .execute(
            "insert into deployment as d (release, serves_from, functions_digest, deployed_at) \
             values ($1, $2, $3, clock_timestamp()) \
                 on conflict (only_row) do update \
                set release = excluded.release, serves_from = excluded.serves_from, \
                    functions_digest = excluded.functions_digest, deployed_at = excluded.deployed_at",
            &[&RELEASE, &SERVES_FROM, &FUNCTIONS_DIGEST],
        )
        .await
        .map_err(database)?;
    transaction.commit().await.map_err(database)
}

/// Returns the grants that the dropped functions had.
async fn drop_overloads(transaction: &Transaction<'_>, schema: &SchemaName, name: &str) -> Result<Vec<String>, Error> {
    let rows = transaction
        .query(
            "select p.oid::regprocedure::text, \
                    array(select format('grant execute on function %I to %I', p.proname, r.rolname) \
                            from aclexplode(p.proacl) as a join pg_roles as r on r.oid = a.grantee \
                           where a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner) \
               from pg_proc as p \
              where p.pronamespace = $1::text::regnamespace and p.proname = $2",
            &[&schema.quoted(), &name],
        )
        .await
        .map_err(database)?;
    let mut grants = Vec::new();
    for row in &rows {
        let signature: String = row.try_get(0).map_err(database)?;
        grants.extend(row.try_get::<_, Vec<String>>(1).map_err(database)?);
        transaction
            .batch_execute(&format!("drop function {signature}"))
            .await
            .map_err(database)?;
    }
    Ok(grants)
}
