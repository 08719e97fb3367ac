-- The values (KV) of each instance, as its current execution sees them. U+0001 as in instance_payloads.
-- Calls no function of ours: those of a view are executed as whoever reads it.
create or replace view instance_values as
select d.instance_id, d.key, d.value, to_timestamp(d.last_updated_at_ms / 1000.0::double precision) as updated_at
  from kv_delta as d
 where d.value is not null
union all
select s.instance_id, s.key, s.value, to_timestamp(s.last_updated_at_ms / 1000.0::double precision)
  from kv_store as s
 where not exists (select from kv_delta as d where d.instance_id = s.instance_id and d.key = s.key);
