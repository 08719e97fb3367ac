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

/// Gives back what [`drop_changed_signatures`] noted.
pub(super) const RESTORE_GRANTS: &str = "do $$ begin execute current_setting('duroxide_postgres.grants'); end $$;";

/// All functions and views, their permissions and the record of it.
///
/// Views and triggers only where they differ: to replace one locks out who uses it, or the table.
pub(super) async fn deploy(transaction: &Transaction<'_>, drift: &Drift) -> Result<(), Error> {
    let run = |sql: String| async move { transaction.batch_execute(&sql).await.map_err(database) };
    run("set local check_function_bodies = off".to_string()).await?;
    let dropped = transaction.batch_execute(&drop_changed_signatures()).await;
    dropped.map_err(|error| match still_used(&error) {
        Some(cause) => Error::new(ErrorKind::Schema, format!("nothing was changed: {cause}")).caused_by(error),
        None => database(error),
    })?;
    for (name, sql) in FUNCTIONS {
        if views::definition(name, sql).is_some_and(|(view, _)| !drift.concerns_view(view)) {
            continue;
        }
        let sql = match sql.split_once("\ncreate or replace trigger ") {
            Some((function, _)) if !drift.concerns_triggers() => function,
            _ => sql,
        };
        transaction.batch_execute(sql).await.map_err(|error| {
            let error = database(error);
            Error::new(error.kind(), format!("sql/{name}.sql cannot be deployed: {error}")).caused_by(error)
        })?;
    }
    run(PERMISSIONS.to_string()).await?;
    run(close_functions()).await?;
    run(RESTORE_GRANTS.to_string()).await?;
    run(record()).await
}

/// A function whose signature changed would become an overload, or be refused; so would a view whose columns changed.
/// Drops it; its grants are noted in a setting of the transaction.
pub(super) fn drop_changed_signatures() -> String {
    let functions: Vec<String> = drift::signatures(EXPECTED)
        .map(|(name, signature)| format!("        ('{name}', '{}')", signature.replace('\'', "''")))
        .collect();
    let views: Vec<String> = drift::names(EXPECTED, "view")
        .map(|view| {
            format!(
                "        ('{view}', '{}')",
                drift::columns(EXPECTED, view).join(", ").replace('\'', "''")
            )
        })
        .collect();
    format!(
        "do $$
declare
    v_object record;
    v_grants text := '';
begin
    for v_object in
        select 'function' as kind, 'execute' as privilege, p.oid::regprocedure::text as signature, p.proacl as acl,
               p.proowner as owner, p.proname as name
          from pg_proc as p
          join (values
{}
               ) as s (name, signature) on s.name = p.proname
         where p.pronamespace = quote_ident(current_schema())::regnamespace
           and s.signature <> p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns '
                              || pg_get_function_result(p.oid)
        union all
        select 'view', 'select', c.oid::regclass::text, c.relacl, c.relowner, c.relname
          from pg_class as c
          join (values
{}
               ) as s (name, columns) on s.name = c.relname
         where c.relnamespace = quote_ident(current_schema())::regnamespace
           and c.relkind = 'v'
           and s.columns is distinct from (
               select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                                 || case when l.collname <> 'default' then ' collate ' || quote_ident(l.collname) else '' end,
                                 ', ' order by a.attname collate \"C\")
                 from pg_attribute as a
                 left join pg_collation as l on l.oid = a.attcollation
                where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
    loop
        v_grants := v_grants || coalesce((
            select string_agg(format('grant %s on %s %I to %I;', v_object.privilege,
                                     case v_object.kind when 'view' then 'table' else v_object.kind end, v_object.name,
                                     r.rolname), '')
              from aclexplode(v_object.acl) as a
              join pg_roles as r on r.oid = a.grantee
             where a.privilege_type = upper(v_object.privilege)
               and a.grantee <> v_object.owner), '');
        execute format('drop %s %s', v_object.kind, v_object.signature);
    end loop;
    perform set_config('duroxide_postgres.grants', v_grants, true);
end
$$;",
        functions.join(",\n"),
        views.join(",\n")
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
