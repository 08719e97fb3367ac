-- Commits a turn: history, metadata, values, outgoing work, consumed messages and the end of the lease, all or nothing.
-- p_node: the process, if it keeps the turn's history in memory.
-- p_activity_leases: an id for each activity. p_activity_lease_ms: not NULL for one that somebody waits for: it is put into the queue
-- already leased, for so long.
-- p_targets: the instances, other than the turn's own, that it sends messages to or names as its parent.
-- p_tells_end: somebody waits for the end that this turn is.
-- Returns done:
--   true   committed
--   NULL   the same call (p_ack_id) had already committed; activities that it leased are given back
--   false  the lease has expired or is somebody else's; nothing was done
-- due_ms until the earliest orchestration message that it left or sent is due, NULL when there is none; handed_leases and
-- handed_ids, the rows of the activities that are leased; and, if there are any and p_node has all of the history in memory, its history_epoch.
-- With p_tells_end also its history_epoch, if these events are the last of its history, and the custom status, as read says it.
-- Many turns at once: ack_orchestration_items. What differs is that here every statement is about one row where it can be.
-- Locks, in the one order of sql/README.md: in-flight marks, mailboxes by instance id (own and targets),
-- worker rows by key; last, tries the proof of next_available_at.
-- Raises DX007, 23505 on history_pkey (an event id that exists).
create or replace function ack_orchestration_item(
    p_instance_id            text,
    p_lease                  uuid,
    p_ack_id                 uuid,
    p_execution_id           bigint,
    p_status                 text,
    p_output                 text,
    p_orchestration_name     text,
    p_orchestration_version  text,
    p_parent_instance_id     text,
    p_pinned_version         bigint,
    p_sets_custom_status     boolean,
    p_custom_status          text,
    p_clears_kv              boolean,
    p_node                   uuid,
    p_first_event_id         bigint,
    p_last_event_id          bigint,
    p_event_ids              bigint[],
    p_event_data             text[],
    p_kv_keys                text[],
    p_kv_values              text[],
    p_kv_updated_at_ms       bigint[],
    p_activity_instance_ids  text[],
    p_activity_execution_ids bigint[],
    p_activity_ids           bigint[],
    p_activity_tags          text[],
    p_activity_sessions      text[],
    p_activity_items         text[],
    p_activity_leases        uuid[],
    p_activity_lease_ms      bigint[],
    p_cancel_instance_ids    text[],
    p_cancel_execution_ids   bigint[],
    p_cancel_activity_ids    bigint[],
    p_message_instance_ids   text[],
    p_message_kinds          "char"[],
    p_message_visible_at_ms  bigint[],
    p_message_items          text[],
    p_targets                text[],
    p_tells_end              boolean default false
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
    v_ends       constant boolean := coalesce(p_status in ('Completed', 'Failed', 'ContinuedAsNew'), false);
    v_now        timestamptz;
    v_visible_at timestamptz[];
    v_due_at     timestamptz;
    v_marked     boolean;
    v_box        record;
    v_exists     boolean := false;
    v_id         bigint;
    v_kept       boolean;
    v_has_kv     boolean;
    v_proved     boolean;
    v_rows       tid[];
    v_next       timestamptz;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;

    if cardinality(p_targets) > 0 then
        v_marked := mark_in_flight(p_targets);
        if not v_marked and p_parent_instance_id is not null then
            -- The parent in any case: creating a child must not slip past a deletion of its parent.
            perform mark_in_flight(array[p_parent_instance_id]);
        end if;
    end if;
    if cardinality(p_message_items) > 0 then
        v_now := clock_timestamp();
        select array_agg(coalesce(timestamp_from_ms(t.visible_at_ms), v_now) order by t.position),
               min(coalesce(timestamp_from_ms(t.visible_at_ms), v_now))
          into v_visible_at, v_due_at
          from unnest(p_message_visible_at_ms) with ordinality as t (visible_at_ms, position);
    end if;
    -- One pass over targets and own mailbox, in the order of their ids.
    if cardinality(p_targets) > 0 then
        perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
           from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
          where t.instance_id < p_instance_id collate "C"
            and t.instance_id = any (p_targets);
    end if;
    select m.lease, m.available_at, m.claimed_ids, m.claimed_until, m.start_item is not null as has_start, m.pinned_version,
           m.history_epoch, m.cached_by, m.cached_execution_id, m.cached_event_id
      into v_box
      from mailboxes as m
     where m.instance_id = p_instance_id
       for update;
    if cardinality(p_targets) > 0 then
        perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
           from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
          where t.instance_id > p_instance_id collate "C"
            and t.instance_id = any (p_targets);
    end if;

    -- The lease is checked when the locks are held: waiting for them may have outlasted it.
    v_now := clock_timestamp();
    if v_box.lease is distinct from p_lease or v_box.available_at <= v_now then
        done := case when not exists (select from history as h
                                       where h.instance_id = p_instance_id
                                         and h.execution_id = p_execution_id
                                         and h.event_id = p_first_event_id
                                         and h.ack_id = p_ack_id) then false end;
        if cardinality(p_activity_items) > 0 then
            -- Whoever was to get them from an earlier attempt has not heard of it.
            v_rows := lock_work_items(p_activity_instance_ids, p_activity_execution_ids, p_activity_ids, p_activity_leases);
            update worker_queue as w
               set lease = null,
                   available_at = v_now,
                   attempt_count = w.attempt_count - 1
             where w.ctid = any (v_rows);
        end if;
        return next;
        return;
    end if;

    if not v_box.has_start then
        delete from orchestrator_queue as q
         where q.instance_id = p_instance_id
           and q.visible_at <= v_box.claimed_until
           and q.id = any (v_box.claimed_ids);
    end if;

    -- Nobody else can make these rows while the mailbox is locked: ON CONFLICT would insert each in two steps for nothing.
    if p_orchestration_name is not null and p_orchestration_version is not null then
        insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id,
                               parent_instance_id, created_at, updated_at)
        select p_instance_id, p_orchestration_name, p_orchestration_version, p_execution_id,
               p_parent_instance_id, v_now, v_now
         where not exists (select from instances as i where i.instance_id = p_instance_id);
        if not found then
            update instances as i
               set orchestration_name = p_orchestration_name,
                   orchestration_version = p_orchestration_version,
                   current_execution_id = greatest(i.current_execution_id, p_execution_id),
                   updated_at = v_now
             where i.instance_id = p_instance_id;
        end if;
    end if;
    if p_execution_id > 1 then
        update instances as i
           set current_execution_id = p_execution_id,
               updated_at = v_now
         where i.instance_id = p_instance_id
           and i.current_execution_id < p_execution_id;
    end if;

    if p_status is not null then
        update executions as e
           set status = p_status,
               output = p_output,
               completed_at = case when v_ends then v_now end
         where e.instance_id = p_instance_id
           and e.execution_id = p_execution_id;
        v_exists := found;
    end if;
    if not v_exists then
        insert into executions (instance_id, execution_id, status, output, started_at, completed_at)
        select p_instance_id, p_execution_id, coalesce(p_status, 'Running'), p_output,
               v_now, case when v_ends then v_now end
         where not exists (select from executions as e
                            where e.instance_id = p_instance_id
                              and e.execution_id = p_execution_id);
    end if;

    insert into history (instance_id, execution_id, event_id, ack_id, event_data)
    select p_instance_id, p_execution_id, e.event_id,
           case when e.event_id = p_first_event_id then p_ack_id end, e.event_data
      from unnest(p_event_ids, p_event_data) as e (event_id, event_data);

    if p_sets_custom_status then
        update instances as i
           set custom_status = p_custom_status,
               custom_status_version = i.custom_status_version + 1,
               updated_at = v_now
         where i.instance_id = p_instance_id;
    end if;
    v_has_kv := p_clears_kv or cardinality(p_kv_keys) > 0;
    -- By itself: a condition with a query in it costs one, whatever comes before.
    if v_ends and not v_has_kv then
        v_has_kv := exists (select from kv_delta as d where d.instance_id = p_instance_id);
    end if;
    if v_has_kv then
        perform apply_kv(p_instance_id, p_clears_kv, p_kv_keys, p_kv_values, p_kv_updated_at_ms, v_ends);
    end if;

    if cardinality(p_activity_items) = 1 then
        -- The usual case, in a small statement.
        insert into worker_queue as w (instance_id, execution_id, activity_id, available_at,
                                       lease, attempt_count, tag, session_id, work_item)
        values (p_activity_instance_ids[1], p_activity_execution_ids[1], p_activity_ids[1],
                v_now + coalesce(p_activity_lease_ms[1], 0) * interval '1 ms',
                case when p_activity_lease_ms[1] is not null then p_activity_leases[1] end,
                case when p_activity_lease_ms[1] is not null then 1 else 0 end,
                p_activity_tags[1], p_activity_sessions[1], p_activity_items[1])
        returning w.id into v_id;
        if p_activity_lease_ms[1] is not null then
            handed_leases := p_activity_leases;
            handed_ids := array[v_id];
        end if;
    elsif cardinality(p_activity_items) > 0 then
        with added as (
            insert into worker_queue as w (instance_id, execution_id, activity_id, available_at,
                                           lease, attempt_count, tag, session_id, work_item)
            select t.instance_id, t.execution_id, t.activity_id, v_now + coalesce(t.lease_ms, 0) * interval '1 ms',
                   case when t.lease_ms is not null then t.lease end,
                   case when t.lease_ms is not null then 1 else 0 end,
                   t.tag, t.session_id, t.work_item
              from unnest(p_activity_instance_ids, p_activity_execution_ids, p_activity_ids, p_activity_leases,
                          p_activity_lease_ms, p_activity_tags, p_activity_sessions, p_activity_items)
                   as t (instance_id, execution_id, activity_id, lease, lease_ms, tag, session_id, work_item)
            returning w.lease, w.id
        )
        select array_agg(a.lease), array_agg(a.id)
          into handed_leases, handed_ids
          from added as a
         where a.lease is not null;
    end if;
    if cardinality(p_cancel_activity_ids) > 0 then
        v_rows := lock_work_items(p_cancel_instance_ids, p_cancel_execution_ids, p_cancel_activity_ids);
        delete from worker_queue as w where w.ctid = any (v_rows);
    end if;
    if cardinality(p_message_items) > 0 then
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select t.instance_id, t.visible_at, t.kind, t.work_item
          from unnest(p_message_instance_ids, v_visible_at, p_message_kinds, p_message_items)
               as t (instance_id, visible_at, kind, work_item);
    end if;

    v_kept := p_first_event_id = 1 or (v_box.cached_by = p_node and v_box.cached_execution_id = p_execution_id);
    if v_kept and p_node is not null and handed_ids is not null then
        if not exists (select from history as h
                        where h.instance_id = p_instance_id
                          and h.execution_id = p_execution_id
                          and h.event_id > coalesce(p_last_event_id, v_box.cached_event_id)) then
            history_epoch := v_box.history_epoch;
        end if;
    end if;
    if p_tells_end then
        select case when not exists (select from history as h
                                      where h.instance_id = p_instance_id
                                        and h.execution_id = p_execution_id
                                        and h.event_id > p_last_event_id) then v_box.history_epoch end,
               case when octet_length(i.custom_status) <= c_max_status_bytes then i.custom_status end,
               case when octet_length(i.custom_status) > c_max_status_bytes then -1 else i.custom_status_version end
          into history_epoch, custom_status, custom_status_version
          from instances as i
         where i.instance_id = p_instance_id;
    end if;
    -- As next_available_at: first the proof, then, in a statement of its own, the look.
    v_proved := pg_try_advisory_xact_lock(schema_key(), mailbox_key(p_instance_id));
    update mailboxes as m
       set available_at = case when v_proved
                               then coalesce((select q.visible_at
                                                from orchestrator_queue as q
                                               where q.instance_id = p_instance_id
                                               order by q.visible_at
                                               limit 1), 'infinity')
                               else v_now end,
           lease = null,
           claimed_ids = null,
           claimed_until = null,
           start_item = null,
           -- An execution that begins without a version is anybody's.
           pinned_version = coalesce(p_pinned_version,
                                     case when p_first_event_id = 1 then -1 else v_box.pinned_version end),
           cached_by = case when v_kept then p_node end,
           cached_execution_id = p_execution_id,
           cached_event_id = coalesce(p_last_event_id, v_box.cached_event_id)
     where m.instance_id = p_instance_id
    returning m.available_at into v_next;
    done := true;
    due_ms := ms_between(v_now, least(v_next, v_due_at));
    return next;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
