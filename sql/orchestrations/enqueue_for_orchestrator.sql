-- Puts a message into the queue of its instance. Durable before it returns. Many at once: enqueue_for_orchestrators.
-- p_visible_at_ms: when it is due by the caller's wish (a timer); p_delay_ms: how long it stays hidden by the database clock; both NULL:
-- visible at once.
-- p_turn_lease: not NULL if somebody waits for a turn. Then the instance is claimed as well, if that can be had at once; the row is its turn, as
-- of fetch_orchestration_item. An instance that begins here, or is idle, needs no look for that; p_turn_lock_timeout_ms, p_min_version,
-- p_max_version and p_node: for claim_idle_turn and claim_turns.
-- With the row: whether somebody should look for the instance, also if it is claimed here.
-- Locks: marks the instance in flight, then its mailbox if it is idle or new; last, tries that of the turn. Raises DX007; with a turn 23505, when
-- somebody else has just made the mailbox: nothing was done.
create or replace function enqueue_for_orchestrator(
    p_instance_id          text,
    p_kind                 "char",
    p_work_item            text,
    p_visible_at_ms        bigint,
    p_delay_ms             bigint,
    p_turn_lease           uuid   default null,
    p_turn_lock_timeout_ms bigint default 0,
    p_min_version          bigint default 0,
    p_max_version          bigint default 0,
    p_node                 uuid   default null
) returns table (
    to_look_for           integer,
    instance_id           text,
    lease                 uuid,
    attempt_count         integer,
    execution_id          bigint,
    orchestration_name    text,
    orchestration_version text,
    messages              text[],
    history_epoch         bigint,
    cached_event_id       bigint,
    history               text[],
    kv_keys               text[],
    kv_values             text[],
    kv_updated_at_ms      bigint[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- What one turn takes at most: beyond that, claim_turn decides.
    c_max_message_bytes constant integer := 16777216;
    v_now      timestamptz;
    v_due_at   timestamptz;
    v_hands    boolean;
    v_is_idle  boolean := false;
    v_id       bigint;
    v_due      text[];
    v_box      record;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    -- As mark_in_flight.
    if pg_advisory_xact_lock_shared(schema_key(), mailbox_key(p_instance_id)) is null then null; end if;
    v_now := clock_timestamp();
    v_due_at := coalesce(timestamp_from_ms(p_visible_at_ms), v_now + p_delay_ms * interval '1 ms', v_now);
    v_hands := p_turn_lease is not null and v_due_at = v_now and octet_length(p_work_item) < c_max_message_bytes;

    if v_hands and p_kind <> 's' then
        -- An instance that is idle, and stays so while its mailbox is locked: this message is all there is to a turn.
        select m.history_epoch, m.cached_execution_id, m.cached_event_id
          into v_box
          from mailboxes as m
         where m.instance_id = p_instance_id
           and m.lease is null
           and m.available_at = 'infinity'
           and m.cached_by = p_node
           and (m.pinned_version = -1 or m.pinned_version between p_min_version and p_max_version)
           for update;
        v_is_idle := found;
    end if;

    to_look_for := 1;
    if v_hands and p_kind = 's' then
        -- The start of a new instance: its mailbox is born leased, with the start in it. Should it have come into being since: 23505.
        insert into mailboxes as m (instance_id, available_at, lease, claimed_ids, claimed_until, start_item,
                                    cached_by, cached_execution_id, cached_event_id)
        select p_instance_id, clock_timestamp() + p_turn_lock_timeout_ms * interval '1 ms', p_turn_lease,
               '{0}', v_now, p_work_item, p_node, 1, 0
         where not exists (select from mailboxes as b where b.instance_id = p_instance_id)
           and not exists (select from history as h where h.instance_id = p_instance_id)
        returning m.instance_id, m.lease, m.history_epoch into instance_id, lease, history_epoch;
        if found then
            attempt_count := 1;
            execution_id := 1;
            messages := array[p_work_item];
            cached_event_id := 0;
            return next;
            return;
        end if;
    end if;

    insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
    values (p_instance_id, v_due_at, p_kind, p_work_item)
    returning id into v_id;

    if v_is_idle then
        return query
        select 1, t.*
          from claim_idle_turn(p_instance_id, p_turn_lease, p_turn_lock_timeout_ms, array[v_id], array[p_work_item], v_now,
                               v_box.history_epoch, v_box.cached_execution_id, v_box.cached_event_id) as t;
        if not found then
            return next;
        end if;
        return;
    end if;
    v_due := wake_mailboxes(array[p_instance_id], array[v_due_at], true, p_node);
    if v_due = '{}' then
        to_look_for := 0;
    elsif p_turn_lease is not null and v_due_at = v_now then
        return query
        select 1, t.*
          from claim_turns(v_due, v_due, array[p_turn_lease], 1, p_turn_lock_timeout_ms,
                           p_min_version, p_max_version, p_node) as t;
        if found then
            return;
        end if;
    end if;
    return next;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
