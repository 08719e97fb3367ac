-- Items of sessions that p_owner_id may serve, its own and those that nobody owns: the first due one of each, up to p_enough.
-- Each tag's sessions are visited in the order of their ids, from where the last visit ended (p_cursors) and round once,
-- until enough were found or as many visits were made as other work allows (p_busy: there is some): so every session has
-- its turn, and a fetch costs the same however many there are. Where that was not all of them, some of those
-- that the owner holds are visited as well, in the same way, so that it need not come round to find its own.
-- A row with id NULL tells where a visit ended ('@' in place of the tag: that of the owner's sessions), whether it went all
-- the way round, and when the first item is due that it saw and that is not due yet.
create or replace function session_heads(
    p_tags         text[],
    p_owner_id     text,
    p_cursor_tags  text[],
    p_cursors      text[],
    p_now          timestamptz,
    p_busy         boolean,
    p_enough       integer
) returns table (tag text, session_id text, available_at timestamptz, id bigint, complete boolean)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_max_visits      constant integer := 200;
    c_max_visits_busy constant integer := 16;
    c_max_own_visits  constant integer := 100;
    v_max_visits      constant integer := case when p_busy then c_max_visits_busy else c_max_visits end;
    v_tag             text;
    v_start           text;
    v_from            text;
    v_last            text;
    v_visit           record;
    v_visits          integer;
    v_found           integer;
    v_next            timestamptz;
    v_saw_all         boolean := true;
begin
    foreach v_tag in array p_tags loop
        v_start := coalesce(p_cursors[array_position(p_cursor_tags, v_tag)], '');
        v_from := v_start;
        v_last := v_start;
        v_visits := 0;
        v_found := 0;
        v_next := null;
        complete := false;
        <<round>>
        loop
            for v_visit in
                with recursive visit (session_id) as (
                    (select w.session_id
                       from worker_queue as w
                      where w.tag = v_tag
                        and w.session_id > v_from
                      order by w.session_id
                      limit 1)
                    union all
                    select n.session_id
                      from visit as v
                     cross join lateral (
                           select w.session_id
                             from worker_queue as w
                            where w.tag = v_tag
                              and w.session_id > v.session_id
                            order by w.session_id
                            limit 1) as n
                )
                select v.session_id, h.available_at, h.id
                  from visit as v
                  left join lateral (
                       select w.available_at, w.id
                         from worker_queue as w
                        where w.tag = v_tag
                          and w.session_id = v.session_id
                          and not exists (select from sessions as s
                                           where s.session_id = v.session_id
                                             and s.owner_id <> p_owner_id
                                             and s.locked_until > p_now)
                        order by w.available_at, w.id
                        limit 1) as h on true
                 limit v_max_visits - v_visits
            loop
                -- Sessions are in the order of their bytes, whatever the order of the database.
                if v_from = '' and v_start <> '' and v_visit.session_id > v_start collate "C" then
                    complete := true;
                    exit round;
                end if;
                v_visits := v_visits + 1;
                v_last := v_visit.session_id;
                if v_visit.available_at <= p_now then
                    v_found := v_found + 1;
                    tag := v_tag;
                    session_id := v_visit.session_id;
                    available_at := v_visit.available_at;
                    id := v_visit.id;
                    return next;
                    exit round when v_found >= p_enough;
                else
                    v_next := least(v_next, v_visit.available_at);
                end if;
            end loop;
            exit when v_visits >= v_max_visits;
            complete := v_from = '';
            exit when complete;
            v_from := '';
        end loop;
        v_saw_all := v_saw_all and complete;
        tag := v_tag;
        session_id := v_last;
        available_at := v_next;
        id := null;
        return next;
    end loop;
    if v_saw_all then
        return;
    end if;

    v_last := coalesce(p_cursors[array_position(p_cursor_tags, '@')], '');
    v_visits := 0;
    v_found := 0;
    for v_visit in
        select s.session_id, h.tag, h.available_at, h.id
          from (select s.session_id
                  from sessions as s
                 where s.owner_id = p_owner_id
                   and s.session_id > v_last
                   and s.locked_until > p_now
                 order by s.session_id
                 limit c_max_own_visits) as s
          left join lateral (
               select t.tag, w.available_at, w.id
                 from unnest(p_tags) as t (tag)
                cross join lateral (
                      select w.available_at, w.id
                        from worker_queue as w
                       where w.tag = t.tag
                         and w.session_id = s.session_id
                         and w.available_at <= p_now
                       order by w.available_at, w.id
                       limit 1) as w
                order by w.available_at, w.id
                limit 1) as h on true
    loop
        v_visits := v_visits + 1;
        v_last := v_visit.session_id;
        if v_visit.id is not null then
            v_found := v_found + 1;
            tag := v_visit.tag;
            session_id := v_visit.session_id;
            available_at := v_visit.available_at;
            id := v_visit.id;
            return next;
            exit when v_found >= p_enough;
        end if;
    end loop;
    tag := '@';
    -- After the last of them comes the first.
    session_id := case when v_visits < c_max_own_visits and v_found < p_enough then '' else v_last end;
    available_at := null;
    id := null;
    complete := true;
    return next;
end
$$;
