-- Removes a finished activity and delivers its completion, if it has one, in one step. The first row says done: false when it was cancelled
-- or taken over; and how many instances are due now that somebody should look for, one that is claimed here included.
-- p_turn_lease: not NULL if somebody waits for a turn. Then the instance is claimed as well, if that can be had at once and it has no other
-- activities; the second row is its turn, as of fetch_orchestration_item. p_turn_lock_timeout_ms, p_min_version, p_max_version and p_node: for
-- claim_idle_turn, where it is idle, and claim_turns.
-- p_rest_ms: how long an instance rests that has other activities, unless the last of them ends before; resting, in the first row, is 1
-- then: nobody needs to look for it now.
-- Many at once: ack_work_items.
-- Locks, in the one order of sql/README.md: the in-flight mark, the idle mailbox, the worker row, its session; last, tries the mailbox for a turn.
-- Raises DX001 when the lease has expired and nobody took over, DX007.
create or replace function ack_work_item(
    p_instance_id            text,
    p_execution_id           bigint,
    p_activity_id            bigint,
    p_id                     bigint,
    p_lease                  uuid,
    p_completion_instance_id text,
    p_completion             text,
    p_turn_lease             uuid   default null,
    p_turn_lock_timeout_ms   bigint default 0,
    p_min_version            bigint default 0,
    p_max_version            bigint default 0,
    p_node                   uuid   default null,
    p_rest_ms                bigint default 0
) returns table (
    done                  boolean[],
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
    kv_updated_at_ms      bigint[],
    resting               integer
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- What one turn takes at most: beyond that, claim_turn decides.
    c_max_message_bytes constant integer := 16777216;
    v_now      timestamptz;
    v_rests    boolean := false;
    v_is_idle  boolean := false;
    v_due      text[];
    v_box      record;
    v_until    timestamptz;
    v_session  text;
    v_own      boolean;
    v_id       bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    if p_completion_instance_id is not null then
        -- As mark_in_flight. Before it is known whether the lease still holds, for the sake of the lock order: waking an instance for
        -- nothing costs one look at it.
        if pg_advisory_xact_lock_shared(schema_key(), mailbox_key(p_completion_instance_id)) is null then null; end if;
        -- By itself: a condition with a query in it costs one, whatever comes before.
        if p_rest_ms > 0 then
            v_rests := exists (select from worker_queue as w where w.instance_id = p_completion_instance_id and w.id <> p_id);
        end if;
        if p_turn_lease is not null and not v_rests then
            -- The usual end of a step. An instance that is idle, and stays so while its mailbox is locked, gets this message and no other.
            select m.history_epoch, m.cached_execution_id, m.cached_event_id
              into v_box
              from mailboxes as m
             where m.instance_id = p_completion_instance_id
               and m.lease is null
               and m.available_at = 'infinity'
               and m.cached_by = p_node
               and (m.pinned_version = -1 or m.pinned_version between p_min_version and p_max_version)
               and octet_length(p_completion) < c_max_message_bytes
               for update;
            v_is_idle := found;
        end if;
        if not v_is_idle then
            v_now := clock_timestamp();
            v_due := wake_mailboxes(array[p_completion_instance_id],
                                    array[case when v_rests then v_now + p_rest_ms * interval '1 ms' else v_now end],
                                    true, p_node);
            if v_rests then
                v_due := null;
            end if;
        end if;
    end if;

    delete from worker_queue as w
     where w.instance_id = p_instance_id
       and w.execution_id = p_execution_id
       and w.activity_id = p_activity_id
       and w.lease = p_lease
    returning w.available_at, w.session_id into v_until, v_session;
    v_own := found;
    -- Checked when its lock is held: waiting for it may have outlasted the lease.
    v_now := clock_timestamp();
    if v_until <= v_now then
        raise exception 'Invalid lock token: the lock of activity % of instance "%" has expired', p_activity_id, p_instance_id
            using errcode = 'DX001';
    end if;
    if v_own then
        if p_completion_instance_id is not null then
            insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
            values (p_completion_instance_id, v_now, 'm', p_completion)
            returning id into v_id;
            if v_is_idle then
                v_due := array[p_completion_instance_id];
            end if;
        end if;
        if v_session <> '' then
            perform touch_session(v_session, v_now);
        end if;
    end if;

    done := array[v_own];
    to_look_for := coalesce(cardinality(v_due), 0);
    resting := v_rests::integer;
    return next;
    done := null;
    to_look_for := null;
    resting := null;
    if p_turn_lease is null or v_due is null or v_due = '{}' then
        return;
    end if;
    if p_rest_ms = 0 then
        -- An instance with other activities under way is left to a look, which brings what ends at about the same time together.
        if exists (select from worker_queue as w where w.instance_id = p_completion_instance_id) then
            if v_is_idle then
                update mailboxes as m set available_at = v_now where m.instance_id = p_completion_instance_id;
            end if;
            return;
        end if;
    end if;
    if v_is_idle then
        return query
        select null::boolean[], null::integer, t.*, null::integer
          from claim_idle_turn(p_completion_instance_id, p_turn_lease, p_turn_lock_timeout_ms, array[v_id], array[p_completion], v_now,
                               v_box.history_epoch, v_box.cached_execution_id, v_box.cached_event_id) as t;
    else
        return query
        select null::boolean[], null::integer, t.*, null::integer
          from claim_turns(v_due, v_due, array[p_turn_lease], 1, p_turn_lock_timeout_ms,
                           p_min_version, p_max_version, p_node) as t;
    end if;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
