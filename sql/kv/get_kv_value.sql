-- One value as the current execution sees it; NULL when the key does not exist.
create or replace function get_kv_value(p_instance_id text, p_key text) returns text
language plpgsql stable
as $$
declare
    v_value text;
begin
    select d.value into v_value from kv_delta as d where d.instance_id = p_instance_id and d.key = p_key;
    if not found then
        select s.value into v_value from kv_store as s where s.instance_id = p_instance_id and s.key = p_key;
    end if;
    return v_value;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off;
