-- Counts over the whole schema, answered from indexes. A completed or failed execution is the last of its
-- instance, so executions by status count instances.
create or replace function get_system_metrics()
returns table (
    total_instances     bigint,
    total_executions    bigint,
    running_instances   bigint,
    completed_instances bigint,
    failed_instances    bigint,
    total_events        bigint
)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select (select count(*) from instances),
           (select count(*) from executions),
           (select count(*) from executions as e where e.status = 'Running'),
           (select count(*) from executions as e where e.status = 'Completed'),
           (select count(*) from executions as e where e.status = 'Failed'),
           (select count(*) from history);
end
$$
security definer
set search_path from current
set enable_seqscan = off
set jit = off;
