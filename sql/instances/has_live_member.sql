-- Whether one of these instances, or one below them, is running or between two executions.
-- Looks up each by its key, whatever the statistics say: beginning with all that run would cost as much as they are many.
create or replace function has_live_member(p_instance_ids text[]) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        with recursive tree (instance_id) as (
            select t.instance_id collate "C"
              from unnest(p_instance_ids) as t (instance_id)
            union
            select c.instance_id
              from tree as t
             cross join lateral (
                   select i.instance_id
                     from instances as i
                    where i.parent_instance_id = t.instance_id
                    -- A fence: as a join it would read all children there are where the statistics know one parent.
                   offset 0) as c
        )
        select
          from tree as t
         where (select e.status
                  from instances as i
                  join executions as e
                    on e.instance_id = i.instance_id
                   and e.execution_id = i.current_execution_id
                 where i.instance_id = t.instance_id) in ('Running', 'ContinuedAsNew'));
end
$$
set search_path from current
-- Called once a root: planning it anew each time would cost more than deleting.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off;
