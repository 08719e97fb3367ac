-- Puts messages into the queues of their instances, all of them in one transaction. Durable before it returns. One alone: enqueue_for_orchestrator.
-- p_visible_at_ms: when a message is due by the caller's wish (a timer); p_delays_ms: how long it stays
-- hidden by the database clock; both NULL: visible at once.
-- p_turn_limit: how many turns somebody waits for. So many of the instances are claimed as well, if that can be had at once; the rows are
-- theirs, as of fetch_orchestration_item. The other p_turn_…, p_min_version, p_max_version and p_node: for claim_turns; instances that begin here
-- need none of its looks. p_turn_instance_ids: those that messages make due at once, each one once.
-- With the first row: how many of the instances somebody should look for, those claimed here included.
-- Locks: marks the instances in flight, then their idle and new mailboxes by instance id; last, tries those of the turns. Raises DX007; with turns 23505, when
-- somebody else has just made one of the mailboxes: nothing was done.
create or replace function enqueue_for_orchestrators(
    p_instance_ids         text[],
    p_kinds                "char"[],
    p_work_items           text[],
    p_visible_at_ms        bigint[],
    p_delays_ms            bigint[],
    p_turn_instance_ids    text[]  default '{}',
    p_turn_leases          uuid[]  default '{}',
    p_turn_limit           integer default 0,
    p_turn_lock_timeout_ms bigint  default 0,
    p_min_version          bigint  default 0,
    p_max_version          bigint  default 0,
    p_node                 uuid    default null
) returns table (
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
    kv_updated_at_ms      bigint[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- What one turn takes at most: beyond that, claim_turn decides.
    c_max_message_bytes constant integer := 16777216;
    v_marked     boolean;
    v_now        timestamptz;
    v_at_once    boolean;
    v_born       boolean;
    v_visible_at timestamptz[];
    v_due        text[];
    v_turns      integer;
    v_starts     text[] := '{}'::text[];
    v_epochs     bigint[];
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    v_marked := mark_in_flight(p_instance_ids);
    v_now := clock_timestamp();
    v_at_once := array_remove(p_visible_at_ms, null) = '{}' and array_remove(p_delays_ms, null) = '{}';
    if v_at_once then
        -- The usual case, without a query.
        v_visible_at := array_fill(v_now, array[cardinality(p_instance_ids)]);
    else
        v_visible_at := array(
            select coalesce(timestamp_from_ms(t.visible_at_ms), v_now + t.delay_ms * interval '1 ms', v_now)
              from unnest(p_visible_at_ms, p_delays_ms) as t (visible_at_ms, delay_ms));
    end if;

    v_born := p_turn_limit > 0
          and v_at_once
          and cardinality(p_turn_instance_ids) = cardinality(p_instance_ids)
          and 's' = all (p_kinds)
          and octet_length(array_to_string(p_work_items, '')) < c_max_message_bytes;
    if v_born then
        v_born := not exists (select
                                from unnest(p_turn_instance_ids) as t (instance_id)
                               cross join lateral ((select from mailboxes as m where m.instance_id = t.instance_id limit 1)
                                                   union all
                                                   (select from history as h where h.instance_id = t.instance_id limit 1)) as k);
    end if;
    if v_born then
        -- Starts of new instances: as far as somebody waits, their mailboxes are born leased, with the starts in them. Should one have come into
        -- being since: 23505, and the caller does without turns.
        v_turns := cardinality(p_turn_instance_ids);
        for v_position in 1 .. v_turns loop
            v_starts[v_position] := p_work_items[array_position(p_instance_ids, p_turn_instance_ids[v_position])];
        end loop;
        if v_turns > p_turn_limit then
            insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
            select t.instance_id, v_now, 's', t.work_item
              from unnest(p_turn_instance_ids[p_turn_limit + 1:], v_starts[p_turn_limit + 1:]) as t (instance_id, work_item);
        end if;
        with born as (
            insert into mailboxes as m (instance_id, available_at, lease, claimed_ids, claimed_until, start_item,
                                        cached_by, cached_execution_id, cached_event_id)
            select t.instance_id,
                   case when t.handed then clock_timestamp() + p_turn_lock_timeout_ms * interval '1 ms' else v_now end,
                   case when t.handed then t.lease end,
                   case when t.handed then '{0}'::bigint[] end,
                   case when t.handed then v_now end,
                   case when t.handed then t.work_item end,
                   case when t.handed then p_node end,
                   case when t.handed then 1 end,
                   case when t.handed then 0 end
              from (select t.instance_id, t.lease, t.work_item, t.position <= p_turn_limit as handed
                      from unnest(p_turn_instance_ids, p_turn_leases, v_starts)
                           with ordinality as t (instance_id, lease, work_item, position)) as t
             order by t.instance_id collate "C"
            returning m.instance_id, m.history_epoch
        )
        select array_agg(b.history_epoch order by array_position(p_turn_instance_ids, b.instance_id))
          into v_epochs
          from born as b;
        to_look_for := v_turns;
        attempt_count := 1;
        execution_id := 1;
        cached_event_id := 0;
        for v_position in 1 .. least(p_turn_limit, v_turns) loop
            instance_id := p_turn_instance_ids[v_position];
            lease := p_turn_leases[v_position];
            messages := array[v_starts[v_position]];
            history_epoch := v_epochs[v_position];
            return next;
            to_look_for := null;
        end loop;
        return;
    end if;

    insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
    select t.instance_id, t.visible_at, t.kind, t.work_item
      from unnest(p_instance_ids, v_visible_at, p_kinds, p_work_items) as t (instance_id, visible_at, kind, work_item);

    v_due := wake_mailboxes(p_instance_ids, v_visible_at, v_marked, p_node);

    to_look_for := cardinality(v_due);
    if p_turn_limit > 0 and v_due <> '{}' then
        for instance_id, lease, attempt_count, execution_id, orchestration_name, orchestration_version, messages,
            history_epoch, cached_event_id, history, kv_keys, kv_values, kv_updated_at_ms in
            select t.*
              from claim_turns(p_turn_instance_ids, v_due, p_turn_leases, p_turn_limit, p_turn_lock_timeout_ms,
                               p_min_version, p_max_version, p_node) as t
        loop
            return next;
            to_look_for := null;
        end loop;
    end if;
    if to_look_for is not null then
        instance_id := null;
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
set jit = off;
