-- Commits turns as ack_orchestration_item does, each turn all or nothing, and all turns of one call in one transaction.
-- One element a turn in the first arrays; an element of the others says in its p_…_turns to which turn it belongs,
-- counted from 1. Returns one row a turn, in their order; due_ms is that of the earliest of all, handed_leases and handed_ids come with
-- the first row; a custom status means nothing where p_tells_end was not asked for.
-- Locks, in the one order of sql/README.md: in-flight marks, mailboxes by instance id (own and targets),
-- worker rows by key; last, tries the proof of next_available_at.
-- Raises DX007, 23505 on history_pkey (an event id that exists).
create or replace function ack_orchestration_items(
    p_instance_ids           text[],
    p_leases                 uuid[],
    p_ack_ids                uuid[],
    p_execution_ids          bigint[],
    p_statuses               text[],
    p_outputs                text[],
    p_orchestration_names    text[],
    p_orchestration_versions text[],
    p_parent_instance_ids    text[],
    p_pinned_versions        bigint[],
    p_sets_custom_status     boolean[],
    p_custom_statuses        text[],
    p_clears_kv              boolean[],
    p_nodes                  uuid[],
    p_first_event_ids        bigint[],
    p_last_event_ids         bigint[],
    p_event_turns            integer[],
    p_event_ids              bigint[],
    p_event_data             text[],
    p_kv_turns               integer[],
    p_kv_keys                text[],
    p_kv_values              text[],
    p_kv_updated_at_ms       bigint[],
    p_activity_turns         integer[],
    p_activity_instance_ids  text[],
    p_activity_execution_ids bigint[],
    p_activity_ids           bigint[],
    p_activity_tags          text[],
    p_activity_sessions      text[],
    p_activity_items         text[],
    p_activity_leases        uuid[],
    p_activity_lease_ms      bigint[],
    p_cancel_turns           integer[],
    p_cancel_instance_ids    text[],
    p_cancel_execution_ids   bigint[],
    p_cancel_activity_ids    bigint[],
    p_message_turns          integer[],
    p_message_instance_ids   text[],
    p_message_kinds          "char"[],
    p_message_visible_at_ms  bigint[],
    p_message_items          text[],
    p_targets                text[],
    p_tells_end              boolean[] default '{}'
) returns table (
    done                  boolean,
    due_ms                bigint,
    handed_leases         uuid[],
    handed_ids            bigint[],
    history_epoch         bigint,
    custom_status         text,
    custom_status_version bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    c_max_status_bytes constant integer := 1024;
    v_now        timestamptz;
    v_visible_at timestamptz[];
    v_due_at     timestamptz;
    v_marked     boolean;
    v_previous   text := '';
    v_own        text;
    v_turns      integer[];
    v_boxes      tid[];
    v_ends_at    timestamptz[];
    v_turn       integer;
    v_ends       boolean;
    v_terminal   constant text[] := array['Completed', 'Failed', 'ContinuedAsNew'];
    v_proved     boolean[];
    v_position   integer;
    v_ended      integer[];
    v_epochs     bigint[];
    v_statuses   text[];
    v_versions   bigint[];
    v_rows       tid[];
    v_next       timestamptz;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;

    if cardinality(p_targets) > 0 then
        v_marked := mark_in_flight(p_targets);
        if not v_marked then
            -- The parents in any case: creating a child must not slip past a deletion of its parent.
            perform mark_in_flight(array_remove(p_parent_instance_ids, null));
        end if;
    end if;
    if cardinality(p_message_items) > 0 then
        v_now := clock_timestamp();
        select array_agg(coalesce(timestamp_from_ms(t.visible_at_ms), v_now) order by t.position),
               min(coalesce(timestamp_from_ms(t.visible_at_ms), v_now))
          into v_visible_at, v_due_at
          from unnest(p_message_visible_at_ms) with ordinality as t (visible_at_ms, position);
    end if;
    if cardinality(p_targets) > 0 then
        -- One pass over own mailboxes and targets, in the order of their ids; what comes after the last own one, below.
        for v_own in select t.instance_id from unnest(p_instance_ids) as t (instance_id) order by t.instance_id collate "C" loop
            perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
               from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
              where t.instance_id > v_previous collate "C"
                and t.instance_id <= v_own collate "C"
                and t.instance_id = any (p_targets);
            perform from mailboxes as m where m.instance_id = v_own for update;
            v_previous := v_own;
        end loop;
        perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
           from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
          where t.instance_id > v_previous collate "C"
            and t.instance_id = any (p_targets);
    end if;

    select array_agg(t.turn), array_agg(m.row_at), array_agg(m.available_at)
      into v_turns, v_boxes, v_ends_at
      from (select u.instance_id, u.turn::integer as turn
              from unnest(p_instance_ids) with ordinality as u (instance_id, turn)
             order by u.instance_id collate "C") as t
     cross join lateral (
           select m.ctid as row_at, m.available_at
             from mailboxes as m
            where m.instance_id = t.instance_id
              and m.lease = p_leases[t.turn]
              for update) as m;
    v_turns := coalesce(v_turns, '{}');
    -- Leases are checked when all locks are held: waiting for them may have outlasted some.
    v_now := clock_timestamp();
    if v_now >= any (v_ends_at) then
        select coalesce(array_agg(t.turn), '{}'), array_agg(t.row_at)
          into v_turns, v_boxes
          from unnest(v_turns, v_boxes, v_ends_at) as t (turn, row_at, ends_at)
         where t.ends_at > v_now;
    end if;

    delete from orchestrator_queue as q
     using (select c.row_at
              from unnest(v_boxes) as t (row_at)
             cross join lateral (
                   select m.instance_id, m.claimed_ids, m.claimed_until
                     from mailboxes as m
                    where m.ctid = t.row_at
                      and m.start_item is null
                   offset 0) as m
             cross join lateral (
                   select o.ctid as row_at
                     from orchestrator_queue as o
                    where o.instance_id = m.instance_id
                      and o.visible_at <= m.claimed_until
                      and o.id = any (m.claimed_ids)
                   offset 0) as c) as c
     where q.ctid = c.row_at;

    if array_remove(p_orchestration_names, null) <> '{}' then
        insert into instances as i (instance_id, orchestration_name, orchestration_version, current_execution_id,
                                    parent_instance_id, created_at, updated_at)
        select p_instance_ids[t.turn], p_orchestration_names[t.turn], p_orchestration_versions[t.turn],
               p_execution_ids[t.turn], p_parent_instance_ids[t.turn], v_now, v_now
          from unnest(v_turns) as t (turn)
         where p_orchestration_names[t.turn] is not null
           and p_orchestration_versions[t.turn] is not null
            on conflict (instance_id) do update
           set orchestration_name = excluded.orchestration_name,
               orchestration_version = excluded.orchestration_version,
               current_execution_id = greatest(i.current_execution_id, excluded.current_execution_id),
               updated_at = excluded.updated_at;
    end if;
    if 1 < any (p_execution_ids) then
        update instances as i
           set current_execution_id = p_execution_ids[t.turn],
               updated_at = v_now
          from unnest(v_turns) as t (turn)
         cross join lateral (
               select x.ctid as row_at from instances as x where x.instance_id = p_instance_ids[t.turn]
               offset 0) as x
         where i.ctid = x.row_at
           and i.current_execution_id < p_execution_ids[t.turn];
    end if;

    insert into executions (instance_id, execution_id, status, output, started_at, completed_at)
    select p_instance_ids[t.turn], p_execution_ids[t.turn], coalesce(p_statuses[t.turn], 'Running'), p_outputs[t.turn],
           v_now, case when p_statuses[t.turn] = any (v_terminal) then v_now end
      from unnest(v_turns) as t (turn)
        on conflict (instance_id, execution_id) do nothing;
    if array_remove(p_statuses, null) <> '{}' then
        update executions as e
           set status = p_statuses[t.turn],
               output = p_outputs[t.turn],
               completed_at = case when p_statuses[t.turn] = any (v_terminal) then v_now end
          from unnest(v_turns) as t (turn)
         cross join lateral (
               select x.ctid as row_at
                 from executions as x
                where x.instance_id = p_instance_ids[t.turn]
                  and x.execution_id = p_execution_ids[t.turn]
               offset 0) as x
         where p_statuses[t.turn] is not null
           and e.ctid = x.row_at;
    end if;

    insert into history (instance_id, execution_id, event_id, ack_id, event_data)
    select p_instance_ids[e.turn], p_execution_ids[e.turn], e.event_id,
           case when e.event_id = p_first_event_ids[e.turn] then p_ack_ids[e.turn] end, e.event_data
      from unnest(p_event_turns, p_event_ids, p_event_data) as e (turn, event_id, event_data)
     where e.turn = any (v_turns);

    if true = any (p_sets_custom_status) then
        update instances as i
           set custom_status = p_custom_statuses[t.turn],
               custom_status_version = i.custom_status_version + 1,
               updated_at = v_now
          from unnest(v_turns) as t (turn)
         cross join lateral (
               select x.ctid as row_at from instances as x where x.instance_id = p_instance_ids[t.turn]
               offset 0) as x
         where p_sets_custom_status[t.turn]
           and i.ctid = x.row_at;
    end if;

    if cardinality(p_kv_turns) > 0 or true = any (p_clears_kv) or p_statuses && v_terminal then
        for v_turn, v_ends in
            select t.turn, t.ends
              from (select t.turn, coalesce(p_statuses[t.turn] = any (v_terminal), false) as ends
                      from unnest(v_turns) as t (turn)) as t
             where p_clears_kv[t.turn]
                or t.turn = any (p_kv_turns)
                or (t.ends and exists (select from kv_delta as d
                                        where d.instance_id = p_instance_ids[t.turn]
                                       -- Looked up, never hashed as a whole.
                                       offset 0))
        loop
            perform apply_kv(p_instance_ids[v_turn], p_clears_kv[v_turn], array_agg(k.key), array_agg(k.value),
                             array_agg(k.updated_at_ms), v_ends)
               from unnest(p_kv_turns, p_kv_keys, p_kv_values, p_kv_updated_at_ms) as k (turn, key, value, updated_at_ms)
              where k.turn = v_turn;
        end loop;
    end if;

    if cardinality(p_activity_items) > 0 then
        with added as (
            insert into worker_queue as w (instance_id, execution_id, activity_id, available_at,
                                           lease, attempt_count, tag, session_id, work_item)
            select t.instance_id, t.execution_id, t.activity_id, v_now + coalesce(t.lease_ms, 0) * interval '1 ms',
                   case when t.lease_ms is not null then t.lease end,
                   case when t.lease_ms is not null then 1 else 0 end,
                   t.tag, t.session_id, t.work_item
              from unnest(p_activity_turns, p_activity_instance_ids, p_activity_execution_ids, p_activity_ids,
                          p_activity_leases, p_activity_lease_ms, p_activity_tags, p_activity_sessions, p_activity_items)
                   as t (turn, instance_id, execution_id, activity_id, lease, lease_ms, tag, session_id, work_item)
             where t.turn = any (v_turns)
            returning w.lease, w.id
        )
        select array_agg(a.lease), array_agg(a.id)
          into handed_leases, handed_ids
          from added as a
         where a.lease is not null;
    end if;

    if cardinality(p_cancel_activity_ids) > 0 then
        v_rows := lock_work_items(array_agg(t.instance_id), array_agg(t.execution_id), array_agg(t.activity_id))
             from unnest(p_cancel_turns, p_cancel_instance_ids, p_cancel_execution_ids, p_cancel_activity_ids)
                  as t (turn, instance_id, execution_id, activity_id)
            where t.turn = any (v_turns);
        delete from worker_queue as w where w.ctid = any (v_rows);
    end if;

    if cardinality(p_message_items) > 0 then
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select t.instance_id, t.visible_at, t.kind, t.work_item
          from unnest(p_message_turns, p_message_instance_ids, v_visible_at, p_message_kinds, p_message_items)
               as t (turn, instance_id, visible_at, kind, work_item)
         where t.turn = any (v_turns);
    end if;

    -- As next_available_at: first the proofs, then, in a statement of its own, the look.
    foreach v_turn in array v_turns loop
        v_proved[v_turn] := pg_try_advisory_xact_lock(schema_key(), mailbox_key(p_instance_ids[v_turn]));
    end loop;
    with ended as (
        update mailboxes as m
           set available_at = case when v_proved[t.turn]
                                   then coalesce((select q.visible_at
                                                    from orchestrator_queue as q
                                                   where q.instance_id = m.instance_id
                                                   order by q.visible_at
                                                   limit 1), 'infinity')
                                   else v_now end,
               lease = null,
               claimed_ids = null,
               claimed_until = null,
               start_item = null,
               -- An execution that begins without a version is anybody's.
               pinned_version = coalesce(p_pinned_versions[t.turn],
                                         case when p_first_event_ids[t.turn] = 1 then -1 else m.pinned_version end),
               cached_by = case when p_first_event_ids[t.turn] = 1
                                  or (m.cached_by = p_nodes[t.turn] and m.cached_execution_id = p_execution_ids[t.turn])
                                then p_nodes[t.turn] end,
               cached_execution_id = p_execution_ids[t.turn],
               cached_event_id = coalesce(p_last_event_ids[t.turn], m.cached_event_id)
          from unnest(v_turns, v_boxes) as t (turn, row_at)
         where m.ctid = t.row_at
        returning m.available_at, t.turn,
                  case when (p_tells_end[t.turn] or (m.cached_by is not null and handed_ids is not null))
                        and not exists (select from history as h
                                         where h.instance_id = m.instance_id
                                           and h.execution_id = m.cached_execution_id
                                           and h.event_id > m.cached_event_id)
                       then m.history_epoch end as history_epoch
    )
    select min(e.available_at), array_agg(e.turn), array_agg(e.history_epoch) into v_next, v_ended, v_epochs from ended as e;
    if true = any (p_tells_end) then
        select array_agg(case when octet_length(i.custom_status) <= c_max_status_bytes then i.custom_status end order by t.position),
               array_agg(case when octet_length(i.custom_status) > c_max_status_bytes then -1
                              else i.custom_status_version end order by t.position)
          into v_statuses, v_versions
          from unnest(v_ended) with ordinality as t (turn, position)
          left join lateral (
               select x.custom_status, x.custom_status_version
                 from instances as x
                where x.instance_id = p_instance_ids[t.turn]
               offset 0) as i on true;
    end if;
    due_ms := ms_between(v_now, least(v_next, v_due_at));

    for v_turn in 1 .. cardinality(p_instance_ids) loop
        v_position := array_position(v_ended, v_turn);
        done := true;
        if v_position is null then
            done := case when not exists (select from history as h
                                           where h.instance_id = p_instance_ids[v_turn]
                                             and h.execution_id = p_execution_ids[v_turn]
                                             and h.event_id = p_first_event_ids[v_turn]
                                             and h.ack_id = p_ack_ids[v_turn]) then false end;
        end if;
        history_epoch := v_epochs[v_position];
        custom_status := v_statuses[v_position];
        custom_status_version := v_versions[v_position];
        return next;
        handed_leases := null;
        handed_ids := null;
    end loop;
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
