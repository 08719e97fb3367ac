//! Who keeps everybody from a table.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::Type;

use crate::limited;

/// What keeps everybody's rows from being read or written: a lock on a whole table, or somebody who waits for one.
const TABLE_LOCKS: &str = "\
    select format('%s %s %s on %s%s', \
                  coalesce('session ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'a prepared transaction'), \
                  case when l.granted then 'has' else 'waits for' end, l.mode, c.relname, \
                  coalesce(' (' || nullif(concat_ws(', ', 'of role ' || a.usename, \
                                                    'application_name ' || nullif(a.application_name, ''), \
                                                    a.state || coalesce(' since ' || to_char(a.state_change, 'YYYY-MM-DD HH24:MI:SS'), '')), \
                                          '') || ')', '')) as lock, \
           coalesce('select pg_terminate_backend(' || l.pid || ');', 'rollback prepared ' || quote_literal(p.gid) || ';', \
                    'select * from pg_prepared_xacts;') as end \
      from pg_locks as l \
      join pg_class as c on c.oid = l.relation and c.relnamespace = to_regnamespace($1::text) \
      left join pg_stat_activity as a on a.pid = l.pid \
      left join pg_prepared_xacts as p \
        on l.pid is null \
       and exists (select from pg_locks as x \
                    where x.pid is null and x.virtualtransaction = l.virtualtransaction and x.transactionid = p.transaction) \
     where l.locktype = 'relation' \
       and l.database = (select d.oid from pg_database as d where d.datname = current_database()) \
       and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
       and l.pid is distinct from pg_backend_pid() \
     order by l.granted desc, l.mode = 'AccessExclusiveLock' desc, l.pid limit 1";

/// Somebody's lock on a whole table of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableLock {
    /// Who has it, and on what.
    pub(super) who: String,
    /// The statement that ends it.
    pub(super) end: String,
}

impl TableLock {
    /// `schema`: quoted.
    pub(super) async fn find(client: &ClientWrapper, schema: &str) -> Result<Option<Self>, tokio_postgres::Error> {
        let rows = limited::query(client, TABLE_LOCKS, &[(&schema, Type::TEXT)]).await?;
        let lock = rows.first().map(|row| {
            Ok(Self {
                who: row.try_get("lock")?,
                end: row.try_get("end")?,
            })
        });
        lock.transpose()
    }
}
