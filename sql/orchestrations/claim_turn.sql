-- Claims one instance, whose mailbox the caller has locked, with care: the way for those that are not ordinary.
-- Takes over an expired lease; finds the message that starts an execution behind a thousand others; leaves what a
-- turn cannot take for the next one. No row when there is no turn to run: then the mailbox is put where it belongs,
-- and messages for an instance that was never started are dropped (one row, without a lease) if they are of a kind
-- that does not wait for it.
-- A failure to load keeps the lease and counts the attempt, so one broken instance does not stop the line.
-- Locks: none; then tries the proof of next_available_at.
create or replace function claim_turn(
    p_instance_id     text,
    p_lock_timeout_ms bigint,
    p_node            uuid
) returns table (
    instance_id           text,
    lease                 uuid,
    attempt_count         integer,
    execution_id          bigint,
    orchestration_name    text,
    orchestration_version text,
    messages              text[],
    history_epoch         bigint,
    history               text[],
    kv_keys               text[],
    kv_values             text[],
    kv_updated_at_ms      bigint[],
    load_error            text,
    dropped               integer
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- A turn takes at most so many messages; the rest make the mailbox due again at its end.
    c_max_messages      constant integer := 1000;
    c_max_message_bytes constant bigint  := 16777216::bigint;
    -- A result row must stay below the protocol's 1 GB.
    c_max_history_bytes constant bigint  := 943718400::bigint;
    v_now               constant timestamptz := clock_timestamp();
    v_box               mailboxes;
    v_holds_start       boolean;
    v_ids               bigint[];
    v_until             timestamptz;
    v_bytes             bigint;
    v_start             record;
    v_attempts          integer := 0;
    v_has_start         boolean;
    v_only_queue        boolean;
    v_started           boolean := false;
    v_history_bytes     bigint;
    v_last_event_id     bigint;
    v_next              timestamptz;
begin
    select m.* into v_box from mailboxes as m where m.instance_id = p_instance_id;
    instance_id := p_instance_id;
    v_holds_start := v_box.start_item is not null;
    history_epoch := v_box.history_epoch;
    dropped := 0;

    if v_box.lease is not null then
        -- Takes over an expired lease: that delivery failed.
        begin
            if v_holds_start then
                -- From now on it waits in the queue, as if nobody had waited for it.
                insert into orchestrator_queue (instance_id, visible_at, id, kind, attempt_count, work_item) overriding system value
                values (p_instance_id, v_box.claimed_until, v_box.claimed_ids[1], 's', cardinality(v_box.claimed_ids) - 1, v_box.start_item);
            end if;
            update orchestrator_queue as q
               set attempt_count = q.attempt_count + 1
             where q.instance_id = p_instance_id
               and q.visible_at <= v_box.claimed_until
               and q.id = any (v_box.claimed_ids);
            v_holds_start := false;
        exception
            when transaction_rollback or object_not_in_prerequisite_state or operator_intervention
                 or connection_exception or disk_full then
                -- Trouble that passes is not the instance's fault.
                raise;
            when others then
                load_error := format('%s (SQLSTATE %s)', sqlerrm, sqlstate);
        end;
    end if;

    begin
        select array_agg(c.id order by c.id), max(c.visible_at), max(c.attempt_count),
               bool_or(c.kind = 's'), bool_and(c.kind = 'q'), max(c.bytes)
          into v_ids, v_until, v_attempts, v_has_start, v_only_queue, v_bytes
          from (select q.id, q.visible_at, q.attempt_count, q.kind,
                       sum(octet_length(q.work_item)) over (order by q.visible_at, q.id) as bytes,
                       sum(octet_length(q.work_item)) over (order by q.visible_at, q.id)
                           - octet_length(q.work_item) as bytes_before
                  from orchestrator_queue as q
                 where q.instance_id = p_instance_id
                   and q.visible_at <= v_now
                 order by q.visible_at, q.id
                 limit c_max_messages) as c
         where c.bytes_before < c_max_message_bytes;

        if not v_has_start and (cardinality(v_ids) >= c_max_messages or v_bytes >= c_max_message_bytes) then
            -- Without the message that starts an execution the others are of no use: it goes first.
            select q.id, q.visible_at, q.attempt_count
              into v_start
              from orchestrator_queue as q
             where q.instance_id = p_instance_id
               and q.visible_at <= v_now
               and q.kind = 's'
             order by q.visible_at, q.id
             limit 1;
            if found then
                v_ids := v_ids || v_start.id;
                v_until := greatest(v_until, v_start.visible_at);
                v_attempts := greatest(v_attempts, v_start.attempt_count);
                v_has_start := true;
            end if;
        end if;

        if v_ids is not null then
            select i.orchestration_name, i.orchestration_version, i.current_execution_id
              into orchestration_name, orchestration_version, execution_id
              from instances as i
             where i.instance_id = p_instance_id;
            v_started := found;
            if not v_started then
                -- Acked without metadata: its history tells which execution is the latest.
                select h.execution_id
                  into execution_id
                  from history as h
                 where h.instance_id = p_instance_id
                 order by h.execution_id desc
                 limit 1;
                v_started := found;
            end if;

            if v_started or v_has_start then
                select array_agg(w.work_item)
                  into messages
                  from (select q.work_item
                          from orchestrator_queue as q
                         where q.instance_id = p_instance_id
                           and q.visible_at <= v_until
                           and q.id = any (v_ids)
                         order by q.id) as w;
                select array_agg(k.key), array_agg(k.value), array_agg(k.last_updated_at_ms)
                  into kv_keys, kv_values, kv_updated_at_ms
                  from kv_store as k
                 where k.instance_id = p_instance_id;
                select array_agg(e.event_data), max(e.event_id), sum(octet_length(e.event_data))
                  into history, v_last_event_id, v_history_bytes
                  from (select h.event_id, h.event_data
                          from history as h
                         where h.instance_id = p_instance_id
                           and h.execution_id = claim_turn.execution_id
                         order by h.event_id) as e;
                if v_history_bytes > c_max_history_bytes then
                    raise exception 'the history has % bytes, more than can be sent', v_history_bytes
                        using errcode = 'program_limit_exceeded';
                end if;
            end if;
        end if;
    exception
        when transaction_rollback or object_not_in_prerequisite_state or operator_intervention
             or connection_exception or disk_full then
            raise;
        when others then
            load_error := format('%s (SQLSTATE %s)', sqlerrm, sqlstate);
            messages := null;
            history := null;
            kv_keys := null;
            kv_values := null;
            kv_updated_at_ms := null;
    end;

    if load_error is not null or (v_ids is not null and (v_started or v_has_start)) then
        lease := gen_random_uuid();
        attempt_count := case when v_holds_start then cardinality(v_box.claimed_ids) else coalesce(v_attempts, 0) end + 1;
        update mailboxes as m
           set lease = claim_turn.lease,
               available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
               -- A start that cannot move to the queue has its deliveries counted here.
               claimed_ids = case when v_holds_start then m.claimed_ids || m.claimed_ids[1] else coalesce(v_ids, '{}') end,
               claimed_until = case when v_holds_start then m.claimed_until else coalesce(v_until, '-infinity') end,
               start_item = case when v_holds_start then m.start_item end,
               cached_by = case when load_error is null then p_node end,
               cached_execution_id = coalesce(claim_turn.execution_id, 1),
               cached_event_id = coalesce(v_last_event_id, 0)
         where m.instance_id = p_instance_id;
        return next;
        return;
    end if;

    -- No turn to run: nothing visible, or messages for an instance that was never started.
    if v_ids is not null and v_only_queue then
        delete from orchestrator_queue as q
         where q.instance_id = p_instance_id
           and q.visible_at <= v_until
           and q.id = any (v_ids);
        dropped := cardinality(v_ids);
        return next;
        v_ids := null;
    end if;
    -- Messages that wait for a start keep waiting, but not at the head of the line.
    v_next := next_available_at(p_instance_id, case when v_ids is null then '-infinity' else v_now end);
    -- Under the proof: the start may have been committed since the messages were read.
    if v_ids is not null
       and exists (select from orchestrator_queue as q
                    where q.instance_id = p_instance_id
                      and q.visible_at <= v_now
                      and q.kind = 's') then
        v_next := v_now;
    end if;
    if v_ids is null and v_next = 'infinity'
       and not exists (select from instances as i where i.instance_id = p_instance_id)
       and not exists (select from history as h where h.instance_id = p_instance_id) then
        -- Nothing is known of it: its messages were dropped, or whoever announced one had lost its lease.
        delete from mailboxes as m where m.instance_id = p_instance_id;
    else
        -- Without proof it stays due, but a moment later, so that nobody spins on an enqueuer; about as long as that takes to commit.
        update mailboxes as m
           set lease = null,
               claimed_ids = null,
               claimed_until = null,
               start_item = null,
               available_at = case when v_ids is null and v_next < v_now then v_next
                                   else greatest(v_next, v_now + interval '2 ms') end
         where m.instance_id = p_instance_id;
    end if;
end
$$
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off;
