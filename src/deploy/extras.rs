//! What has to be known of extra objects to move them away.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use super::{Drift, database};
use crate::error::Error;
use crate::schema_name::SchemaName;

/// Functions have overloads; what belongs to an extension goes with it.
const EXTRAS: &str = "\
    select o.name, o.signature, quote_ident(e.extname), coalesce(e.extrelocatable, false) \
      from (select p.oid, 'pg_proc'::regclass as class, 'function ' || quote_ident(p.proname) as name, \
                   format('%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) as signature \
              from pg_proc as p where p.pronamespace = $1::text::regnamespace \
            union all \
            select c.oid, 'pg_class', \
                   case when c.relkind = 'v' then 'view ' else 'table ' end || quote_ident(c.relname), null \
              from pg_class as c \
             where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p', 'f', 'm', 'v')) as o \
      left join pg_depend as d on d.classid = o.class and d.objid = o.oid and d.deptype = 'e' \
      left join pg_extension as e on e.oid = d.refobjid and d.refclassid = 'pg_extension'::regclass \
     order by 2, 1";

pub(super) async fn add(drift: &mut Drift, transaction: &Transaction<'_>, schema: &SchemaName) -> Result<(), Error> {
    if drift.extra.is_empty() {
        return Ok(());
    }
    let rows = transaction
        .query_typed(EXTRAS, &[(&schema.quoted(), Type::TEXT)])
        .await
        .map_err(database)?;
    for row in &rows {
        let object: String = row.try_get(0).map_err(database)?;
        let signature: Option<String> = row.try_get(1).map_err(database)?;
        let extension: Option<String> = row.try_get(2).map_err(database)?;
        match (extension, signature) {
            (Some(extension), _) => {
                let is_relocatable = row.try_get(3).map_err(database)?;
                drift.extensions.insert(extension, is_relocatable);
                drift.members.insert(object);
            }
            (None, Some(signature)) => {
                let name = object.trim_start_matches("function ").to_string();
                drift.extra_functions.push((name, signature));
            }
            (None, None) => {}
        }
    }
    Ok(())
}
