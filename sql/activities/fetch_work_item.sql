-- Claims up to p_limit activities that are due and fit the tags, oldest first.
-- p_tags: routing keys, NULL for any tag. p_owner_id: takes activities of sessions too, for this owner;
-- NULL: only those without a session. sessions tells whether there are any of sessions for these tags;
-- p_unless_sessions: if there are, claims nothing. p_cursor_tags, p_cursors: where to go on visiting the sessions of a tag,
-- as the last answer said. p_from_ms: of those without a session, what was due by then or later comes first, and the others only
-- if that is not enough; NULL: all as they come. What was claimed and deleted stays in the index until a vacuum, in front of what is due: whoever looks often need not pass it each time.
--   lease not NULL  a claimed activity; load_error says that it could not be read
--                   history_epoch, history_execution_id, cached_event_id, history: as of history_along, for p_node, the
--                   process. Whoever executes an activity reads it next. Only with one of those of an instance. due_ms: when it was due
--   lease NULL      the last row, only when less was claimed than asked for: next_ms until it is worth asking again, NULL if unknown;
--                   due_ms: the time of this look
-- p_with_care: as for fetch_orchestration_item.
-- Locks: worker rows, SKIP LOCKED, one after the other; then tries the session. Never waits. Raises DX007.
create or replace function fetch_work_item(
    p_lock_timeout_ms         bigint,
    p_tags                    text[],
    p_owner_id                text,
    p_session_lock_timeout_ms bigint,
    p_unless_sessions         boolean,
    p_cursor_tags             text[],
    p_cursors                 text[],
    p_from_ms                 bigint,
    p_limit                   integer,
    p_node                    uuid,
    p_with_care               boolean
) returns table (
    instance_id          text,
    execution_id         bigint,
    activity_id          bigint,
    id                   bigint,
    lease                uuid,
    attempt_count        integer,
    work_item            text,
    load_error           text,
    history_epoch        bigint,
    history_execution_id bigint,
    cached_event_id      bigint,
    history              text[],
    sessions             boolean,
    due_ms               bigint,
    next_ms              bigint,
    cursor_tags          text[],
    cursors              text[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    -- Between two visits to the queue a session can become free without a trace in it.
    c_session_recheck constant interval := interval '1 second';
    -- What is due but locked is being worked on, and sessions not visited yet are next: worth another look soon, not now.
    c_locked_recheck  constant interval := interval '25 ms';
    c_unvisited_pause constant interval := interval '100 ms';
    -- Up to here several small statements for each cost less than starting the large one.
    c_few             constant integer := 3;
    v_now             timestamptz;
    v_from            timestamptz := coalesce(timestamp_from_ms(p_from_ms), '-infinity');
    v_tags            text[];
    v_wanted          integer;
    v_visit_sessions  boolean;
    v_thorough        boolean := false;
    v_busy            boolean;
    v_head_tags       text[];
    v_head_sessions   text[];
    v_head_times      timestamptz[];
    v_head_ids        bigint[];
    v_unvisited       boolean := false;
    v_locked          boolean := false;
    v_session_next    timestamptz;
    v_head            record;
    v_row             record;
    v_rows            tid[];
    v_times           timestamptz[];
    v_claimed_at      tid;
    v_instance_id     text;
    v_claimed         integer := 0;
    v_next            timestamptz;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform require_read_committed();
    end if;
    -- A lease is not data: a server crash that loses it only means redelivery.
    if set_config('synchronous_commit', 'off', true) is null then null; end if;
    v_tags := p_tags;
    if v_tags is null then
        v_tags := array(select t.tag from worker_tags() as t);
    end if;
    if cardinality(v_tags) = 1 then
        -- The usual case, in a small statement.
        sessions := exists (select from worker_queue as w where w.tag = v_tags[1] and w.session_id > '');
    else
        sessions := exists (select from unnest(v_tags) as t (tag)
                             cross join lateral (
                                   select from worker_queue as w
                                    where w.tag = t.tag and w.session_id > ''
                                    order by w.session_id
                                    limit 1) as w);
    end if;

    if sessions and p_unless_sessions then
        return next;
        return;
    end if;

    v_visit_sessions := sessions and p_owner_id is not null;
    -- Once: what is claimed here is due later, so nothing is claimed twice.
    v_now := clock_timestamp();
    loop
        v_wanted := p_limit - v_claimed;
        exit when v_wanted <= 0;
        if v_visit_sessions then
            v_visit_sessions := false;
            v_busy := not v_thorough
                      and exists (select from unnest(v_tags) as t (tag)
                                   cross join lateral (
                                         select from worker_queue as w
                                          where w.tag = t.tag
                                            and w.session_id = ''
                                            and w.available_at >= v_from
                                            and w.available_at <= v_now
                                          limit 1) as w);
            select array_agg(h.tag) filter (where h.id is not null),
                   array_agg(h.session_id) filter (where h.id is not null),
                   array_agg(h.available_at) filter (where h.id is not null),
                   array_agg(h.id) filter (where h.id is not null),
                   array_agg(h.tag) filter (where h.id is null),
                   array_agg(h.session_id) filter (where h.id is null),
                   bool_or(h.id is null and not h.complete),
                   min(h.available_at) filter (where h.id is null)
              into v_head_tags, v_head_sessions, v_head_times, v_head_ids, cursor_tags, cursors, v_unvisited, v_session_next
              from session_heads(v_tags, p_owner_id, coalesce(cursor_tags, p_cursor_tags), coalesce(cursors, p_cursors),
                                 v_now, v_busy, greatest(v_wanted, c_few)) as h;
        end if;

        if not p_with_care and v_head_tags is null then
            load_error := null;
            if v_wanted <= c_few and cardinality(v_tags) = 1 then
                -- The ordinary case.
                for v_row in
                    select w.ctid as row_at, w.available_at
                      from worker_queue as w
                     where w.tag = v_tags[1]
                       and w.session_id = ''
                       and w.available_at >= v_from
                       and w.available_at <= v_now
                     order by w.available_at, w.id
                     limit v_wanted
                       for update skip locked
                loop
                    update worker_queue as w
                       set lease = gen_random_uuid(),
                           available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
                           attempt_count = w.attempt_count + 1
                     where w.ctid = v_row.row_at
                    returning w.instance_id, w.execution_id, w.activity_id, w.id, w.lease, w.attempt_count, w.work_item || ''
                         into instance_id, execution_id, activity_id, id, lease, attempt_count, work_item;
                    select a.history_epoch, a.history_execution_id, a.cached_event_id, a.history
                      into history_epoch, history_execution_id, cached_event_id, history
                      from history_along(nullif(instance_id, v_instance_id), p_node) as a;
                    v_instance_id := instance_id;
                    due_ms := ms_from_timestamp(greatest(v_row.available_at, 'epoch'));
                    v_claimed := v_claimed + 1;
                    return next;
                end loop;
            else
                if cardinality(v_tags) > 1 then
                    -- The tag that waits longest first.
                    v_tags := array(select t.tag
                                      from unnest(v_tags) as t (tag)
                                      left join lateral (
                                           select h.available_at
                                             from worker_queue as h
                                            where h.tag = t.tag
                                              and h.session_id = ''
                                              and h.available_at >= v_from
                                              and h.available_at <= v_now
                                            order by h.available_at
                                            limit 1) as h on true
                                     order by h.available_at);
                end if;
                -- The same for all of them in two statements.
                select array_agg(d.row_at), array_agg(d.available_at)
                  into v_rows, v_times
                  from (select d.row_at, d.available_at
                          from unnest(v_tags) as t (tag)
                         cross join lateral (
                               select c.ctid as row_at, c.available_at
                                 from worker_queue as c
                                where c.tag = t.tag
                                  and c.session_id = ''
                                  and c.available_at >= v_from
                                  and c.available_at <= v_now
                                order by c.available_at, c.id
                                limit v_wanted
                                  for update skip locked) as d
                         limit v_wanted) as d;
                if v_rows is not null then
                    for instance_id, execution_id, activity_id, id, lease, attempt_count, work_item, due_ms,
                        history_epoch, history_execution_id, cached_event_id, history in
                        with claimed as (
                            update worker_queue as w
                               set lease = gen_random_uuid(),
                                   available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
                                   attempt_count = w.attempt_count + 1
                              from unnest(v_rows, v_times) as d (row_at, available_at)
                             where w.ctid = d.row_at
                            returning w.instance_id, w.execution_id, w.activity_id, w.id, w.lease, w.attempt_count, w.work_item || '' as work_item,
                                      d.available_at
                        )
                        select c.instance_id, c.execution_id, c.activity_id, c.id, c.lease, c.attempt_count, c.work_item,
                               ms_from_timestamp(greatest(c.available_at, 'epoch')),
                               a.history_epoch, a.history_execution_id, a.cached_event_id, a.history
                          from (select c.*, row_number() over (partition by c.instance_id order by c.available_at, c.id) as number
                                  from claimed as c) as c
                          left join lateral history_along(case when c.number = 1 then c.instance_id end, p_node) as a on true
                         order by c.available_at, c.id
                    loop
                        v_claimed := v_claimed + 1;
                        return next;
                    end loop;
                end if;
            end if;
            if v_from > '-infinity' then
                v_from := timestamptz '-infinity';
                continue;
            end if;
            exit when v_claimed > 0 or v_unvisited is not true or not v_busy;
            -- Others have locked it: then there is time for sessions.
            v_thorough := true;
            v_visit_sessions := true;
            continue;
        end if;

        -- One by one: where sessions have something to do, and with care.
        v_row := null;
        -- The heads of all lines this worker may stand in, the longest waiting first.
        for v_head in
            select h.tag, h.session_id, h.available_at, h.id, null::bigint as position
              from unnest(v_tags) as t (tag)
             cross join lateral (
                   select w.tag, w.session_id, w.available_at, w.id
                     from worker_queue as w
                    where w.tag = t.tag
                      and w.session_id = ''
                      and w.available_at >= v_from
                      and w.available_at <= v_now
                    order by w.available_at, w.id
                    limit 1) as h
            union all
            select s.tag, s.session_id, s.available_at, s.id, s.position
              from unnest(v_head_tags, v_head_sessions, v_head_times, v_head_ids)
                   with ordinality as s (tag, session_id, available_at, id, position)
             where s.available_at < 'infinity'
             order by 3, 4
        loop
            select w.ctid as row_at, w.available_at
              into v_row
              from worker_queue as w
             where w.tag = v_head.tag
               and w.session_id = v_head.session_id
               and w.available_at >= v_head.available_at
               and w.available_at <= v_now
             order by w.available_at, w.id
             limit 1
               for update skip locked;
            exit when found
                  and (v_head.session_id = ''
                       or claim_session(v_head.session_id, p_owner_id, p_session_lock_timeout_ms));
            v_row := null;
            v_locked := true;
            if v_head.session_id <> '' then
                v_head_times[v_head.position] := 'infinity';
            end if;
        end loop;
        if v_row is null then
            exit when v_from = '-infinity';
            v_from := timestamptz '-infinity';
            continue;
        end if;

        lease := gen_random_uuid();
        due_ms := ms_from_timestamp(greatest(v_row.available_at, 'epoch'));
        work_item := null;
        load_error := null;
        history_execution_id := null;
        update worker_queue as w
           set lease = fetch_work_item.lease,
               available_at = clock_timestamp() + p_lock_timeout_ms * interval '1 ms',
               attempt_count = w.attempt_count + 1
         where w.ctid = v_row.row_at
        returning w.ctid, w.instance_id, w.execution_id, w.activity_id, w.id, w.attempt_count
             into v_claimed_at, instance_id, execution_id, activity_id, id, attempt_count;
        begin
            select w.work_item || ''
              into work_item
              from worker_queue as w
             where w.ctid = v_claimed_at;
        exception
            when transaction_rollback or object_not_in_prerequisite_state or operator_intervention
                 or connection_exception or disk_full then
                -- Trouble that passes is not the activity's fault.
                raise;
            when others then
                load_error := format('%s (SQLSTATE %s)', sqlerrm, sqlstate);
        end;
        v_claimed := v_claimed + 1;
        return next;

        if v_head.session_id <> '' then
            -- What the session has next stands in line instead.
            select w.available_at, w.id
              into v_row
              from worker_queue as w
             where w.tag = v_head.tag
               and w.session_id = v_head.session_id
               and w.available_at <= v_now
             order by w.available_at, w.id
             limit 1;
            v_head_times[v_head.position] := coalesce(v_row.available_at, 'infinity');
            v_head_ids[v_head.position] := v_row.id;
        end if;
        if 'infinity' = all (v_head_times) then
            v_head_tags := null;
            v_visit_sessions := v_unvisited;
        end if;
    end loop;

    if v_claimed < p_limit then
        select min(h.available_at)
          into v_next
          from unnest(v_tags) as t (tag)
         cross join lateral (
               select w.available_at
                 from worker_queue as w
                where w.tag = t.tag
                  and w.session_id = ''
                order by w.available_at
                limit 1) as h;
        v_next := least(v_next, v_session_next);
        if v_locked or v_next <= v_now then
            v_next := v_now + c_locked_recheck;
        elsif v_unvisited then
            -- After other work was found, which kept this look from being thorough, at once.
            v_next := case when v_claimed = 0 then least(v_next, v_now + c_unvisited_pause) else v_now end;
        elsif p_owner_id is not null and sessions then
            v_next := least(v_next, v_now + c_session_recheck);
        end if;
        lease := null;
        work_item := null;
        history := null;
        due_ms := ms_from_timestamp(v_now);
        next_ms := ms_between(clock_timestamp(), v_next);
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
