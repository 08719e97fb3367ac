-- Instance ids, newest first; p_status NULL: all, otherwise those whose current execution has it.
create or replace function list_instances(p_status text) returns text[]
language plpgsql stable
as $$
begin
    if p_status is null then
        return array(select i.instance_id from instances as i order by i.created_at desc, i.instance_id);
    end if;
    return array(select i.instance_id
                   from executions as e
                   join instances as i
                     on i.instance_id = e.instance_id
                    and i.current_execution_id = e.execution_id
                  where e.status = p_status
                  order by i.created_at desc, i.instance_id);
end
$$
security definer
set search_path from current;
