-- Puts activities into the worker queue, visible at once. Durable before it returns. Locks: none. One alone: enqueue_for_worker.
-- p_lease_ms: not NULL for one that is handed over: it is put there already leased, for so long, by its id in p_leases. Returns the rows of
-- those.
create or replace function enqueue_for_workers(
    p_instance_ids  text[],
    p_execution_ids bigint[],
    p_activity_ids  bigint[],
    p_tags          text[],
    p_sessions      text[],
    p_work_items    text[],
    p_leases        uuid[]   default '{}',
    p_lease_ms      bigint[] default '{}'
) returns table (
    handed_leases uuid[],
    handed_ids    bigint[]
)
language plpgsql
as $$
begin
    if array_remove(p_lease_ms, null) = '{}' then
        insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item)
        select t.instance_id, t.execution_id, t.activity_id, clock_timestamp(), t.tag, t.session_id, t.work_item
          from unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_tags, p_sessions, p_work_items)
               as t (instance_id, execution_id, activity_id, tag, session_id, work_item);
    else
        with added as (
            insert into worker_queue as w (instance_id, execution_id, activity_id, available_at,
                                           lease, attempt_count, tag, session_id, work_item)
            select t.instance_id, t.execution_id, t.activity_id,
                   clock_timestamp() + coalesce(t.lease_ms, 0) * interval '1 ms',
                   case when t.lease_ms is not null then t.lease end,
                   case when t.lease_ms is not null then 1 else 0 end,
                   t.tag, t.session_id, t.work_item
              from unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_leases,
                          p_lease_ms, p_tags, p_sessions, p_work_items)
                   as t (instance_id, execution_id, activity_id, lease, lease_ms, tag, session_id, work_item)
            returning w.lease, w.id
        )
        select array_agg(a.lease), array_agg(a.id)
          into handed_leases, handed_ids
          from added as a
         where a.lease is not null;
    end if;
    return next;
end
$$
security definer
set search_path from current
set jit = off;
