-- Deletes up to p_limit finished root instances with all their descendants, those that ended first going first.
-- A root whose parent is gone counts as one; a root with a running descendant stays. p_instance_ids, p_completed_before_ms: NULL means any.
-- Locks: see lock_instances, then worker rows.
-- Raises DX006 (a tree changed meanwhile, or somebody else deleted some of as many as were asked for: fewer than
-- p_limit roots mean that there are no more), DX007,
-- 53200 where the lock table has no room for all instances, descendants included.
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
    v_before timestamptz := timestamp_from_ms(p_completed_before_ms);
    v_roots  text[];
    v_tree   text[];
begin
    perform require_read_committed();
    if p_instance_ids is null then
        -- In the order of the index, so that it stops at the limit. What it steps over costs two look-ups, or if it
        -- is a root, a look at its tree.
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
                      and (v_before is null or e.completed_at < v_before)
                      -- CASE: the parent first. OFFSET: neither a join nor a hash of all instances. Columns of both tables:
                      -- not before they are joined.
                      and case
                              when exists (select from instances as p where p.instance_id = i.parent_instance_id offset 0)
                              then false
                              else not has_live_member(array[e.instance_id])
                          end
                    order by e.completed_at
                    limit p_limit) as r
             order by r.completed_at, r.instance_id
             limit p_limit);
    else
        -- By key: what it costs must not depend on what else has ended, or was deleted and not vacuumed yet.
        v_roots := array(
            select r.instance_id
              from (select distinct t.instance_id
                      from unnest(p_instance_ids) as t (instance_id)) as t
             cross join lateral (
                   select i.instance_id, e.status, e.completed_at
                     from instances as i
                     join executions as e
                       on e.instance_id = i.instance_id
                      and e.execution_id = i.current_execution_id
                    where i.instance_id = t.instance_id
                      and not exists (select from instances as p where p.instance_id = i.parent_instance_id)
                    -- A fence: the conditions below choose no index.
                   offset 0) as r
             where r.status in ('Completed', 'Failed')
               and (v_before is null or r.completed_at < v_before)
               and not has_live_member(array[r.instance_id])
             order by r.completed_at, r.instance_id
             limit p_limit);
    end if;
    v_tree := get_instance_tree(v_roots);
    perform lock_instances(v_tree);
    -- Under the locks each root is checked again: one may have been started anew since.
    if has_live_member(v_roots) or get_instance_tree(v_roots) <> v_tree then
        raise exception 'An instance to be deleted came to life meanwhile: nothing was deleted, retry'
            using errcode = 'DX006';
    end if;
    if cardinality(v_roots) = p_limit
       and exists (select
                     from unnest(v_roots) as r (instance_id)
                    where not exists (select from instances as i where i.instance_id = r.instance_id offset 0)) then
        raise exception 'An instance to be deleted was deleted by somebody else meanwhile: nothing was deleted here, retry'
            using errcode = 'DX006';
    end if;
    return query select * from erase_instances(v_tree);
end
$$
security definer
set search_path from current
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
-- It would read everything that has ended, and sort it, where the statistics are older than most of it.
set enable_bitmapscan = off
set jit = off;
