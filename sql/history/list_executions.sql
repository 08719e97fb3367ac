-- All executions of an instance, in order; NULL when there are none.
create or replace function list_executions(p_instance_id text) returns bigint[]
language plpgsql stable
as $$
begin
    return (select array_agg(e.execution_id order by e.execution_id)
              from executions as e
             where e.instance_id = p_instance_id);
end
$$
security definer
set search_path from current;
