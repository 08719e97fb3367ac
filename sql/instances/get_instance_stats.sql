-- Sizes of an instance's current execution and values; no row when it does not exist.
create or replace function get_instance_stats(p_instance_id text)
returns table (
    history_event_count  bigint,
    history_size_bytes   bigint,
    first_event          text,
    kv_user_key_count    bigint,
    kv_total_value_bytes bigint
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select h.events, h.bytes,
           (select f.event_data
              from history as f
             where f.instance_id = i.instance_id
               and f.execution_id = i.current_execution_id
               and f.event_id = 1),
           k.keys, k.bytes
      from instances as i
     cross join lateral (
           select count(*) as events, coalesce(sum(octet_length(h.event_data)), 0)::bigint as bytes
             from history as h
            where h.instance_id = i.instance_id
              and h.execution_id = i.current_execution_id) as h
     cross join lateral (
           select count(*) as keys, coalesce(sum(octet_length(v.value)), 0)::bigint as bytes
             from get_kv_all_values(i.instance_id) as v) as k
     where i.instance_id = p_instance_id;
end
$$
security definer
set search_path from current;
