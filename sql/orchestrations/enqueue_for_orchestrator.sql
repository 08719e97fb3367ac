-- Puts messages into the queues of their instances. Durable before it returns.
-- p_visible_at_ms: when a message is due by the caller's wish (a timer); p_delays_ms: how long it stays
-- hidden by the database clock; both NULL: visible at once.
-- Locks: marks the instances in flight, then their idle mailboxes by instance id. Raises DX007.
create or replace function enqueue_for_orchestrator(
    p_instance_ids  text[],
    p_kinds         "char"[],
    p_work_items    text[],
    p_visible_at_ms bigint[],
    p_delays_ms     bigint[]
) returns void
language plpgsql
as $$
declare
    v_marked     boolean;
    v_now        timestamptz;
    v_visible_at timestamptz[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    v_marked := mark_in_flight(p_instance_ids);
    v_now := clock_timestamp();
    if cardinality(p_instance_ids) = 1 then
        -- The usual case, without a query.
        v_visible_at := array[coalesce(timestamp_from_ms(p_visible_at_ms[1]),
                                       v_now + p_delays_ms[1] * interval '1 ms', v_now)];
    else
        v_visible_at := array(
            select coalesce(timestamp_from_ms(t.visible_at_ms), v_now + t.delay_ms * interval '1 ms', v_now)
              from unnest(p_visible_at_ms, p_delays_ms) as t (visible_at_ms, delay_ms));
    end if;

    insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
    select t.instance_id, t.visible_at, t.kind, t.work_item
      from unnest(p_instance_ids, v_visible_at, p_kinds, p_work_items) as t (instance_id, visible_at, kind, work_item);

    perform wake_mailboxes(p_instance_ids, v_visible_at, v_marked);
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off;
