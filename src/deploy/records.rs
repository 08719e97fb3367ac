//! The tables that say what is deployed, and what is to be done where one of them is lost.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

#[cfg(feature = "cli")]
use super::{Drift, migrations, repairs::restore};
use super::{database, migrations::latest};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

async fn lost(client: &impl GenericClient, schema: &SchemaName) -> Result<Option<Vec<String>>, Error> {
    let rows = client
        .query_typed(LOST, &[(&schema.as_str(), Type::TEXT)])
        .await
        .map_err(database)?;
    rows.first().map(|row| row.try_get(0)).transpose().map_err(database)
}

/// Which of them are lost. No row where nothing of ours is: others have tables of such names, too.
pub(crate) const LOST: &str = "\
    select array(select t.name from unnest(array['deployment', 'schema_history']) as t (name) \
                  where not exists (select from pg_class as c \
                                     where c.relnamespace = n.oid and c.relname = t.name and c.relkind = 'r')) as lost \
      from pg_namespace as n \
     where n.nspname = $1 \
       and (select count(*) from pg_class as c \
             where c.relnamespace = n.oid and c.relkind = 'r' and c.relname in ('mailboxes', 'orchestrator_queue')) \
           + (exists (select from pg_proc as p where p.pronamespace = n.oid and p.proname = 'get_deployment'))::integer >= 2";

/// Without them nobody knows what to upgrade from.
pub(super) async fn require(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    match lost(client, schema).await? {
        Some(lost) if !lost.is_empty() => Err(Error::new(
            ErrorKind::Schema,
            format!(
                "{}. `duroxide-postgres doctor` says what to do",
                incomplete(schema, &lost)
            ),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn incomplete(schema: &SchemaName, lost: &[String]) -> String {
    format!(
        "schema {:?} is not completely deployed: table {} is missing",
        schema.as_str(),
        lost.join(" and table ")
    )
}

/// The migrations of a later release are there where its record is not.
pub(super) async fn refuse_later_migrations(client: &impl GenericClient, schema: &SchemaName) -> Result<(), Error> {
    let row = client
        .query_typed_one("select max(version) from schema_history", &[])
        .await
        .map_err(database)?;
    let found: Option<i32> = row.try_get(0).map_err(database)?;
    if found.is_some_and(|found| found > latest()) {
        return Err(Error::new(
            ErrorKind::NewerSchema,
            format!(
                "schema {:?} has migration {}, and this release none after {}: it was deployed by a later one. Use that",
                schema.as_str(),
                found.unwrap_or_default(),
                latest()
            ),
        ));
    }
    Ok(())
}

/// Writes down which migrations were applied, where the tables show that it is those of this release. One that changes no table
/// would not be seen there.
#[cfg(feature = "cli")]
pub(crate) fn rewrite_history(drift: &Drift, schema: &SchemaName) -> String {
    if drift.concerns_tables() {
        return restore(schema, "schema_history");
    }
    let mut sql = format!(
        "begin; set local search_path = {}, pg_temp; {}",
        schema.quoted(),
        migrations::history_table()
    );
    for migration in migrations::all() {
        sql.push_str(&format!(" {}", migrations::record(&migration)));
    }
    sql.push_str(&format!(" {} commit;", as_the_rest(schema, "schema_history")));
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Gives a table that was created again to whom the others belong, whoever does it: functions that run as that role read it.
#[cfg(feature = "cli")]
pub(super) fn as_the_rest(schema: &SchemaName, table: &str) -> String {
    let schema = schema.quoted();
    format!(
        "do 'declare v_owner name; begin \
         for v_owner in select pg_get_userbyid(c.relowner) from pg_class as c where c.oid = to_regclass(''{schema}.mailboxes'') loop \
         execute format(''alter table {schema}.{table} owner to %I'', v_owner); end loop; end';"
    )
}
