-- Deletes old executions of the given instances: never the current one, never a running one.
-- p_instance_ids NULL: all instances; p_instances_completed_before_ms and p_limit narrow them.
-- p_keep_last: how many of the latest executions stay; p_completed_before_ms: only executions that ended before.
-- Locks: the executions it deletes, by key; turns never touch them. Raises DX007.
create or replace function prune_executions(
    p_instance_ids                  text[],
    p_instances_completed_before_ms bigint,
    p_limit                         bigint,
    p_keep_last                     bigint,
    p_completed_before_ms           bigint
) returns table (instances_processed bigint, executions_deleted bigint, events_deleted bigint)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_instance_ids  text[];
    v_executions    text[];
    v_execution_ids bigint[];
begin
    perform require_read_committed();

    v_instance_ids := array(
        select i.instance_id
          from instances as i
          left join executions as e
            on e.instance_id = i.instance_id
           and e.execution_id = i.current_execution_id
         where (p_instance_ids is null or i.instance_id = any (p_instance_ids))
           and (p_instances_completed_before_ms is null
                or e.completed_at < timestamp_from_ms(p_instances_completed_before_ms))
         order by i.instance_id
         limit p_limit);

    select array_agg(d.instance_id), array_agg(d.execution_id)
      into v_executions, v_execution_ids
      from (select e.instance_id, e.execution_id
              from unnest(v_instance_ids) as t (instance_id)
              join instances as i on i.instance_id = t.instance_id
             cross join lateral (
                   select (select n.execution_id
                             from executions as n
                            where n.instance_id = i.instance_id
                            order by n.execution_id desc
                           offset greatest(p_keep_last, 1) - 1
                            limit 1) as kept_from
                   -- Computed once an instance, not once an execution.
                   offset 0) as k
              join executions as e on e.instance_id = i.instance_id
             where e.execution_id <> i.current_execution_id
               and e.status <> 'Running'
               and (p_completed_before_ms is null or e.completed_at < timestamp_from_ms(p_completed_before_ms))
               and (p_keep_last is null or e.execution_id < k.kept_from)
             order by e.instance_id, e.execution_id
               for update of e) as d;

    perform set_config('duroxide_postgres.erasing', 'on', true);
    delete from history as h
     using unnest(v_executions, v_execution_ids) as t (instance_id, execution_id)
     where h.instance_id = t.instance_id
       and h.execution_id = t.execution_id;
    get diagnostics events_deleted = row_count;
    perform set_config('duroxide_postgres.erasing', 'off', true);
    delete from executions as e
     using unnest(v_executions, v_execution_ids) as t (instance_id, execution_id)
     where e.instance_id = t.instance_id
       and e.execution_id = t.execution_id;
    get diagnostics executions_deleted = row_count;
    instances_processed := cardinality(v_instance_ids)::bigint;
    return next;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_custom_plan
-- By key, whatever the statistics say.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off;
