//! The deployment as a script for psql: the same statements as the deployer's, in the same order.

use std::fmt::Write;

use refinery::Migration;

use super::{EXPECTED, OLDEST_SERVER, RELEASE, drift, foreign, functions, migrations, owner};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// Everything for a schema whose last migration is `from`, or a later one; 0: for any, an empty database included.
pub(crate) fn script(schema: &SchemaName, from: i32) -> Result<String, Error> {
    let all = migrations::all();
    let latest = migrations::latest();
    if !(0..=latest).contains(&from) {
        return Err(Error::new(
            ErrorKind::Config,
            format!("there is no migration {from}: this release has 1 to {latest}; 0 means all of them"),
        ));
    }
    let mut script = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut script, schema, &all, from, latest);
    Ok(script)
}

fn write(
    script: &mut String,
    schema: &SchemaName,
    all: &[Migration],
    from: i32,
    latest: i32,
) -> Result<(), std::fmt::Error> {
    let (name, quoted) = (schema.as_str(), schema.quoted());
    let which = match latest - from {
        0 => String::new(),
        1 => format!("migration {latest}, "),
        _ => format!("migrations {} to {latest}, ", from + 1),
    };
    writeln!(
        script,
        r#"-- duroxide-postgres {RELEASE} in schema {quoted}: {which}functions, views and permissions.
--
-- For psql, as the role that is to own the schema:  psql -X "$DATABASE_URL" -f FILE
-- One transaction: all of it or nothing. It can run any number of times, and beside processes that deploy themselves.
-- Ends in the state that `duroxide-postgres schema apply` and DeployPolicy::Apply end in, and DeployPolicy::Verify asks for.

\set ON_ERROR_STOP on
\set ON_ERROR_ROLLBACK off
\set SINGLELINE off
\set QUIET on
\encoding UTF8

begin isolation level read committed, read write;
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local check_function_bodies = off;

-- Another deployment may take a while.
set local lock_timeout = '60s';
select pg_advisory_xact_lock(hashtext('duroxide-postgres:deploy'), hashtext('{name}')) as duroxide_lock \gset

-- Whoever waits for a lock makes others wait behind it: gives up early instead, and can be run again.
set local lock_timeout = '2s';

-- Nothing that somebody else put there is run: not by this check either, which finds nothing of the schema.
set local duroxide_postgres.schema = '{quoted}';
{}

set local search_path = {quoted}, pg_temp;
"#,
        foreign::script_refuses_planted()
    )?;
    if from == 0 {
        writeln!(
            script,
            "select not exists (select from pg_namespace where nspname = '{name}') as duroxide_missing \\gset\n\
             \\if :duroxide_missing\n\
             create schema {quoted};\n\
             \\endif"
        )?;
    }
    writeln!(
        script,
        "-- Functions run as their owner: that of what is deployed already, or of the schema.\n{}\n\n\
         -- Another application's would be read, and written to.\n{}\n\n{}\n",
        owner::BECOME_OWNER,
        foreign::script_refuses_other_history(),
        guard(from)
    )?;
    if from == 0 {
        writeln!(
            script,
            "-- Which migrations were applied, as refinery keeps it. It may be there by now, by somebody else.\n{}\n{}\n",
            migrations::history_table(),
            foreign::script_refuses_other_history()
        )?;
    }
    writeln!(script, "{}\n", refuse_divergence(all))?;
    for migration in all.iter().filter(|migration| migration.version() > from) {
        writeln!(
            script,
            "{}\n\
             select not exists (select from schema_history where version = {}) as duroxide_missing \\gset\n\
             \\if :duroxide_missing\n\n\
             {}\n\
             {}\n\
             \\endif\n",
            heading(&format!("migrations/{migration}.sql")),
            migration.version(),
            migration.sql().unwrap_or_default(),
            migrations::record(migration)
        )?;
    }
    writeln!(
        script,
        "{}\n\n{}\n",
        heading(
            "Functions whose signature changed: dropped here, created below, with their grants. Views do so themselves."
        ),
        functions::drop_changed_signatures()
    )?;
    for (name, sql) in functions::FUNCTIONS {
        let statement = functions::statement(name, sql);
        writeln!(script, "{}\n\n{statement}", heading(&format!("sql/{name}.sql")))?;
    }
    writeln!(
        script,
        "{}\n\n{}\n{}\n\n{}\n\n{}\n\ncommit;\n\\echo duroxide-postgres {RELEASE} is deployed in schema {name}",
        heading("sql/permissions.sql"),
        functions::PERMISSIONS,
        functions::close_functions(),
        functions::RESTORE_GRANTS,
        functions::record()
    )
}

