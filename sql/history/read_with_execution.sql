-- All events of one execution, in order; NULL when there are none.
create or replace function read_with_execution(p_instance_id text, p_execution_id bigint) returns text[]
language plpgsql stable
as $$
declare
    v_events text[];
begin
    select array_agg(e.event_data)
      into v_events
      from (select h.event_data
              from history as h
             where h.instance_id = p_instance_id
               and h.execution_id = p_execution_id
             order by h.event_id) as e;
    return v_events;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
