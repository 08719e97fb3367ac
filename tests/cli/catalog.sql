-- Everything that a deployment can differ in, a line an object: definitions as the server prints them, owners,
-- privileges in order, options, comments.
with namespace as (
    select n.* from pg_namespace as n where n.nspname = $1
), relation as (
    select c.* from pg_class as c join namespace as n on n.oid = c.relnamespace
)
select 'schema ' || n.nspname || ' owner ' || n.nspowner::regrole || ' acl '
       || coalesce((select string_agg(a::text, ' ' order by a::text) from unnest(n.nspacl) as a), 'default') as line
  from namespace as n
union all
select 'relation ' || c.relname || ' ' || c.relkind::text || ' ' || c.relpersistence::text || ' owner ' || c.relowner::regrole
       || ' options ' || coalesce(c.reloptions::text, '') || ' security ' || c.relrowsecurity
       || ' acl ' || coalesce((select string_agg(a::text, ' ' order by a::text) from unnest(c.relacl) as a), 'default')
       || ' comment ' || coalesce(obj_description(c.oid, 'pg_class'), '')
  from relation as c
union all
select 'column ' || c.relname || ' ' || a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || ' not null ' || a.attnotnull || ' identity ' || a.attidentity::text || ' generated ' || a.attgenerated::text
       || ' storage ' || a.attstorage::text || ' compression ' || a.attcompression::text
       || ' collation ' || a.attcollation::regcollation
       || ' default ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
       || ' acl ' || coalesce(a.attacl::text, '') || ' comment ' || coalesce(col_description(c.oid, a.attnum), '')
  from relation as c
  join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
  left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
union all
select 'constraint ' || c.relname || ' ' || k.conname || ' ' || pg_get_constraintdef(k.oid) || ' valid ' || k.convalidated
  from relation as c
  join pg_constraint as k on k.conrelid = c.oid
union all
select 'index ' || c.relname || ' ' || pg_get_indexdef(c.oid) || ' valid ' || i.indisvalid || ' ready ' || i.indisready
  from relation as c
  join pg_index as i on i.indexrelid = c.oid
union all
select 'sequence ' || c.relname || ' ' || s.seqtypid::regtype || ' ' || s.seqstart || ' ' || s.seqincrement || ' '
       || s.seqmax || ' ' || s.seqmin || ' ' || s.seqcache || ' ' || s.seqcycle
  from relation as c
  join pg_sequence as s on s.seqrelid = c.oid
union all
select 'trigger ' || c.relname || ' ' || pg_get_triggerdef(t.oid) || ' enabled ' || t.tgenabled::text
  from relation as c
  join pg_trigger as t on t.tgrelid = c.oid
 where not t.tgisinternal
union all
select 'view ' || c.relname || ' ' || pg_get_viewdef(c.oid)
  from relation as c
 where c.relkind = 'v'
union all
select 'function ' || pg_get_functiondef(p.oid) || ' owner ' || p.proowner::regrole
       || ' acl ' || coalesce((select string_agg(a::text, ' ' order by a::text) from unnest(p.proacl) as a), 'default')
       || ' comment ' || coalesce(obj_description(p.oid, 'pg_proc'), '')
  from namespace as n
  join pg_proc as p on p.pronamespace = n.oid
union all
select 'type ' || t.typname || ' ' || t.typtype::text || ' owner ' || t.typowner::regrole || ' acl ' || coalesce(t.typacl::text, '')
  from namespace as n
  join pg_type as t on t.typnamespace = n.oid
 order by line