fn heading(title: &str) -> String {
    format!("-- {:-<117}\n-- {title}", "")
}

/// Refuses what the deployer refuses: an old server, a newer schema, objects of somebody else with names of ours.
///
/// The schema's name may contain `$$`, so it is not spelt out in here.
fn guard(from: i32) -> String {
    let own_version = RELEASE.split(['-', '+']).next().unwrap_or(RELEASE).replace('.', ", ");
    let list = |kinds: &[&str]| {
        let names = kinds.iter().flat_map(|kind| drift::names(EXPECTED, kind));
        names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
    };
    format!(
        "-- Nothing is done where the deployer would do nothing.
do $$
declare
    v_schema constant text := split_part(current_setting('search_path'), ',', 1);
    v_name            text;
    v_release         text;
begin
    if current_setting('server_version_num')::integer < {OLDEST_SERVER} then
        raise exception 'PostgreSQL % is too old: 14 or later is needed', current_setting('server_version');
    end if;
    if to_regclass('schema_history') is null then
        if {from} > 0 then
            raise exception 'schema % is not deployed: use a script that begins at migration 1 (without --from)', v_schema;
        end if;
        if to_regclass('mailboxes') is not null and to_regproc('get_deployment') is not null then
            raise exception 'schema % is not completely deployed: table schema_history is missing', v_schema
                using hint = 'What to do says: duroxide-postgres doctor';
        end if;
        select c.relname into v_name
          from pg_class as c
         where c.relnamespace = quote_ident(current_schema())::regnamespace
           and c.relkind in ('r', 'p', 'v', 'm', 'f')
           and c.relname in ({tables})
        union all
        select p.proname
          from pg_proc as p
         where p.pronamespace = quote_ident(current_schema())::regnamespace
           and p.proname in ({functions})
         limit 1;
        if found then
            raise exception 'schema % has a \"%\" of somebody else: choose another schema, or move it', v_schema, v_name;
        end if;
    else
        if {from} > coalesce((select max(h.version) from schema_history as h), 0) then
            raise exception 'schema % is older than migration {from}: use a script that begins earlier (--from)', v_schema;
        end if;
        if exists (select from schema_history as h where h.version > {latest}) then
            raise exception 'schema % was deployed by a later release than {RELEASE}', v_schema;
        end if;
        if to_regclass('deployment') is null then
            if exists (select from schema_history) then
                raise exception 'schema % is not completely deployed: table deployment is missing', v_schema
                    using hint = 'What to do says: duroxide-postgres doctor';
            end if;
        else
            select d.release into v_release from deployment as d;
            if string_to_array(regexp_replace(v_release, '[-+].*', ''), '.')::integer[] > array[{own_version}] then
                raise exception 'schema % was deployed by release %, which is later than {RELEASE}', v_schema, v_release;
            end if;
        end if;
    end if;
end
$$;",
        tables = list(&["table", "view"]),
        functions = list(&["function"]),
        latest = migrations::latest(),
    )
}

fn refuse_divergence(all: &[Migration]) -> String {
    let known: Vec<String> = all
        .iter()
        .map(|migration| {
            format!(
                "({}, '{}', '{}')",
                migration.version(),
                migration.name(),
                migration.checksum()
            )
        })
        .collect();
    format!(
        "do $$
begin
    if exists (select from schema_history as h
                 join (values {}) as k (version, name, checksum) using (version)
                where (h.name, h.checksum) is distinct from (k.name, k.checksum)) then
        raise exception 'schema % was deployed by something else: its migrations are not those of release {RELEASE}',
            current_schema();
    end if;
end
$$;",
        known.join(", ")
    )
}
