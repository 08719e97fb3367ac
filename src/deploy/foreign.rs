//! What others put into the schema: nothing of it is run, or taken for ours.
//!
//! A deployment runs what it finds under names of ours, triggers of tables included, and to have become another role keeps
//! nothing from those: they can go back. So it asks the catalogs first, and the script does the same.

use tokio_postgres::{GenericClient, SimpleQueryMessage};

use super::{EXPECTED, database, drift};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// Under which the catalogs are asked: a function or an operator of the schema that fits better than PostgreSQL's own would be
/// taken instead. Ends with the transaction, or the message: through a pooler, the next may be somebody else's.
pub(crate) const CATALOGS_ONLY: &str = "set local search_path = pg_catalog, pg_temp";

/// The schema, whose name contains no apostrophe. In the script it is the one that `duroxide_postgres.schema` names, for a name may
/// contain `$$`.
fn literal(schema: &SchemaName) -> String {
    format!("to_regnamespace('{}')", schema.quoted())
}
#[cfg(feature = "cli")]
const SETTING: &str = "to_regnamespace(current_setting('duroxide_postgres.schema'))";

/// Something that may be a stranger's.
pub(crate) struct Stranger {
    pub(crate) problem: String,
    /// What tells that it is none.
    #[cfg(feature = "cli")]
    pub(crate) cure: String,
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// Before anything is run: objects with names of ours, or of PostgreSQL's functions and operators, whose owners nobody let create
/// there, and a schema that was open to everybody until now. Who deploys into somebody else's schema cannot close it.
fn planted(schema: &str) -> String {
    let relations = drift::names(EXPECTED, "table")
        .chain(drift::names(EXPECTED, "view"))
        .chain(["schema_history"]);
    let ours = format!(
        "select 'a relation' as kind, c.relname as name, c.relowner as owner
               from pg_class as c
              where c.relnamespace = n.oid
                and c.relname in ({})
             union all
             select 'a function', p.proname, p.proowner
               from pg_proc as p
              where p.pronamespace = n.oid
                and p.proname in ({})",
        list(relations),
        list(drift::names(EXPECTED, "function"))
    );
    // By their arguments they can fit better than what they are named after.
    let better = "select 'a function' as kind, p.proname as name, p.proowner as owner
               from pg_proc as p
              where p.pronamespace = n.oid
                and exists (select from pg_proc as c
                             where c.pronamespace = 'pg_catalog'::regnamespace and c.proname = p.proname)
             union all
             select 'an operator', o.oprname, o.oprowner
               from pg_operator as o
              where o.oprnamespace = n.oid
                and exists (select from pg_operator as c
                             where c.oprnamespace = 'pg_catalog'::regnamespace and c.oprname = o.oprname)";
    format!(
        "{}
         union all
         {}
         union all
         select format('everybody may create in schema %I, and could have put there what a deployment would run: revoke create on schema %1$I from public; then see what is in it, and deploy again',
                       n.nspname),
                null
           from pg_namespace as n
          where n.oid = {schema}
            and pg_has_role(n.nspowner, 'usage')
            and exists (select from aclexplode(n.nspacl) as a where a.grantee = 0 and a.privilege_type = 'CREATE')
            and not exists (select from pg_class as c
                             where c.relnamespace = n.oid and c.relname in ('mailboxes', 'schema_history'))",
        of_strangers(schema, MAYBE_OURS, &ours),
        of_strangers(schema, INSTEAD, better)
    )
}

/// The `get_deployment` of a stranger, unless it runs as that one: it would run as whoever asks what is deployed. Processes call
/// nothing but functions.
fn planted_reader(schema: &str) -> String {
    of_strangers(
        schema,
        MAYBE_OURS,
        "select 'a function' as kind, p.proname as name, p.proowner as owner
               from pg_proc as p
              where p.pronamespace = n.oid
                and p.proname = 'get_deployment'
                and (r.rolsuper or not p.prosecdef)",
    )
}

/// The same for the command, which reads views next: a function in one runs as the reader, whoever that is.
#[cfg(feature = "cli")]
fn planted_views(schema: &str) -> String {
    let objects = format!(
        "select 'a function' as kind, p.proname as name, p.proowner as owner
               from pg_proc as p
              where p.pronamespace = n.oid
                and p.proname = 'get_deployment'
             union all
             select 'a relation', c.relname, c.relowner
               from pg_class as c
              where c.relnamespace = n.oid
                and c.relname in ({})
                and exists (select from pg_proc as p where p.pronamespace = n.oid and p.proname = 'get_deployment')",
        list(drift::names(EXPECTED, "view"))
    );
    of_strangers(schema, MAYBE_OURS, &objects)
}

/// What is said of an object with a name of ours, and what tells that it is ours. `public` is for others, too: nobody is given it.
const MAYBE_OURS: &str = "\
format('schema %I has %s %I of role %I, which no grant of its own lets create there: it cannot be told from a stranger''s. If that role deployed it, run this as that role, or %s Otherwise choose another schema, or move it',
                       n.nspname, o.kind, o.name, pg_get_userbyid(o.owner),
                       case when n.nspname = 'public' then '' else format('give it the schema: alter schema %I owner to %I; or ', n.nspname, pg_get_userbyid(o.owner)) end
                       || format('let it create: grant create on schema %I to %I;', n.nspname, pg_get_userbyid(o.owner))) as problem,
                format(case when n.nspname = 'public' then 'grant create on schema %I to %I;' else 'alter schema %I owner to %I;' end
                       || ' -- only if role %2$I deployed it; or run this as that role', n.nspname, pg_get_userbyid(o.owner)) as cure";
