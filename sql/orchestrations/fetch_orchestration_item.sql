-- Claims up to p_limit instances that are due, fit the version range and are nobody else's, and returns
-- all that their turns need. Unpinned instances (version -1) fit every range.
--   lease not NULL              a claimed turn; load_error says that its messages, history or values could not be read
--   lease NULL, instance_id set messages were dropped: they were for an instance that was never started
--   both NULL, last row         only when nothing was claimed: next_ms until it is worth asking again, NULL if unknown
-- A failure to load keeps the lease and counts the attempt, so one broken instance does not stop the line.
-- Locks: one mailbox after the other, SKIP LOCKED; then only tries. Never waits. Raises DX007.
create or replace function fetch_orchestration_item(
    p_lock_timeout_ms bigint,
    p_min_version     bigint,
    p_max_version     bigint,
    p_limit           integer
) returns table (
    instance_id           text,
    lease                 uuid,
    attempt_count         integer,
    execution_id          bigint,
    orchestration_name    text,
    orchestration_version text,
    messages              text[],
    history               text[],
    kv_keys               text[],
    kv_values             text[],
    kv_updated_at_ms      bigint[],
    load_error            text,
    dropped               integer,
    next_ms               bigint
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
    -- Mailboxes looked at and found to need no turn, before this call gives up its turn to others.
    c_max_idle_visits   constant integer := 100;
    v_now               timestamptz;
    v_box               record;
    v_claimed           integer := 0;
    v_idle_visits       integer := 0;
    v_ids               bigint[];
    v_until             timestamptz;
    v_bytes             bigint;
    v_start             record;
    v_attempts          integer;
    v_has_start         boolean;
    v_only_queue        boolean;
    v_started           boolean;
    v_history_bytes     bigint;
    v_next              timestamptz;
begin
    perform require_read_committed();
    -- A lease is not data: a server crash that loses it only means redelivery.
    perform set_config('synchronous_commit', 'off', true);

    while v_claimed < p_limit and v_idle_visits < c_max_idle_visits loop
        v_now := clock_timestamp();
        -- The first lockable mailbox, the version that waits longest first.
        select b.instance_id, b.lease, b.claimed_ids, b.claimed_until
          into v_box
          from (select h.version
                  from mailbox_heads(p_min_version, p_max_version) as h
                 where h.available_at <= v_now
                 order by h.available_at) as v
         cross join lateral (
               select m.instance_id, m.lease, m.claimed_ids, m.claimed_until
                 from mailboxes as m
                where m.pinned_version = v.version
                  and m.available_at <= v_now
                  and m.available_at < 'infinity'
                order by m.available_at
                limit 1
                  for update skip locked) as b
         limit 1;
        exit when not found;

        instance_id := v_box.instance_id;
        lease := null;
        attempt_count := null;
        execution_id := null;
        orchestration_name := null;
        orchestration_version := null;
        messages := null;
        history := null;
        kv_keys := null;
        kv_values := null;
        kv_updated_at_ms := null;
        load_error := null;
        dropped := 0;
        next_ms := null;
        v_ids := null;
        v_until := null;
        v_attempts := 0;
        v_started := false;

        -- The clock is read again under the lock: what became visible meanwhile belongs to this turn.
        v_now := clock_timestamp();

        if v_box.lease is not null then
            -- Takes over an expired lease: that delivery failed.
            begin
                update orchestrator_queue as q
                   set attempt_count = q.attempt_count + 1
                 where q.instance_id = v_box.instance_id
                   and q.visible_at <= v_box.claimed_until
                   and q.id = any (v_box.claimed_ids);
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
                     where q.instance_id = v_box.instance_id
                       and q.visible_at <= v_now
                     order by q.visible_at, q.id
                     limit c_max_messages) as c
             where c.bytes_before < c_max_message_bytes;

            if not v_has_start and (cardinality(v_ids) >= c_max_messages or v_bytes >= c_max_message_bytes) then
                -- Without the message that starts an execution the others are of no use: it goes first.
                select q.id, q.visible_at, q.attempt_count
                  into v_start
                  from orchestrator_queue as q
                 where q.instance_id = v_box.instance_id
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
                 where i.instance_id = v_box.instance_id;
                v_started := found;
                if not v_started then
                    -- Acked without metadata: its history tells which execution is the latest.
                    select h.execution_id
                      into execution_id
                      from history as h
                     where h.instance_id = v_box.instance_id
                     order by h.execution_id desc
                     limit 1;
                    v_started := found;
                end if;

                if v_started or v_has_start then
                    select array_agg(w.work_item)
                      into messages
                      from (select q.work_item
                              from orchestrator_queue as q
                             where q.instance_id = v_box.instance_id
                               and q.visible_at <= v_until
                               and q.id = any (v_ids)
                             order by q.id) as w;
                    select array_agg(k.key), array_agg(k.value), array_agg(k.last_updated_at_ms)
                      into kv_keys, kv_values, kv_updated_at_ms
                      from kv_store as k
                     where k.instance_id = v_box.instance_id;
                    select array_agg(e.event_data), sum(octet_length(e.event_data))
                      into history, v_history_bytes
                      from (select h.event_data
                              from history as h
                             where h.instance_id = v_box.instance_id
                               and h.execution_id = fetch_orchestration_item.execution_id
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

        if load_error is null and not (v_ids is not null and (v_started or v_has_start)) then
            -- No turn to run: nothing visible, or messages for an instance that was never started.
            v_idle_visits := v_idle_visits + 1;
            if v_ids is not null and v_only_queue then
                delete from orchestrator_queue as q
                 where q.instance_id = v_box.instance_id
                   and q.visible_at <= v_until
                   and q.id = any (v_ids);
                dropped := cardinality(v_ids);
                return next;
                v_ids := null;
            end if;
            -- Messages that wait for a start keep waiting, but not at the head of the line.
            v_next := next_available_at(v_box.instance_id, case when v_ids is null then '-infinity' else v_now end);
            -- Under the proof: the start may have been committed since the messages were read.
            if v_ids is not null
               and exists (select from orchestrator_queue as q
                            where q.instance_id = v_box.instance_id
                              and q.visible_at <= v_now
                              and q.kind = 's') then
                v_next := v_now;
            end if;
            if v_next = 'infinity' and dropped > 0 then
                delete from mailboxes as m where m.instance_id = v_box.instance_id;
            else
                -- Without proof it stays due, but a moment later, so that nobody spins on an enqueuer.
                update mailboxes as m
                   set lease = null,
                       claimed_ids = null,
                       claimed_until = null,
                       available_at = case when v_ids is null and v_next < v_now then v_next
                                           else greatest(v_next, v_now + interval '5 ms') end
                 where m.instance_id = v_box.instance_id;
            end if;
            continue;
        end if;

        lease := gen_random_uuid();
        attempt_count := coalesce(v_attempts, 0) + 1;
        update mailboxes as m
           set lease = fetch_orchestration_item.lease,
               available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
               claimed_ids = coalesce(v_ids, '{}'),
               claimed_until = coalesce(v_until, '-infinity')
         where m.instance_id = v_box.instance_id;
        v_claimed := v_claimed + 1;
        return next;
    end loop;

    if v_claimed = 0 then
        v_now := clock_timestamp();
        -- What is due but locked is being worked on; it is worth another look soon, not now.
        select min(case when h.available_at <= v_now then v_now + interval '25 ms' else h.available_at end)
          into v_next
          from mailbox_heads(p_min_version, p_max_version) as h;
        instance_id := null;
        lease := null;
        dropped := 0;
        next_ms := ms_between(v_now, v_next);
        return next;
    end if;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set jit = off
set work_mem = '64MB';
