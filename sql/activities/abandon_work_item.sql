-- Ends a lease without a result: the activity is delivered again, after p_delay_ms if given.
-- The delivery counts as an attempt unless p_ignore_attempt. p_keeps_place: nobody has begun it, and it is delivered before others
-- that are due. p_id: 0 if the caller does not know it, because the answer of the call that leased it was lost. Also ends a lease that has
-- expired, as long as nobody took it over.
-- Locks: the worker row. Raises DX001 (cancelled or taken over), DX007.
create or replace function abandon_work_item(
    p_instance_id    text,
    p_execution_id   bigint,
    p_activity_id    bigint,
    p_id             bigint,
    p_lease          uuid,
    p_delay_ms       bigint,
    p_ignore_attempt boolean,
    p_keeps_place    boolean default false
) returns void
language plpgsql
as $$
declare
    v_id  bigint := p_id;
    v_row worker_queue;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    if p_id = 0 then
        select w.id into v_id
          from worker_queue as w
         where w.instance_id = p_instance_id
           and w.execution_id = p_execution_id
           and w.activity_id = p_activity_id
           and w.lease = p_lease;
    end if;

    select w.* into v_row
      from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.id = v_id
       for update;
    if v_row.lease is distinct from p_lease then
        raise exception 'Invalid lock token: activity % of instance "%" was cancelled or is held by somebody else',
                p_activity_id, p_instance_id
            using errcode = 'DX001';
    end if;

    update worker_queue as w
       set lease = null,
           available_at = case when p_keeps_place
                               then least(clock_timestamp(),
                                          (select o.available_at
                                             from worker_queue as o
                                            where o.tag = v_row.tag
                                              and o.session_id = v_row.session_id
                                            order by o.available_at
                                            limit 1))
                               else clock_timestamp() + coalesce(p_delay_ms, 0) * interval '1 ms' end,
           attempt_count = greatest(0, w.attempt_count - case when p_ignore_attempt then 1 else 0 end)
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.id = v_id;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off;