/// What is said of one that would be run instead of PostgreSQL's own.
const INSTEAD: &str = "\
format('schema %I has %s %I of role %I, which no grant of its own lets create there, and it could be run instead of PostgreSQL''s own. Drop or move it, or choose another schema',
                       n.nspname, o.kind, o.name, pg_get_userbyid(o.owner)),
                null";

/// Those of `objects` that belong neither to this role nor to one that is let create in the schema, as everybody may be.
/// A superuser is a member of all, which says nothing; what belongs to one, as extensions do, is trusted.
fn of_strangers(schema: &str, said: &str, objects: &str) -> String {
    format!(
        "select {said}
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
                       pg_get_userbyid(c.relowner)) as problem,
                null as cure
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

/// Refuses to deploy beside what somebody else may have put there to be run. Under [`CATALOGS_ONLY`].
pub(super) async fn refuse_planted(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    refuse(client, &planted(&literal(schema))).await
}

/// Refuses to read and write a `schema_history` that is somebody else's.
pub(super) async fn refuse_other_history(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    refuse(client, &other_history(&literal(schema))).await
}

async fn refuse(client: &impl GenericClient, sql: &str) -> Result<(), Error> {
    let rows = client.query_typed(sql, &[]).await.map_err(database)?;
    match rows.first() {
        None => Ok(()),
        Some(row) => Err(Error::new(
            ErrorKind::Schema,
            row.try_get::<_, String>(0).map_err(database)?,
        )),
    }
}

/// Refuses to ask a function of somebody else what is deployed.
pub(crate) async fn refuse_planted_reader(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    match find(client, &planted_reader(&literal(schema))).await? {
        None => Ok(()),
        Some(stranger) => Err(Error::new(ErrorKind::Schema, stranger.problem)),
    }
}

/// What the command would ask or read, and may be somebody else's.
#[cfg(feature = "cli")]
pub(crate) async fn planted_view(client: &impl GenericClient, schema: &SchemaName) -> Result<Option<Stranger>, Error> {
    find(client, &planted_views(&literal(schema))).await
}

/// In one message, which is a transaction of its own: a start waits for one answer only.
async fn find(client: &impl GenericClient, sql: &str) -> Result<Option<Stranger>, Error> {
    let answers = client
        .simple_query(&format!("{CATALOGS_ONLY}; {sql}"))
        .await
        .map_err(database)?;
    let found = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(Stranger {
            problem: row.get(0).unwrap_or_default().to_string(),
            #[cfg(feature = "cli")]
            cure: row.get(1).unwrap_or_default().to_string(),
        }),
        _ => None,
    });
    Ok(found)
}

/// The same for psql, with `duroxide_postgres.schema` set.
#[cfg(feature = "cli")]
pub(super) fn script_refuses_planted() -> String {
    raise(&planted(SETTING))
}

#[cfg(feature = "cli")]
pub(super) fn script_refuses_other_history() -> String {
    raise(&other_history(SETTING))
}

#[cfg(feature = "cli")]
fn raise(sql: &str) -> String {
    format!(
        "do $$
declare
    v_problem text;
begin
    for v_problem in
        select f.problem from (
        {sql}
        ) as f
    loop
        raise exception '%', v_problem;
    end loop;
end
$$;"
    )
}
