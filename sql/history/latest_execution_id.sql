-- The latest execution of an instance; 1 when it has none.
create or replace function latest_execution_id(p_instance_id text) returns bigint
language plpgsql stable
as $$
begin
    return coalesce((select e.execution_id
                       from executions as e
                      where e.instance_id = p_instance_id
                      order by e.execution_id desc
                      limit 1), 1);
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off;
