-- Deletes up to p_limit finished root instances with all their descendants, those that ended first going first.
-- A root whose parent is gone counts as one; a root with a running descendant stays. p_instance_ids, p_completed_before_ms: NULL means any.
-- Locks: see lock_instances, then worker rows. Raises DX006 (a child appeared meanwhile), DX007.
create or replace function delete_instance_bulk(
    p_instance_ids        text[],
    p_completed_before_ms bigint,
    p_limit               bigint
) returns table (
    instances_deleted      bigint,
    executions_deleted     bigint,
    events_deleted         bigint,
    queue_messages_deleted bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_roots text[];
    v_tree  text[];
begin
    perform require_read_committed();
    v_roots := array(
        select r.instance_id
          from unnest(array['Completed', 'Failed']) as s (status)
         cross join lateral (
               select i.instance_id, e.completed_at
                 from executions as e
                 join instances as i
                   on i.instance_id = e.instance_id
                  and i.current_execution_id = e.execution_id
                where e.status = s.status
                  and (p_completed_before_ms is null or e.completed_at < timestamp_from_ms(p_completed_before_ms))
                  and (p_instance_ids is null or e.instance_id = any (p_instance_ids))
                  and (i.parent_instance_id is null
                       or not exists (select from instances as p where p.instance_id = i.parent_instance_id))
                  and not has_live_member(get_instance_tree(array[i.instance_id]))
                order by e.completed_at
                limit p_limit) as r
         order by r.completed_at, r.instance_id
         limit p_limit);
    -- Under the locks each root is checked again: one may have been started anew since.
    v_tree := get_instance_tree(v_roots);
    perform lock_instances(v_tree);
    if has_live_member(v_tree) or get_instance_tree(v_roots) <> v_tree then
        raise exception 'An instance to be deleted came to life meanwhile: nothing was deleted, retry'
            using errcode = 'DX006';
    end if;
    return query select * from erase_instances(v_tree);
end
$$
security definer
set search_path from current
set plan_cache_mode = force_custom_plan
set jit = off;
