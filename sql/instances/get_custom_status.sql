-- The custom status of each given instance if it changed after the version seen last; one row an instance, in the order
-- given, with NULL for the version where it did not.
create or replace function get_custom_status(p_instance_ids text[], p_last_seen_versions bigint[])
returns table (custom_status text, custom_status_version bigint)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select i.custom_status, i.custom_status_version
      from unnest(p_instance_ids, p_last_seen_versions) with ordinality as t (instance_id, last_seen_version, position)
      left join lateral (
           select n.custom_status, n.custom_status_version
             from instances as n
            where n.instance_id = t.instance_id
              and n.custom_status_version > t.last_seen_version
           offset 0) as i on true
     order by t.position;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off;
