-- One instance with the state of its current execution; no row when it does not exist.
create or replace function get_instance_info(p_instance_id text)
returns table (
    orchestration_name    text,
    orchestration_version text,
    current_execution_id  bigint,
    parent_instance_id    text,
    status                text,
    output                text,
    created_at_ms         bigint,
    updated_at_ms         bigint
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select i.orchestration_name, i.orchestration_version, i.current_execution_id, i.parent_instance_id,
           e.status, e.output, ms_from_timestamp(i.created_at),
           ms_from_timestamp(greatest(i.updated_at, e.started_at, e.completed_at))
      from instances as i
      left join executions as e
        on e.instance_id = i.instance_id
       and e.execution_id = i.current_execution_id
     where i.instance_id = p_instance_id;
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
