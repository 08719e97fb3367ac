-- All events of the latest execution, in order; NULL when there are none.
create or replace function read(p_instance_id text) returns text[]
language plpgsql stable
as $$
begin
    return read_with_execution(p_instance_id, latest_execution_id(p_instance_id));
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off;
