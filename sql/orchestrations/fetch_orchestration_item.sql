-- Claims up to p_limit instances that are due, fit the version range and are nobody else's, and returns
-- all that their turns need. Unpinned instances (version -1) fit every range.
-- p_node: the process that asks. Of a history it has in memory (mailboxes.cached_by) only later events are returned.
--   lease not NULL              a claimed turn; load_error says that its messages, history or values could not be read
--   lease NULL, instance_id set messages were dropped: they were for an instance that was never started
--   both NULL, last row         only when less was claimed than asked for: next_ms until it is worth asking again, NULL if unknown
-- p_with_care: one by one, so that something unreadable becomes the load_error of its own instance. Without it that is an
-- error of the call, which should then be repeated with care: a handler for it here would cost every call a
-- subtransaction, and every mailbox a multixact.
-- Locks: mailboxes, SKIP LOCKED; then only tries. Never waits. Raises DX007.
create or replace function fetch_orchestration_item(
    p_lock_timeout_ms bigint,
    p_min_version     bigint,
    p_max_version     bigint,
    p_limit           integer,
    p_node            uuid,
    p_with_care       boolean
) returns table (
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
    load_error            text,
    dropped               integer,
    next_ms               bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- What one turn takes at most, and what one row of an answer can hold: beyond that, claim_turn decides.
    c_max_messages      constant integer := 1000;
    c_max_message_bytes constant bigint  := 16777216::bigint;
    c_max_history_bytes constant bigint  := 943718400::bigint;
    -- Mailboxes looked at and found to need no turn, before this call gives up its turn to others.
    c_max_idle_visits   constant integer := 100;
    -- Up to here several small statements for each cost less than starting the large one.
    c_few               constant integer := 3;
    v_now               timestamptz;
    v_wanted            integer;
    -- NULL before the first look.
    v_quick             boolean;
    v_boxes             text[];
    v_left              text[];
    v_leased            boolean[];
    v_epochs            bigint[];
    v_cached_executions bigint[];
    v_cached_events     bigint[];
    v_rows              tid[];
    v_box               text;
    v_version           bigint;
    v_due               timestamptz;
    v_head              bigint;
    v_head_due          timestamptz;
    v_claimed           integer := 0;
    v_idle_visits       integer := 0;
    v_next              timestamptz;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    -- A lease is not data: a server crash that loses it only means redelivery.
    if set_config('synchronous_commit', 'off', true) is null then null; end if;

    loop
        v_wanted := p_limit - v_claimed;
        exit when v_wanted <= 0 or v_idle_visits >= c_max_idle_visits;
        v_now := clock_timestamp();
        -- The first lockable mailboxes, of the version that waits longest first. Nothing but the locked rows is read
        -- here: what else there is of an instance, only a snapshot taken under the locks shows.
        v_quick := v_quick is null and v_wanted = 1 and not p_with_care;
        if v_quick then
            -- The usual case, in small statements: the version that waits longest, then its first mailbox, which is
            -- locked when it is claimed.
            v_head_due := 'infinity';
            v_version := -2;
            loop
                select m.pinned_version, m.available_at
                  into v_version, v_due
                  from mailboxes as m
                 where m.pinned_version > v_version
                   and m.pinned_version <= p_max_version
                   and m.available_at < 'infinity'
                 order by m.pinned_version, m.available_at
                 limit 1;
                exit when not found;
                if v_due < v_head_due and (v_version = -1 or v_version >= p_min_version) then
                    v_head := v_version;
                    v_head_due := v_due;
                end if;
                v_version := greatest(v_version, p_min_version - 1);
            end loop;
            exit when v_head_due > v_now;
            select array[m.instance_id]
              into v_boxes
              from mailboxes as m
             where m.pinned_version = v_head
               and m.available_at <= v_now
               and m.available_at < 'infinity'
             order by m.available_at
             limit 1;
        else
            select array_agg(b.instance_id), array_agg(b.lease is not null), array_agg(b.history_epoch),
                   array_agg(case when b.cached_by = p_node then b.cached_execution_id end), array_agg(b.cached_event_id),
                   array_agg(b.row_at)
              into v_boxes, v_leased, v_epochs, v_cached_executions, v_cached_events, v_rows
              from (select b.*
                      from (select h.version
                              from mailbox_heads(p_min_version, p_max_version) as h
                             where h.available_at <= v_now
                             order by h.available_at) as v
                     cross join lateral (
                           select m.instance_id, m.lease, m.history_epoch,
                                  m.cached_by, m.cached_execution_id, m.cached_event_id, m.ctid as row_at
                             from mailboxes as m
                            where m.pinned_version = v.version
                              and m.available_at <= v_now
                              and m.available_at < 'infinity'
                            order by m.available_at
                            limit v_wanted
                              for update skip locked) as b
                     limit v_wanted) as b;
        end if;
        -- Only a look at all of them tells that there is none.
        continue when v_boxes is null and v_quick;
        exit when v_boxes is null;

        -- The clock is read again under the locks: what became visible meanwhile belongs to these turns.
        v_now := clock_timestamp();
        v_left := v_boxes;
        if p_with_care then
            null;
        elsif cardinality(v_boxes) <= c_few then
            -- The ordinary case.
            for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
                history_epoch, cached_event_id, history, kv_keys, kv_values, kv_updated_at_ms in
                select t.*
                  from claim_turns(v_boxes, null, null, v_wanted, p_lock_timeout_ms,
                                   p_min_version, p_max_version, p_node) as t
            loop
                v_left := array_remove(v_left, instance_id);
                v_claimed := v_claimed + 1;
                return next;
            end loop;
            -- Somebody has it, or it is not ordinary.
            continue when v_quick;
        else
            -- The same for all of them in one statement.
            for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
                history_epoch, cached_event_id, history, kv_keys, kv_values, kv_updated_at_ms in
                with claimed as (
                    update mailboxes as m
                       set lease = gen_random_uuid(),
                           available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
                           claimed_ids = d.message_ids,
                           claimed_until = d.visible_until,
                           cached_by = p_node,
                           cached_execution_id = d.execution_id,
                           cached_event_id = d.last_event_id
                      from (select b.row_at, q.attempts, x.execution_id, i.orchestration_name, i.orchestration_version,
                                   q.message_ids, q.messages, q.visible_until, b.history_epoch, x.cached_event_id,
                                   h.history, coalesce(h.last_event_id, x.cached_event_id) as last_event_id,
                                   k.keys, k.values, k.updated_at_ms
                              from unnest(v_boxes, v_leased, v_epochs, v_cached_executions, v_cached_events, v_rows)
                                   as b (instance_id, leased, history_epoch, cached_execution_id, cached_event_id, row_at)
                              left join lateral (
                                   select n.instance_id, n.orchestration_name, n.orchestration_version, n.current_execution_id
                                     from instances as n
                                    where n.instance_id = b.instance_id
                                   offset 0) as i on true
                              -- Acked without metadata: its history tells which execution is the latest.
                              left join lateral (
                                   select e.execution_id
                                     from history as e
                                    where i.instance_id is null
                                      and e.instance_id = b.instance_id
                                    order by e.execution_id desc
                                    limit 1) as e on true
                             cross join lateral (
                                   select array_agg(o.id) as message_ids, array_agg(o.work_item) as messages,
                                          max(o.visible_at) as visible_until, max(o.attempt_count) as attempts,
                                          bool_or(o.kind = 's') as has_start, count(*) as number,
                                          sum(octet_length(o.work_item)) as bytes
                                     from (select c.id, c.visible_at, c.attempt_count, c.kind, c.work_item
                                             from (select q.id, q.visible_at, q.attempt_count, q.kind, q.work_item
                                                     from orchestrator_queue as q
                                                    where q.instance_id = b.instance_id
                                                      and q.visible_at <= v_now
                                                    order by q.visible_at, q.id
                                                    limit c_max_messages) as c
                                            order by c.id) as o) as q
                             cross join lateral (
                                   select coalesce(i.current_execution_id, e.execution_id, 1) as execution_id,
                                          case when b.cached_execution_id = coalesce(i.current_execution_id, e.execution_id, 1)
                                               then b.cached_event_id else 0 end as cached_event_id) as x
                             cross join lateral (
                                   select array_agg(n.event_data) as history, max(n.event_id) as last_event_id,
                                          coalesce(sum(octet_length(n.event_data)), 0) as bytes
                                     from (select v.event_id, v.event_data
                                             from history as v
                                            where v.instance_id = b.instance_id
                                              and v.execution_id = x.execution_id
                                              and v.event_id > x.cached_event_id
                                            order by v.event_id) as n) as h
                             cross join lateral (
                                   select array_agg(s.key) as keys, array_agg(s.value) as values,
                                          array_agg(s.last_updated_at_ms) as updated_at_ms
                                     from kv_store as s
                                    where s.instance_id = b.instance_id) as k
                             where not b.leased
                               and (q.has_start or i.instance_id is not null or e.execution_id is not null)
                               and q.number between 1 and c_max_messages - 1
                               and q.bytes < c_max_message_bytes
                               and h.bytes <= c_max_history_bytes) as d
                     where m.ctid = d.row_at
                    returning m.instance_id, m.lease, d.attempts + 1, d.execution_id, d.orchestration_name,
                              d.orchestration_version, d.messages, d.history_epoch, d.cached_event_id, d.history,
                              d.keys, d.values, d.updated_at_ms
                )
                select c.* from claimed as c
            loop
                v_left := array_remove(v_left, instance_id);
                v_claimed := v_claimed + 1;
                return next;
            end loop;
        end if;

        foreach v_box in array v_left loop
            v_idle_visits := v_idle_visits + 1;
            for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
                history_epoch, history, kv_keys, kv_values, kv_updated_at_ms, load_error, dropped in
                select t.* from claim_turn(v_box, p_lock_timeout_ms, p_node) as t
            loop
                if lease is not null then
                    v_claimed := v_claimed + 1;
                end if;
                cached_event_id := 0;
                return next;
            end loop;
            load_error := null;
            dropped := null;
        end loop;
        -- There were no more.
        exit when cardinality(v_boxes) < v_wanted;
    end loop;

    if v_claimed < p_limit then
        v_now := clock_timestamp();
        -- What is due but locked is being worked on; it is worth another look soon, not now.
        select min(case when h.available_at <= v_now then v_now + interval '25 ms' else h.available_at end)
          into v_next
          from mailbox_heads(p_min_version, p_max_version) as h;
        instance_id := null;
        lease := null;
        messages := null;
        history := null;
        kv_keys := null;
        kv_values := null;
        next_ms := ms_between(v_now, v_next);
        return next;
    end if;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set work_mem = '64MB';
