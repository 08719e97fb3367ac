-- Deletes exactly these instances, all or none. Without p_force none of them may be running.
-- Locks: see lock_instances, then worker rows.
-- Raises DX004 (one is running), DX006 (one has a child that is not in the list), DX007.
create or replace function delete_instances_atomic(p_instance_ids text[], p_force boolean)
returns table (
    instances_deleted      bigint,
    executions_deleted     bigint,
    events_deleted         bigint,
    queue_messages_deleted bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_instance text;
    v_child    text;
begin
    perform require_read_committed();
    perform lock_instances(p_instance_ids);

    if not p_force then
        -- By key: beginning with all that run would cost as much as they are many.
        select t.instance_id
          into v_instance
          from unnest(p_instance_ids) as t (instance_id)
         where (select e.status
                  from instances as i
                  join executions as e
                    on e.instance_id = i.instance_id
                   and e.execution_id = i.current_execution_id
                 where i.instance_id = t.instance_id)
               -- Between two executions an instance is alive too.
               in ('Running', 'ContinuedAsNew')
         limit 1;
        if found then
            raise exception 'Instance "%" is still running: cancel it first, or use force to delete it anyway', v_instance
                using errcode = 'DX004';
        end if;
    end if;

    select i.parent_instance_id, i.instance_id
      into v_instance, v_child
      from instances as i
     where i.parent_instance_id = any (p_instance_ids)
       and i.instance_id <> all (p_instance_ids)
     limit 1;
    if found then
        raise exception 'Instance "%" has the child "%", which is not to be deleted: read the tree again and retry', v_instance, v_child
            using errcode = 'DX006';
    end if;

    return query select * from erase_instances(p_instance_ids);
end
$$
security definer
set search_path from current;
