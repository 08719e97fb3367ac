//! Applies the functions and views: the files under `sql/`.

use tokio_postgres::Transaction;

use super::{Drift, EXPECTED, RELEASE, SERVES_FROM, database, drift, still_used, views};
use crate::error::{Error, ErrorKind};

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

pub(super) const PERMISSIONS: &str = include_str!("../../sql/permissions.sql");
/// CREATE FUNCTION hands EXECUTE to PUBLIC. By name, for one that has another signature was dropped; and what is in the schema
/// beside them is none of our business.
pub(super) fn close_functions() -> String {
    let names: Vec<&str> = FUNCTIONS
        .iter()
        .filter(|(name, sql)| views::definition(name, sql).is_none())
        .filter_map(|(name, _)| name.rsplit('/').next())
        .collect();
    format!("revoke all on function\n    {}\nfrom public;", names.join(",\n    "))
}

/// Gives back what [`drop_changed_signatures`] and [`replace_view`] noted.
pub(super) const RESTORE_GRANTS: &str = "do $$ begin execute current_setting('duroxide_postgres.grants'); end $$;";

/// All functions and views, their permissions and the record of it.
///
/// Views and triggers only where they differ: to replace one locks out who uses it, or the table.
pub(super) async fn deploy(transaction: &Transaction<'_>, drift: &Drift) -> Result<(), Error> {
    let run = |sql: String| async move { transaction.batch_execute(&sql).await.map_err(database) };
    run("set local check_function_bodies = off".to_string()).await?;
    let dropped = transaction.batch_execute(&drop_changed_signatures()).await;
    dropped.map_err(|error| in_use(&error).unwrap_or_else(|| database(error)))?;
    for (name, sql) in FUNCTIONS {
        let statement = match views::definition(name, sql) {
            Some((view, _)) if !drift.concerns_view(view) => continue,
            Some((view, _)) => &replace_view(view, sql),
            None => match sql.split_once("\ncreate or replace trigger ") {
                Some((function, _)) if !drift.concerns_triggers() => function,
                _ => sql,
            },
        };
        transaction.batch_execute(statement).await.map_err(|error| {
            in_use(&error).unwrap_or_else(|| {
                let error = database(error);
                Error::new(error.kind(), format!("sql/{name}.sql cannot be deployed: {error}")).caused_by(error)
            })
        })?;
    }
    run(PERMISSIONS.to_string()).await?;
    run(close_functions()).await?;
    run(RESTORE_GRANTS.to_string()).await?;
    run(record()).await
}

/// Others built upon what has to be dropped.
fn in_use(error: &tokio_postgres::Error) -> Option<Error> {
    still_used(error).map(|cause| Error::new(ErrorKind::Schema, format!("nothing was changed: {cause}")))
}

/// What a file contains, as it is deployed.
#[cfg(feature = "cli")]
pub(super) fn statement(name: &str, sql: &str) -> String {
    match views::definition(name, sql) {
        Some((view, _)) => replace_view(view, sql),
        None => sql.to_string(),
    }
}

/// A view that got columns at its end is replaced where it is, with its grants, those on columns too, and whatever others built
/// upon it. Only where PostgreSQL refuses that, because others of its columns changed, it is dropped; who may read it is noted as
/// [`drop_changed_signatures`] does.
fn replace_view(view: &str, sql: &str) -> String {
    format!(
        "do $do$
declare
    v_create constant text := $view$
{sql}$view$;
    v_grants text;
begin
    execute v_create;
exception when invalid_table_definition then
    select string_agg(format('grant select on table %I to %I;', c.relname, r.rolname), '')
      into v_grants
      from pg_class as c
     cross join lateral aclexplode(c.relacl) as a
      join pg_roles as r on r.oid = a.grantee
     where c.oid = to_regclass('{view}')
       and a.privilege_type = 'SELECT'
       and a.grantee <> c.relowner;
    perform set_config('duroxide_postgres.grants', concat(current_setting('duroxide_postgres.grants'), v_grants), true);
    drop view {view};
    execute v_create;
end
$do$;
"
    )
}

/// A function whose signature changed would become an overload, or be refused. Drops it; its grants are noted in a setting of
/// the transaction.
pub(super) fn drop_changed_signatures() -> String {
    let functions: Vec<String> = drift::signatures(EXPECTED)
        .map(|(name, signature)| format!("        ('{name}', '{}')", signature.replace('\'', "''")))
        .collect();
    format!(
        "do $$
declare
    v_function record;
    v_grants   text := '';
begin
    for v_function in
        select p.oid::regprocedure::text as signature, p.proacl as acl, p.proowner as owner, p.proname as name
          from pg_proc as p
          join (values
{}
               ) as s (name, signature) on s.name = p.proname
         where p.pronamespace = quote_ident(current_schema())::regnamespace
           and s.signature <> p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns '
                              || pg_get_function_result(p.oid)
    loop
        v_grants := v_grants || coalesce((
            select string_agg(format('grant execute on function %I to %I;', v_function.name, r.rolname), '')
              from aclexplode(v_function.acl) as a
              join pg_roles as r on r.oid = a.grantee
             where a.privilege_type = 'EXECUTE'
               and a.grantee <> v_function.owner), '');
        execute format('drop function %s', v_function.signature);
    end loop;
    perform set_config('duroxide_postgres.grants', v_grants, true);
end
$$;",
        functions.join(",\n")
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
