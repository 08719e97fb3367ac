-- Deletes a root instance and all its descendants, all or none. Without p_force none of them may be running.
-- An instance whose parent is gone counts as a root.
-- Locks: see lock_instances, then worker rows.
-- Raises DX003 (not found), DX004 (running), DX005 (not a root), DX006 (a child appeared meanwhile), DX007.
create or replace function delete_instance(p_instance_id text, p_force boolean)
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
    v_parent text;
begin
    v_parent := get_parent_id(p_instance_id);
    if exists (select from instances as i where i.instance_id = v_parent) then
        raise exception 'Instance "%" is a sub-orchestration of "%": delete its root instead', p_instance_id, v_parent
            using errcode = 'DX005';
    end if;
    return query select * from delete_instances_atomic(get_instance_tree(array[p_instance_id]), p_force);
end
$$
security definer
set search_path from current;
