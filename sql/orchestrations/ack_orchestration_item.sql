-- Commits a turn: history, metadata, values, outgoing work, consumed messages and the end of the lease,
-- all or nothing. Returns the milliseconds until the earliest orchestration message it left or sent is due,
-- NULL when there is none.
-- A repetition of the same call (p_ack_id) that had already committed succeeds without effect.
-- Locks, in the one order of sql/README.md: in-flight marks, mailboxes by instance id (own and targets),
-- worker rows by key; last, tries the proof of next_available_at.
-- Raises DX001 (lease lost), DX007, 23505 on history_pkey (an event id that exists).
create or replace function ack_orchestration_item(
    p_instance_id            text,
    p_lease                  uuid,
    p_ack_id                 uuid,
    p_execution_id           bigint,
    p_event_ids              bigint[],
    p_event_data             text[],
    p_status                 text,
    p_output                 text,
    p_orchestration_name     text,
    p_orchestration_version  text,
    p_parent_instance_id     text,
    p_pinned_version         bigint,
    p_sets_custom_status     boolean,
    p_custom_status          text,
    p_clears_kv              boolean,
    p_kv_keys                text[],
    p_kv_values              text[],
    p_kv_updated_at_ms       bigint[],
    p_activity_instance_ids  text[],
    p_activity_execution_ids bigint[],
    p_activity_ids           bigint[],
    p_activity_tags          text[],
    p_activity_sessions      text[],
    p_activity_items         text[],
    p_cancel_instance_ids    text[],
    p_cancel_execution_ids   bigint[],
    p_cancel_activity_ids    bigint[],
    p_message_instance_ids   text[],
    p_message_kinds          "char"[],
    p_message_visible_at_ms  bigint[],
    p_message_items          text[]
) returns bigint
language plpgsql
as $$
declare
    v_box         mailboxes;
    v_marked      boolean;
    v_now         timestamptz;
    v_visible_at  timestamptz[];
    v_due_at      timestamptz;
    v_next        timestamptz;
    v_terminal    constant boolean := p_status in ('Completed', 'Failed', 'ContinuedAsNew');
    v_new         boolean;
    v_others      constant boolean := p_parent_instance_id is not null
                                      or exists (select from unnest(p_message_instance_ids) as t (instance_id)
                                                  where t.instance_id <> p_instance_id);
