-- Ends a lease without a result: the activity is delivered again, after p_delay_ms if given.
-- The delivery counts as an attempt unless p_ignore_attempt. p_place_ms: nobody has begun it, and it has its place in the queue again: that
-- of what has been due since then. Also ends a lease that has expired, as long as nobody took it over.
-- Locks: the worker row. Raises DX001 (cancelled or taken over), DX007.
create or replace function abandon_work_item(
    p_instance_id    text,
    p_execution_id   bigint,
    p_activity_id    bigint,
    p_lease          uuid,
    p_delay_ms       bigint,
    p_ignore_attempt boolean,
    p_place_ms       bigint default null
) returns void
language plpgsql
as $$
declare
    v_row_at tid;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    select w.ctid
      into v_row_at
      from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.lease = p_lease
       for update;
    if not found then
        raise exception 'Invalid lock token: activity % of instance "%" was cancelled or is held by somebody else',
                p_activity_id, p_instance_id
            using errcode = 'DX001';
    end if;

    update worker_queue as w
       set lease = null,
           available_at = case when p_place_ms is not null
                               then least(clock_timestamp(), timestamp_from_ms(p_place_ms))
                               else clock_timestamp() + coalesce(p_delay_ms, 0) * interval '1 ms' end,
           attempt_count = greatest(0, w.attempt_count - case when p_ignore_attempt then 1 else 0 end)
     where w.ctid = v_row_at;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
