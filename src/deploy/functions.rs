//! Applies the functions and views: the files under `sql/`.

use tokio_postgres::Transaction;

use super::{EXPECTED, RELEASE, SERVES_FROM, database, drift};
use crate::error::Error;

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

pub(super) const PERMISSIONS: &str = include_str!("../../sql/permissions.sql");
/// Gives back what [`drop_changed_signatures`] noted.
pub(super) const RESTORE_GRANTS: &str = "do $$ begin execute current_setting('duroxide_postgres.grants'); end $$;";

/// All functions and views, their permissions and the record of it.
pub(super) async fn deploy(transaction: &Transaction<'_>) -> Result<(), Error> {
    let run = |sql: String| async move { transaction.batch_execute(&sql).await.map_err(database) };
    run("set local check_function_bodies = off".to_string()).await?;
    run(drop_changed_signatures()).await?;
    for (name, sql) in FUNCTIONS {
        transaction.batch_execute(sql).await.map_err(|error| {
            let error = database(error);
            Error::new(error.kind(), format!("sql/{name}.sql cannot be deployed: {error}")).caused_by(error)
        })?;
    }
    run(PERMISSIONS.to_string()).await?;
    run(RESTORE_GRANTS.to_string()).await?;
    run(record()).await
}

/// A function whose signature changed would become an overload, or be refused. Drops it; its grants are noted in a
/// setting of the transaction.
pub(super) fn drop_changed_signatures() -> String {
    let signatures: Vec<String> = drift::signatures(EXPECTED)
        .map(|(name, signature)| format!("        ('{name}', '{}')", signature.replace('\'', "''")))
        .collect();
    format!(
        "do $$
declare
    v_function record;
    v_grants   text := '';
begin
    for v_function in
        select p.oid::regprocedure as signature, p.proacl, p.proowner, p.proname
          from pg_proc as p
          join (values
{}
               ) as s (name, signature) on s.name = p.proname
         where p.pronamespace = quote_ident(current_schema())::regnamespace
           and s.signature <> p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns '
                              || pg_get_function_result(p.oid)
    loop
        v_grants := v_grants || coalesce((
            select string_agg(format('grant execute on function %I to %I;', v_function.proname, r.rolname), '')
              from aclexplode(v_function.proacl) as a
              join pg_roles as r on r.oid = a.grantee
             where a.privilege_type = 'EXECUTE'
               and a.grantee <> v_function.proowner), '');
        execute format('drop function %s', v_function.signature);
    end loop;
    perform set_config('duroxide_postgres.grants', v_grants, true);
end
$$;",
        signatures.join(",\n")
    )
}

/// Notes which release was deployed.
pub(super) fn record() -> String {
    format!(
        "insert into deployment as d (release, serves_from, functions_digest, deployed_at)
values ('{RELEASE}', '{SERVES_FROM}', '{FUNCTIONS_DIGEST}', clock_timestamp())
    on conflict (only_row) do update
   set release = excluded.release,
       serves_from = excluded.serves_from,
       functions_digest = excluded.functions_digest,
       deployed_at = excluded.deployed_at
 where (d.release, d.serves_from, d.functions_digest)
       <> (excluded.release, excluded.serves_from, excluded.functions_digest);"
    )
}
