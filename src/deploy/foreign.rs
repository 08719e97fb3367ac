//! What others put into the schema: nothing of it is run, or taken for ours.
//!
//! A deployment runs what it finds under names of ours, triggers of tables included, and to have become another role keeps
//! nothing from those: they can go back. So it asks the catalogs first, and the script does the same.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::{EXPECTED, database, drift};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// Under which the catalogs are asked: a function or an operator of the schema that fits better than PostgreSQL's own would be
/// taken instead. Ends with the transaction, or the message: through a pooler, the next may be somebody else's.
pub(crate) const CATALOGS_ONLY: &str = "set local search_path = pg_catalog, pg_temp";

/// The schema, for the deployer; the script knows it by its `search_path`.
const PARAMETER: &str = "to_regnamespace($1::text)";
#[cfg(feature = "cli")]
const FIRST_IN_PATH: &str = "to_regnamespace(split_part(current_setting('search_path'), ',', 1))";

/// Before anything is run: objects with names of ours whose owners nobody let create there, and a schema that was open to
/// everybody until now. Who deploys into somebody else's schema cannot close it.
fn planted(schema: &str) -> String {
    let list = |names: Vec<&str>| {
        let names: Vec<String> = names.into_iter().map(|name| format!("'{name}'")).collect();
        names.join(", ")
    };
    let relations: Vec<&str> = drift::names(EXPECTED, "table")
        .chain(drift::names(EXPECTED, "view"))
        .chain(["schema_history"])
        .collect();
    let objects = format!(
        "select 'relation' as kind, c.relname as name, c.relowner as owner
               from pg_class as c
              where c.relnamespace = n.oid
                and c.relname in ({})
             union all
             select 'function', p.proname, p.proowner
               from pg_proc as p
              where p.pronamespace = n.oid
                and p.proname in ({})",
        list(relations),
        list(drift::names(EXPECTED, "function").collect())
    );
    format!(
        "{}
         union all
         select format('everybody may create in schema %I, and could have put there what a deployment would run: revoke create on schema %1$I from public; then see what is in it, and deploy again',
                       n.nspname)
           from pg_namespace as n
          where n.oid = {schema}
            and pg_has_role(n.nspowner, 'usage')
            and exists (select from aclexplode(n.nspacl) as a where a.grantee = 0 and a.privilege_type = 'CREATE')
            and not exists (select from pg_class as c
                             where c.relnamespace = n.oid and c.relname in ('mailboxes', 'schema_history'))",
        of_strangers(schema, &objects)
    )
}

/// The `get_deployment` of a stranger, unless it runs as that one: it would run as whoever asks what is deployed. A superuser
/// lends a stranger's views everything, too, which are read next.
fn planted_reader() -> String {
    of_strangers(
        PARAMETER,
        "select 'function' as kind, p.proname as name, p.proowner as owner
               from pg_proc as p
              where p.pronamespace = n.oid
                and p.proname = 'get_deployment'
                and (r.rolsuper or not p.prosecdef)",
    )
}

/// Those of `objects` that belong neither to this role nor to one that is let create in the schema, as everybody may be.
/// A superuser is a member of all, which says nothing.
fn of_strangers(schema: &str, objects: &str) -> String {
    format!(
        "select format('schema %I has a %s %I of role %I, which nobody let create there: it is not ours. Choose another schema, or move it. If that role deployed it, deploy as that role, or let it create: grant create on schema %1$I to %4$I;',
                       n.nspname, o.kind, o.name, pg_get_userbyid(o.owner))
           from pg_namespace as n
           join pg_roles as r on r.rolname = current_user
          cross join lateral (
             {objects}
          ) as o
          where n.oid = {schema}
            and o.owner <> r.oid
            and (r.rolsuper or not pg_has_role(o.owner, 'usage'))
            and not pg_has_role(o.owner, n.nspowner, 'usage')
            and not exists (select from aclexplode(n.nspacl) as a
                             where a.privilege_type = 'CREATE'
                               and a.grantee <> 0
                               and pg_has_role(o.owner, a.grantee, 'usage'))"
    )
}

/// A `schema_history` that is not the one of a deployment by this role, or that of the other tables.
fn other_history(schema: &str) -> String {
    format!(
        "select format('schema %I has a %s \"schema_history\" of role %I that this crate did not create: choose another schema, or move it',
                       n.nspname, case when c.relkind in ('r', 'p', 'f') then 'table' when c.relkind = 'v' then 'view' else 'relation' end,
                       pg_get_userbyid(c.relowner))
           from pg_namespace as n
           join pg_class as c on c.relnamespace = n.oid and c.relname = 'schema_history'
          where n.oid = {schema}
            and not (c.relkind = 'r'
                     and (pg_get_userbyid(c.relowner) = current_user
                          or c.relowner = (select m.relowner from pg_class as m
                                            where m.relnamespace = n.oid and m.relname = 'mailboxes' and m.relkind = 'r'))
                     and (select count(*) from pg_attribute as a
                           where a.attrelid = c.oid and not a.attisdropped
                             and a.attname in ('version', 'name', 'applied_on', 'checksum')) = 4)"
    )
}

/// Refuses to deploy beside what somebody else may have put there to be run.
pub(super) async fn refuse_planted(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    refuse(client, schema, &planted(PARAMETER)).await
}

/// Refuses to read and write a `schema_history` that is somebody else's.
pub(super) async fn refuse_other_history(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    refuse(client, schema, &other_history(PARAMETER)).await
}

/// Refuses to ask a function of somebody else what is deployed.
pub(crate) async fn refuse_planted_reader(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    refuse(client, schema, &planted_reader()).await
}

async fn refuse(client: &impl GenericClient, schema: &SchemaName, sql: &str) -> Result<(), Error> {
    let rows = client
        .query_typed(sql, &[(&schema.quoted(), Type::TEXT)])
        .await
        .map_err(database)?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(Error::new(
            ErrorKind::Schema,
            row.try_get::<_, String>(0).map_err(database)?,
        )),
    }
}

/// The same for psql, with `search_path` set.
#[cfg(feature = "cli")]
pub(super) fn script_refuses_planted() -> String {
    raise(&planted(FIRST_IN_PATH))
}

#[cfg(feature = "cli")]
pub(super) fn script_refuses_other_history() -> String {
    raise(&other_history(FIRST_IN_PATH))
}

#[cfg(feature = "cli")]
fn raise(sql: &str) -> String {
    format!(
        "do $$
declare
    v_problem text;
begin
    for v_problem in
        {sql}
    loop
        raise exception '%', v_problem;
    end loop;
end
$$;"
    )
}
