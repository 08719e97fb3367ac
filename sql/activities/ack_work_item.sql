-- Removes finished activities and delivers their completions, if any, each in one step; all of one call in one
-- transaction. Returns for each whether it was done: false when it was cancelled, has expired or was taken over.
-- Locks, in the one order of sql/README.md: in-flight marks, idle mailboxes, worker rows, sessions.
-- Raises DX007.
create or replace function ack_work_item(
    p_instance_ids            text[],
    p_execution_ids           bigint[],
    p_activity_ids            bigint[],
    p_ids                     bigint[],
    p_leases                  uuid[],
    p_completion_instance_ids text[],
    p_completions             text[]
) returns boolean[]
language plpgsql
as $$
declare
    v_now      timestamptz;
    v_targets  constant text[] := array_remove(p_completion_instance_ids, null);
    v_done     bigint[];
    v_sessions text[];
    v_session  text;
    v_row      record;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    if v_targets <> '{}' then
        -- Before it is known which of them count, for the sake of the lock order. Waking an instance for
        -- nothing costs one look at it.
        perform wake_mailboxes(v_targets, array_fill(clock_timestamp(), array[cardinality(v_targets)]),
                               mark_in_flight(v_targets));
    end if;

    -- Each lease is checked when its lock is held: waiting for it may have outlasted the lease.
    if cardinality(p_ids) = 1 then
        -- A lone one, in small statements.
        select w.lease, w.available_at, w.session_id
          into v_row
          from worker_queue as w
         where w.instance_id = p_instance_ids[1]
           and w.execution_id = p_execution_ids[1]
           and w.activity_id = p_activity_ids[1]
           and w.id = p_ids[1]
           for update;
        v_now := clock_timestamp();
        if v_row.lease is distinct from p_leases[1] or v_row.available_at <= v_now then
            return array[false];
        end if;
        delete from worker_queue as w
         where w.instance_id = p_instance_ids[1]
           and w.execution_id = p_execution_ids[1]
           and w.activity_id = p_activity_ids[1]
           and w.id = p_ids[1];
        if v_targets <> '{}' then
            insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
            values (v_targets[1], v_now, 'm', p_completions[1]);
        end if;
        if v_row.session_id <> '' then
            perform touch_session(v_row.session_id, v_now);
        end if;
        return array[true];
    end if;

    select array_agg(w.position), array_agg(w.session_id) filter (where w.session_id <> '')
      into v_done, v_sessions
      from (select t.position, w.available_at, w.lease = t.lease as own, w.session_id
              from unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_ids, p_leases)
                   with ordinality as t (instance_id, execution_id, activity_id, id, lease, position)
              join worker_queue as w
                on w.instance_id = t.instance_id
               and w.execution_id = t.execution_id
               and w.activity_id = t.activity_id
               and w.id = t.id
             order by w.instance_id, w.execution_id, w.activity_id, w.id
               for update of w) as w
     where w.own
       and w.available_at > clock_timestamp();
    v_now := clock_timestamp();

    with finished as (
        delete from worker_queue as w
         using unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_ids)
               with ordinality as t (instance_id, execution_id, activity_id, id, position)
         where t.position = any (v_done)
           and w.instance_id = t.instance_id
           and w.execution_id = t.execution_id
           and w.activity_id = t.activity_id
           and w.id = t.id
    )
    insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
    select t.instance_id, v_now, 'm', t.work_item
      from unnest(p_completion_instance_ids, p_completions) with ordinality as t (instance_id, work_item, position)
     where t.position = any (v_done)
       and t.instance_id is not null;

    if v_sessions is not null then
        for v_session in select distinct s.id collate "C" from unnest(v_sessions) as s (id) order by 1 loop
            perform touch_session(v_session, v_now);
        end loop;
    end if;
    if cardinality(v_done) = cardinality(p_ids) then
        return array_fill(true, array[cardinality(p_ids)]);
    end if;
    return array(select t.position = any (coalesce(v_done, '{}'))
                   from generate_series(1, cardinality(p_ids)) as t (position));
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off;
