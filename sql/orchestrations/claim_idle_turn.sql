-- Claims an instance that was idle until just now: its caller holds its mailbox locked, which was neither leased nor due, and has put
-- these messages into its queue. So they are all there is to a turn, and nothing has to be looked for. Its process has the history in memory.
-- Returns what it needs, as claim_turns does; no row if it turns out to be that of another execution, or what is new of it too long: then the mailbox
-- is only made due.
-- p_cached_execution_id, p_cached_event_id: as in the mailbox. p_visible_at: of the messages, all alike.
-- Locks: none but the mailbox.
create or replace function claim_idle_turn(
    p_instance_id         text,
    p_lease               uuid,
    p_lock_timeout_ms     bigint,
    p_message_ids         bigint[],
    p_messages            text[],
    p_visible_at          timestamptz,
    p_history_epoch       bigint,
    p_cached_execution_id bigint,
    p_cached_event_id     bigint
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
    -- What a row of an answer can hold: beyond that, claim_turn decides.
    c_max_history_bytes constant bigint := 943718400::bigint;
    v_last_event_id     bigint;
    v_bytes             bigint;
begin
    select i.orchestration_name, i.orchestration_version, i.current_execution_id
      into orchestration_name, orchestration_version, execution_id
      from instances as i
     where i.instance_id = p_instance_id;
    if execution_id = p_cached_execution_id then
        -- Events that were added by hand come after what is in memory.
        select array_agg(n.event_data), max(n.event_id), sum(octet_length(n.event_data))
          into history, v_last_event_id, v_bytes
          from (select v.event_id, v.event_data
                  from history as v
                 where v.instance_id = p_instance_id
                   and v.execution_id = p_cached_execution_id
                   and v.event_id > p_cached_event_id
                 order by v.event_id) as n;
    end if;
    if execution_id is distinct from p_cached_execution_id or v_bytes > c_max_history_bytes then
        update mailboxes as m set available_at = p_visible_at where m.instance_id = p_instance_id;
        return;
    end if;
    select array_agg(s.key), array_agg(s.value), array_agg(s.last_updated_at_ms)
      into kv_keys, kv_values, kv_updated_at_ms
      from kv_store as s
     where s.instance_id = p_instance_id;
    update mailboxes as m
       set lease = p_lease,
           available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
           claimed_ids = p_message_ids,
           claimed_until = p_visible_at,
           cached_event_id = coalesce(v_last_event_id, p_cached_event_id)
     where m.instance_id = p_instance_id;
    instance_id := p_instance_id;
    lease := p_lease;
    attempt_count := 1;
    messages := p_messages;
    history_epoch := p_history_epoch;
    cached_event_id := p_cached_event_id;
    return next;
end
$$;
