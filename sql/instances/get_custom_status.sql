-- The custom status if it changed after p_last_seen_version; no row otherwise.
create or replace function get_custom_status(p_instance_id text, p_last_seen_version bigint)
returns table (custom_status text, custom_status_version bigint)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select i.custom_status, i.custom_status_version
      from instances as i
     where i.instance_id = p_instance_id
       and i.custom_status_version > p_last_seen_version;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off;
