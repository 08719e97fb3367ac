-- Removes finished activities and delivers their completions, if any, each in one step; all of one call in one
-- transaction. The first row tells for each whether it was done: false when it was cancelled or taken over, or, among many, has expired;
-- and how many of the instances that are due now somebody should look for, those claimed here included.
-- One alone: ack_work_item.
-- p_turn_limit: how many turns somebody waits for. So many of the instances that it completes activities of are claimed as well, if that can
-- be had at once and they have no other activities; the other rows are theirs, as of fetch_orchestration_item. The other p_turn_…,
-- p_min_version, p_max_version and p_node: for claim_idle_turn, where they are of one instance that is idle, and claim_turns.
-- p_rest_ms: how long an instance rests that has other activities, unless the last of them ends before. resting, in the first row, is how
-- many do: those need nobody to look for them now.
-- Locks, in the one order of sql/README.md: in-flight marks, idle mailboxes, worker rows, sessions; last, tries the mailboxes of the turns.
-- Raises DX007, and DX001 when one of few has expired and nobody took it over: then nothing was done, and they have to go one by one.
create or replace function ack_work_items(
    p_instance_ids            text[],
    p_execution_ids           bigint[],
    p_activity_ids            bigint[],
    p_ids                     bigint[],
    p_leases                  uuid[],
    p_completion_instance_ids text[],
    p_completions             text[],
    p_turn_instance_ids       text[]  default '{}',
    p_turn_leases             uuid[]  default '{}',
    p_turn_limit              integer default 0,
    p_turn_lock_timeout_ms    bigint  default 0,
    p_min_version             bigint  default 0,
    p_max_version             bigint  default 0,
    p_node                    uuid    default null,
    p_rest_ms                 bigint  default 0
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
    -- Up to here several small statements for each cost less than starting large ones.
    c_few      constant integer := 6;
    -- What one turn takes at most: beyond that, claim_turn decides.
    c_max_message_bytes constant integer := 16777216;
    v_now      timestamptz;
    v_due_at   timestamptz;
    v_sent_at  timestamptz;
    v_target   text;
    v_targets  text[] := '{}'::text[];
    v_times    timestamptz[] := '{}'::timestamptz[];
    v_due      text[] := '{}'::text[];
    v_resting  text[] := '{}'::text[];
    v_few      boolean := cardinality(p_ids) <= c_few;
    v_own      boolean;
    v_until    timestamptz;
    v_marked   boolean;
    v_is_idle  boolean := false;
    v_box      record;
    v_id       bigint;
    v_ids      bigint[] := '{}'::bigint[];
    v_messages text[] := '{}'::text[];
    v_done     bigint[];
    v_rows     tid[];
    v_ends_at  timestamptz[];
    v_earliest timestamptz;
    v_sessions text[];
    v_session  text;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    v_now := clock_timestamp();
    -- Those of one instance come one after the other.
    for v_position in 1 .. cardinality(p_ids) loop
        if v_few and v_position > 1 then
            v_few := (p_instance_ids[v_position - 1] collate "C", p_execution_ids[v_position - 1],
                      p_activity_ids[v_position - 1], p_ids[v_position - 1])
                     < (p_instance_ids[v_position], p_execution_ids[v_position],
                        p_activity_ids[v_position], p_ids[v_position]);
        end if;
        if p_completion_instance_ids[v_position] is distinct from v_target then
            v_target := p_completion_instance_ids[v_position];
            if v_target is not null then
                v_targets := v_targets || v_target;
                v_due_at := v_now;
                -- By itself: a condition with a query in it costs one, whatever comes before.
                if p_rest_ms > 0 then
                    if exists (select from worker_queue as w
                                where w.instance_id = v_target
                                  and w.id <> all (p_ids)) then
                        v_resting := v_resting || v_target;
                        v_due_at := v_now + p_rest_ms * interval '1 ms';
                    end if;
                end if;
                v_times := v_times || v_due_at;
            end if;
        end if;
    end loop;
    if v_targets <> '{}' then
        -- Before it is known which of them count, for the sake of the lock order. Waking an instance for
        -- nothing costs one look at it.
        v_marked := mark_in_flight(v_targets);
        if p_turn_limit > 0 and v_few and cardinality(v_targets) = 1 and v_resting = '{}' then
            -- The usual end of a step. An instance that is idle, and stays so while its mailbox is locked, gets these messages and no others.
            select m.history_epoch, m.cached_execution_id, m.cached_event_id
              into v_box
              from mailboxes as m
             where m.instance_id = v_targets[1]
               and m.lease is null
               and m.available_at = 'infinity'
               and m.cached_by = p_node
               and (m.pinned_version = -1 or m.pinned_version between p_min_version and p_max_version)
               and octet_length(array_to_string(p_completions, '')) < c_max_message_bytes
               for update;
            v_is_idle := found;
        end if;
        if not v_is_idle then
            v_due := wake_mailboxes(v_targets, v_times, v_marked, p_node);
        end if;
        if v_resting <> '{}' then
            v_due := array(select d.instance_id from unnest(v_due) as d (instance_id) where d.instance_id <> all (v_resting));
        end if;
    end if;

    -- Leases are checked when all locks are held: waiting for them may have outlasted some.
    if v_few then
        -- In the order of their keys.
        done := '{}'::boolean[];
        v_sent_at := clock_timestamp();
        for v_position in 1 .. cardinality(p_ids) loop
            delete from worker_queue as w
             where w.instance_id = p_instance_ids[v_position]
               and w.execution_id = p_execution_ids[v_position]
               and w.activity_id = p_activity_ids[v_position]
               and w.lease = p_leases[v_position]
            returning w.available_at, w.session_id into v_until, v_session;
            v_own := found;
            done := done || v_own;
            continue when not v_own;
            v_earliest := least(v_earliest, v_until);
            if p_completion_instance_ids[v_position] is not null then
                insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
                values (p_completion_instance_ids[v_position], v_sent_at, 'm', p_completions[v_position])
                returning id into v_id;
                v_ids := v_ids || v_id;
                v_messages := v_messages || p_completions[v_position];
            end if;
            if v_session <> '' then
                v_sessions := v_sessions || v_session;
            end if;
        end loop;
        v_now := clock_timestamp();
        if v_earliest <= v_now then
            raise exception 'Invalid lock token: the lock of one of % activities has expired', cardinality(p_ids)
                using errcode = 'DX001';
        end if;
    else
        select array_agg(t.position), array_agg(w.row_at), array_agg(w.available_at), array_agg(w.session_id)
          into v_done, v_rows, v_ends_at, v_sessions
          from (select u.*
                  from unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_ids, p_leases)
                       with ordinality as u (instance_id, execution_id, activity_id, id, lease, position)
                 order by u.instance_id collate "C", u.execution_id, u.activity_id, u.id) as t
         cross join lateral (
               select w.ctid as row_at, w.available_at, w.session_id
                 from worker_queue as w
                where w.instance_id = t.instance_id
                  and w.execution_id = t.execution_id
                  and w.activity_id = t.activity_id
                  and w.lease = t.lease
                  for update) as w;
        v_now := clock_timestamp();
        if v_now >= any (v_ends_at) then
            select array_agg(t.position), array_agg(t.row_at), array_agg(t.session_id)
              into v_done, v_rows, v_sessions
              from unnest(v_done, v_rows, v_ends_at, v_sessions) as t (position, row_at, ends_at, session_id)
             where t.ends_at > v_now;
        end if;

        with finished as (
            delete from worker_queue as w where w.ctid = any (v_rows)
        )
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select t.instance_id, v_now, 'm', t.work_item
          from unnest(p_completion_instance_ids, p_completions) with ordinality as t (instance_id, work_item, position)
         where t.position = any (v_done)
           and t.instance_id is not null;

        done := case when cardinality(v_done) = cardinality(p_ids)
                     then array_fill(true, array[cardinality(p_ids)])
                     else array(select t.position = any (coalesce(v_done, '{}'))
                                  from generate_series(1, cardinality(p_ids)) as t (position)) end;
    end if;
    v_sessions := array_remove(v_sessions, '');
    if v_sessions <> '{}' then
        for v_session in select distinct s.id collate "C" from unnest(v_sessions) as s (id) order by 1 loop
            perform touch_session(v_session, v_now);
        end loop;
    end if;

    if v_is_idle and v_ids <> '{}' then
        v_due := v_targets;
    end if;
    to_look_for := cardinality(v_due);
    resting := cardinality(v_resting);
    return next;
    done := null;
    to_look_for := null;
    resting := null;
    if p_turn_limit > 0 and p_rest_ms = 0 and v_due <> '{}' then
        -- Instances with other activities under way are left to a look, which brings what ends at about the same time together.
        v_due := array(select d.instance_id
                         from unnest(v_due) as d (instance_id)
                        where not exists (select from worker_queue as w where w.instance_id = d.instance_id
                                          -- Looked up, never read as a whole.
                                          offset 0));
        if v_is_idle and v_due = '{}' then
            update mailboxes as m set available_at = v_sent_at where m.instance_id = v_targets[1];
        end if;
    end if;
    if v_is_idle and v_due <> '{}' then
        for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
            history_epoch, cached_event_id, history, kv_keys, kv_values, kv_updated_at_ms in
            select t.*
              from claim_idle_turn(v_targets[1], p_turn_leases[1], p_turn_lock_timeout_ms, v_ids, v_messages, v_sent_at,
                                   v_box.history_epoch, v_box.cached_execution_id, v_box.cached_event_id) as t
        loop
            return next;
        end loop;
    elsif p_turn_limit > 0 and v_due <> '{}' then
        for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
            history_epoch, cached_event_id, history, kv_keys, kv_values, kv_updated_at_ms in
            select t.*
              from claim_turns(p_turn_instance_ids, v_due, p_turn_leases, p_turn_limit, p_turn_lock_timeout_ms,
                               p_min_version, p_max_version, p_node) as t
        loop
            return next;
        end loop;
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
set jit = off;
