-- Extends a lease that has not ended yet; one that has expired stays expired. Keeps its session busy.
-- Locks: the worker row, then the session. Raises DX001 (cancelled, expired or taken over), DX007.
create or replace function renew_work_item_lock(
    p_instance_id  text,
    p_execution_id bigint,
    p_activity_id  bigint,
    p_lease        uuid,
    p_extend_ms    bigint
) returns void
language plpgsql
as $$
declare
    v_row record;
    v_now timestamptz;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    select w.ctid as row_at, w.available_at, w.session_id
      into v_row
      from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.lease = p_lease
       for update;
    v_now := clock_timestamp();
    if v_row is null or v_row.available_at <= v_now then
        raise exception 'Invalid lock token: activity % of instance "%" was cancelled, or its lock has expired or is held by somebody else',
                p_activity_id, p_instance_id
            using errcode = 'DX001';
    end if;

    update worker_queue as w
       set available_at = v_now + p_extend_ms * interval '1 ms'
     where w.ctid = v_row.row_at;
    if v_row.session_id <> '' then
        perform touch_session(v_row.session_id, v_now);
    end if;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
