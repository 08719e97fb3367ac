-- The shape of schema $1 as one line an object, free of the schema's own name and of everything that differs
-- between servers: what a deployment must look like. Reads catalogs only, which every role may.
with namespace as (
    select n.oid, n.nspname, quote_ident(n.nspname) as quoted
      from pg_namespace as n
     where n.nspname = $1
), relation as (
    select c.*
      from namespace as n
      join pg_class as c on c.relnamespace = n.oid
     where c.relname not in ('schema_history', 'schema_history_pkey')
)
select case when c.relkind = 'v' then 'view ' else 'table ' end || quote_ident(c.relname)
       || case when c.relpersistence = 'u' then ' UNLOGGED' else '' end
       || case when c.relrowsecurity then ' SECURED' else '' end
       || case when c.relforcerowsecurity then ' FORCED' else '' end
       || coalesce(' with ' || (select string_agg(o, ' ' order by o collate "C") from unnest(c.reloptions) as o), '')
  from relation as c
 where c.relkind in ('r', 'p', 'f', 'm', 'v')
union all
select 'column ' || quote_ident(c.relname) || '.' || quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod)
       || case when l.collname <> 'default' then ' collate ' || quote_ident(l.collname) else '' end
       || case when a.attnotnull then ' not null' else '' end
       || case a.attidentity when 'a' then ' identity always' when 'd' then ' identity' else '' end
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
  from relation as c
  join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_collation as l on l.oid = a.attcollation
  left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where c.relkind in ('r', 'p', 'f', 'm', 'v')
union all
select 'constraint ' || quote_ident(c.relname) || '.' || quote_ident(k.conname) || ' ' || pg_get_constraintdef(k.oid)
  from relation as c
  join pg_constraint as k on k.conrelid = c.oid and k.contype in ('p', 'u', 'c', 'f', 'x')
union all
select 'index ' || quote_ident(c.relname) || ' ' || replace(pg_get_indexdef(c.oid), n.quoted || '.', '')
       || case when i.indisvalid then '' else ' INVALID' end
  from namespace as n
  join relation as c on c.relnamespace = n.oid
  join pg_index as i on i.indexrelid = c.oid and not i.indisprimary
union all
select 'trigger ' || quote_ident(c.relname) || '.' || quote_ident(t.tgname) || ' ' || replace(pg_get_triggerdef(t.oid), n.quoted || '.', '')
       || case when t.tgenabled = 'O' then '' else ' DISABLED' end
  from namespace as n
  join relation as c on c.relnamespace = n.oid
  join pg_trigger as t on t.tgrelid = c.oid and not t.tgisinternal
union all
select 'rule ' || quote_ident(c.relname) || '.' || quote_ident(r.rulename)
  from relation as c
  join pg_rewrite as r on r.ev_class = c.oid and r.rulename <> '_RETURN'
union all
select 'function ' || quote_ident(p.proname) || '(' || pg_get_function_arguments(p.oid) || ') returns '
       || coalesce(pg_get_function_result(p.oid), 'nothing')
       || ' | ' || l.lanname || case p.provolatile when 'i' then ' immutable' when 's' then ' stable' else '' end
       || case when p.prosecdef then ' security definer' else '' end
       || case when has_function_privilege('public', p.oid, 'execute') then ' PUBLIC' else '' end
       || coalesce((select string_agg(' set ' || case when s.setting = 'search_path=' || n.quoted || ', pg_temp'
                                                      then 'search_path' else s.setting end, '' order by s.position)
                      from unnest(p.proconfig) with ordinality as s (setting, position)), '')
       || ' | ' || md5(p.prosrc)
  from namespace as n
  join pg_proc as p on p.pronamespace = n.oid
  join pg_language as l on l.oid = p.prolang
 order by 1
