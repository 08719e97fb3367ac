-- All values of an instance as the current execution sees them.
create or replace function get_kv_all_values(p_instance_id text)
returns table (key text, value text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select d.key, d.value
      from kv_delta as d
     where d.instance_id = p_instance_id
       and d.value is not null
    union all
    select s.key, s.value
      from kv_store as s
     where s.instance_id = p_instance_id
       and not exists (select from kv_delta as d where d.instance_id = p_instance_id and d.key = s.key);
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off;
