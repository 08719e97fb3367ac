-- Ends a lease without a turn: its messages are delivered again, hidden for p_delay_ms first if given.
-- The delivery counts as an attempt unless p_ignore_attempt. With p_pause_ms the instance is not due before that,
-- unless another message comes; its messages stay visible, and in order. Also ends a lease that has expired, as long
-- as nobody took it over. Returns the milliseconds until the instance is due again, NULL if it is not.
-- Locks: the mailbox. Raises DX001 (lease lost), DX007.
create or replace function abandon_orchestration_item(
    p_instance_id    text,
    p_lease          uuid,
    p_delay_ms       bigint,
    p_ignore_attempt boolean,
    p_pause_ms       bigint
) returns bigint
language plpgsql
as $$
declare
    v_box        mailboxes;
    -- One time for all, so that they stay together and in order.
    v_visible_at constant timestamptz := clock_timestamp() + p_delay_ms * interval '1 ms';
    v_next       timestamptz;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    select m.* into v_box from mailboxes as m where m.instance_id = p_instance_id for update;
    if v_box.lease is distinct from p_lease then
        raise exception 'Invalid lock token: the lease on instance "%" is held by somebody else or has ended', p_instance_id
            using errcode = 'DX001';
    end if;

    if v_box.start_item is not null then
        -- From now on it waits in the queue, as if nobody had waited for it.
        insert into orchestrator_queue (instance_id, visible_at, id, kind, attempt_count, work_item) overriding system value
        values (p_instance_id, v_box.claimed_until, v_box.claimed_ids[1], 's', cardinality(v_box.claimed_ids) - 1, v_box.start_item);
    end if;
    if p_delay_ms is not null or not p_ignore_attempt then
        update orchestrator_queue as q
           set attempt_count = q.attempt_count + case when p_ignore_attempt then 0 else 1 end,
               visible_at = coalesce(v_visible_at, q.visible_at)
         where q.instance_id = p_instance_id
           and q.visible_at <= v_box.claimed_until
           and q.id = any (v_box.claimed_ids);
    end if;

    v_next := greatest(next_available_at(p_instance_id), clock_timestamp() + p_pause_ms * interval '1 ms');
    update mailboxes as m
       set available_at = v_next,
           lease = null,
           claimed_ids = null,
           claimed_until = null,
           start_item = null
     where m.instance_id = p_instance_id;
    return ms_between(clock_timestamp(), v_next);
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set jit = off;
