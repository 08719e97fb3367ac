-- Puts an activity into the worker queue, visible at once, and returns its id. Durable before it returns. Locks: none.
-- Many at once: enqueue_for_workers.
-- p_lease_ms: not NULL if it is handed over: it is put there already leased, for so long, by p_lease.
create or replace function enqueue_for_worker(
    p_instance_id  text,
    p_execution_id bigint,
    p_activity_id  bigint,
    p_tag          text,
    p_session      text,
    p_work_item    text,
    p_lease        uuid   default null,
    p_lease_ms     bigint default null
) returns bigint
language plpgsql
as $$
declare
    v_id bigint;
begin
    insert into worker_queue as w (instance_id, execution_id, activity_id, available_at,
                                   lease, attempt_count, tag, session_id, work_item)
    values (p_instance_id, p_execution_id, p_activity_id, clock_timestamp() + coalesce(p_lease_ms, 0) * interval '1 ms',
            case when p_lease_ms is not null then p_lease end,
            case when p_lease_ms is not null then 1 else 0 end,
            p_tag, p_session, p_work_item)
    returning w.id into v_id;
    return v_id;
end
$$
security definer
set search_path from current;