begin
    perform require_read_committed();

    if v_others then
        -- The parent in any case: creating a child must not slip past a deletion of its parent.
        v_marked := mark_in_flight(array_remove(p_message_instance_ids || p_parent_instance_id, p_instance_id));
        if not v_marked and p_parent_instance_id is not null then
            perform mark_in_flight(array[p_parent_instance_id]);
        end if;
    end if;
    v_now := clock_timestamp();
    select array_agg(coalesce(timestamp_from_ms(t.visible_at_ms), v_now) order by t.position),
           min(coalesce(timestamp_from_ms(t.visible_at_ms), v_now))
      into v_visible_at, v_due_at
      from unnest(p_message_visible_at_ms) with ordinality as t (visible_at_ms, position);

    if v_others then
        perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
           from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
          where t.instance_id < p_instance_id collate "C";
    end if;

    select m.* into v_box from mailboxes as m where m.instance_id = p_instance_id for update;
    -- The clock is read after the lock: waiting for it may have outlasted the lease.
    if v_box.lease is distinct from p_lease or v_box.available_at <= clock_timestamp() then
        if exists (select from history as h
                    where h.instance_id = p_instance_id
                      and h.execution_id = p_execution_id
                      and h.event_id = p_event_ids[1]
                      and h.ack_id = p_ack_id) then
            return null;
        end if;
        raise exception 'Invalid lock token: the lease on instance "%" has expired or is held by somebody else', p_instance_id
            using errcode = 'DX001';
    end if;

    if v_others then
        perform wake_mailboxes(array_agg(t.instance_id), array_agg(t.visible_at), v_marked)
           from unnest(p_message_instance_ids, v_visible_at) as t (instance_id, visible_at)
          where t.instance_id > p_instance_id collate "C";
    end if;

    delete from orchestrator_queue as q
     where q.instance_id = p_instance_id
       and q.visible_at <= v_box.claimed_until
       and q.id = any (v_box.claimed_ids);

    if p_orchestration_name is not null and p_orchestration_version is not null then
        insert into instances as i (instance_id, orchestration_name, orchestration_version, current_execution_id,
                                    parent_instance_id, created_at, updated_at)
        values (p_instance_id, p_orchestration_name, p_orchestration_version, p_execution_id,
                p_parent_instance_id, v_now, v_now)
            on conflict (instance_id) do update
           set orchestration_name = excluded.orchestration_name,
               orchestration_version = excluded.orchestration_version,
               current_execution_id = greatest(i.current_execution_id, excluded.current_execution_id),
               updated_at = excluded.updated_at;
    else
        update instances as i
           set current_execution_id = p_execution_id,
               updated_at = v_now
         where i.instance_id = p_instance_id
           and i.current_execution_id < p_execution_id;
    end if;

    insert into executions (instance_id, execution_id, status, output, started_at, completed_at)
    values (p_instance_id, p_execution_id, coalesce(p_status, 'Running'), p_output, v_now,
            case when v_terminal then v_now end)
        on conflict (instance_id, execution_id) do nothing;
    v_new := found;
    if not v_new and p_status is not null then
        update executions as e
           set status = p_status,
               output = p_output,
               completed_at = case when v_terminal then v_now end
         where e.instance_id = p_instance_id
           and e.execution_id = p_execution_id;
    end if;

    insert into history (instance_id, execution_id, event_id, ack_id, event_data)
    select p_instance_id, p_execution_id, t.event_id, case when t.position = 1 then p_ack_id end, t.event_data
      from unnest(p_event_ids, p_event_data) with ordinality as t (event_id, event_data, position);

    if p_sets_custom_status then
        update instances as i
           set custom_status = p_custom_status,
               custom_status_version = i.custom_status_version + 1,
               updated_at = v_now
         where i.instance_id = p_instance_id;
    end if;

    if p_clears_kv or cardinality(p_kv_keys) > 0 or v_terminal then
        perform apply_kv(p_instance_id, p_clears_kv, p_kv_keys, p_kv_values, p_kv_updated_at_ms,
                         coalesce(v_terminal, false));
    end if;

    if cardinality(p_activity_items) > 0 then
        insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item)
        select t.instance_id, t.execution_id, t.activity_id, v_now, t.tag, t.session_id, t.work_item
          from unnest(p_activity_instance_ids, p_activity_execution_ids, p_activity_ids,
                      p_activity_tags, p_activity_sessions, p_activity_items)
               with ordinality as t (instance_id, execution_id, activity_id, tag, session_id, work_item, position)
         order by t.position;
    end if;

    if cardinality(p_cancel_activity_ids) > 0 then
        perform from worker_queue as w
           join unnest(p_cancel_instance_ids, p_cancel_execution_ids, p_cancel_activity_ids)
                as t (instance_id, execution_id, activity_id)
             on w.instance_id = t.instance_id
            and w.execution_id = t.execution_id
            and w.activity_id = t.activity_id
          order by w.instance_id, w.execution_id, w.activity_id, w.id
            for update of w;
        delete from worker_queue as w
         using unnest(p_cancel_instance_ids, p_cancel_execution_ids, p_cancel_activity_ids)
               as t (instance_id, execution_id, activity_id)
         where w.instance_id = t.instance_id
           and w.execution_id = t.execution_id
           and w.activity_id = t.activity_id;
    end if;

    if cardinality(p_message_items) > 0 then
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select t.instance_id, t.visible_at, t.kind, t.work_item
          from unnest(p_message_instance_ids, v_visible_at, p_message_kinds, p_message_items)
               with ordinality as t (instance_id, visible_at, kind, work_item, position)
         order by t.position;
    end if;

    v_next := next_available_at(p_instance_id);
    update mailboxes as m
       set available_at = v_next,
           lease = null,
           claimed_ids = null,
           claimed_until = null,
           -- An execution that begins without a version is anybody's again.
           pinned_version = case when p_pinned_version is not null then p_pinned_version
                                 when v_new then -1
                                 else m.pinned_version end
     where m.instance_id = p_instance_id;

    return ms_between(clock_timestamp(), least(v_due_at, v_next));
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set jit = off;
