-- Removes a finished activity and delivers its completion, if any, in one step.
-- Locks, in the one order of sql/README.md: in-flight mark, the mailbox if it is idle, the worker row, the session.
-- Raises DX001 (cancelled, expired or taken over), DX007.
create or replace function ack_work_item(
    p_instance_id            text,
    p_execution_id           bigint,
    p_activity_id            bigint,
    p_id                     bigint,
    p_lease                  uuid,
    p_completion_instance_id text,
    p_completion             text
) returns void
language plpgsql
as $$
declare
    v_row worker_queue;
    v_now timestamptz;
begin
    perform require_read_committed();
    if p_completion is not null then
        perform pg_advisory_xact_lock_shared(schema_key(), mailbox_key(p_completion_instance_id));
        v_now := clock_timestamp();
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        values (p_completion_instance_id, v_now, 'm', p_completion);
        perform wake_mailboxes(array[p_completion_instance_id], array[v_now], true);
    end if;

    select w.* into v_row
      from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.id = p_id
       for update;
    -- The clock is read after the lock: waiting for it may have outlasted the lease.
    v_now := clock_timestamp();
    if v_row.lease is distinct from p_lease or v_row.available_at <= v_now then
        raise exception 'Invalid lock token: activity % of instance "%" was cancelled, or its lock has expired or is held by somebody else',
                p_activity_id, p_instance_id
            using errcode = 'DX001';
    end if;

    delete from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.id = p_id;
    if v_row.session_id <> '' then
        perform touch_session(v_row.session_id, v_now);
    end if;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set jit = off;
