-- One execution; no row when it does not exist.
create or replace function get_execution_info(p_instance_id text, p_execution_id bigint)
returns table (status text, output text, started_at_ms bigint, completed_at_ms bigint, event_count bigint)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select e.status, e.output, ms_from_timestamp(e.started_at), ms_from_timestamp(e.completed_at),
           (select count(*) from history as h
             where h.instance_id = e.instance_id and h.execution_id = e.execution_id)
      from executions as e
     where e.instance_id = p_instance_id
       and e.execution_id = p_execution_id;
end
$$
security definer
set search_path from current;
