-- Claims up to p_limit of these instances, those that are due, fit the version range, can be locked at once and are ordinary: not
-- leased, started or starting, within the limits of one turn. Returns what their turns need, as fetch_orchestration_item does, which
-- takes all others.
-- p_among: NULL, or those that count.
-- p_leases: NULL, or the leases of these instances, for a caller that has just sent them messages and answers for somebody who
-- waits. Then long histories that p_node, the process, does not have in memory are left to a fetch.
-- Locks: mailboxes, SKIP LOCKED. Never waits.
create or replace function claim_turns(
    p_instance_ids    text[],
    p_among           text[],
    p_leases          uuid[],
    p_limit           integer,
    p_lock_timeout_ms bigint,
    p_min_version     bigint,
    p_max_version     bigint,
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
    -- What one turn takes at most, and what one row of an answer can hold: beyond that, claim_turn decides.
    c_max_messages      constant integer := 1000;
    c_max_message_bytes constant bigint  := 16777216::bigint;
    c_max_history_bytes constant bigint  := 943718400::bigint;
    -- Events that are not long for somebody who did not ask for them.
    c_few_events        constant bigint  := 32::bigint;
    v_box               record;
    v_now               timestamptz;
    v_ids               bigint[];
    v_until             timestamptz;
    v_has_start         boolean;
    v_bytes             bigint;
    v_last_event_id     bigint;
    v_claimed           integer := 0;
begin
    for v_position in 1 .. cardinality(p_instance_ids) loop
        exit when v_claimed >= p_limit;
        instance_id := p_instance_ids[v_position];
        continue when instance_id <> all (p_among);
        select m.history_epoch, m.cached_event_id,
               case when m.cached_by = p_node then m.cached_execution_id end as cached_execution_id
          into v_box
          from mailboxes as m
         where m.instance_id = claim_turns.instance_id
           and m.lease is null
           and m.available_at <= clock_timestamp()
           and (p_leases is null or m.cached_by = p_node or coalesce(m.cached_event_id, 0) <= c_few_events)
           and (m.pinned_version = -1 or m.pinned_version between p_min_version and p_max_version)
           for update skip locked;
        continue when not found;
        -- The clock is read under the lock: what became visible meanwhile belongs to this turn.
        v_now := clock_timestamp();
        select i.orchestration_name, i.orchestration_version, i.current_execution_id
          into orchestration_name, orchestration_version, execution_id
          from instances as i
         where i.instance_id = claim_turns.instance_id;
        if execution_id is null then
            -- Acked without metadata: its history tells which execution is the latest.
            select e.execution_id
              into execution_id
              from history as e
             where e.instance_id = claim_turns.instance_id
             order by e.execution_id desc
             limit 1;
        end if;
        select array_agg(o.id), array_agg(o.work_item), max(o.visible_at), max(o.attempt_count) + 1,
               bool_or(o.kind = 's'), sum(octet_length(o.work_item))
          into v_ids, messages, v_until, attempt_count, v_has_start, v_bytes
          from (select c.id, c.visible_at, c.attempt_count, c.kind, c.work_item
                  from (select q.id, q.visible_at, q.attempt_count, q.kind, q.work_item
                          from orchestrator_queue as q
                         where q.instance_id = claim_turns.instance_id
                           and q.visible_at <= v_now
                         order by q.visible_at, q.id
                         limit c_max_messages) as c
                 order by c.id) as o;
        continue when v_ids is null
                   or not (v_has_start or execution_id is not null)
                   or cardinality(v_ids) >= c_max_messages
                   or v_bytes >= c_max_message_bytes;

        cached_event_id := case when v_box.cached_execution_id = coalesce(execution_id, 1)
                                then v_box.cached_event_id else 0 end;
        history := null;
        v_last_event_id := null;
        kv_keys := null;
        kv_values := null;
        kv_updated_at_ms := null;
        if execution_id is not null then
            select array_agg(n.event_data), max(n.event_id), sum(octet_length(n.event_data))
              into history, v_last_event_id, v_bytes
              from (select v.event_id, v.event_data
                      from history as v
                     where v.instance_id = claim_turns.instance_id
                       and v.execution_id = claim_turns.execution_id
                       and v.event_id > claim_turns.cached_event_id
                     order by v.event_id) as n;
            continue when v_bytes > c_max_history_bytes;
            select array_agg(s.key), array_agg(s.value), array_agg(s.last_updated_at_ms)
              into kv_keys, kv_values, kv_updated_at_ms
              from kv_store as s
             where s.instance_id = claim_turns.instance_id;
        end if;

        v_claimed := v_claimed + 1;
        history_epoch := v_box.history_epoch;
        execution_id := coalesce(execution_id, 1);
        lease := coalesce(p_leases[v_position], gen_random_uuid());
        update mailboxes as m
           set lease = claim_turns.lease,
               available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
               claimed_ids = v_ids,
               claimed_until = v_until,
               cached_by = p_node,
               cached_execution_id = claim_turns.execution_id,
               cached_event_id = coalesce(v_last_event_id, claim_turns.cached_event_id)
         where m.instance_id = claim_turns.instance_id;
        return next;
    end loop;
end
$$;
