-- Due items of sessions that p_owner_id may serve, the first of each.
-- Of those it owns, the c_enough that wait longest: that costs a visit for each it owns.
-- Of those that nobody owns: each tag's sessions are visited in the order of their ids, from where the last visit
-- ended (p_cursors) and round once, until c_enough were found or as many visits were made as other work allows
-- (p_busy: there is some): so every session has its turn, and a fetch costs the same however many others have.
-- A row with id NULL tells where the visit of a tag ended, and whether it went all the way round.
create or replace function session_heads(
    p_tags         text[],
    p_owner_id     text,
    p_cursor_tags  text[],
    p_cursors      text[],
    p_now          timestamptz,
    p_busy         boolean
) returns table (tag text, session_id text, available_at timestamptz, id bigint, complete boolean)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_enough      constant integer := 4;
    c_visits      constant integer := 200;
    c_visits_busy constant integer := 8;
    v_max_visits  integer;
    v_tag         text;
    v_start       text;
    v_session     text;
    v_next        text;
    v_wrapped     boolean;
    v_found       integer;
    v_visits      integer;
begin
    return query
        select h.tag, h.session_id, h.available_at, h.id, true
          from unnest(p_tags) as t (tag)
         cross join sessions as s
         cross join lateral (
               select w.tag, w.session_id, w.available_at, w.id
                 from worker_queue as w
                where w.tag = t.tag
                  and w.session_id = s.session_id
                  and w.available_at <= p_now
                order by w.available_at, w.id
                limit 1) as h
         where s.owner_id = p_owner_id
           and s.locked_until > p_now
         order by h.available_at, h.id
         limit c_enough;
    v_max_visits := case when p_busy or found then c_visits_busy else c_visits end;

    foreach v_tag in array p_tags loop
        v_start := coalesce(p_cursors[array_position(p_cursor_tags, v_tag)], '');
        v_session := v_start;
        v_wrapped := v_start = '';
        v_found := 0;
        v_visits := 0;
        complete := false;
        while v_found < c_enough and v_visits < v_max_visits loop
            select w.session_id
              into v_next
              from worker_queue as w
             where w.tag = v_tag
               and w.session_id > v_session
             order by w.session_id
             limit 1;
            if not found and not v_wrapped then
                v_wrapped := true;
                v_session := '';
                continue;
            end if;
            -- All the way round.
            if v_next is null or (v_wrapped and v_start <> '' and v_next > v_start) then
                complete := true;
                exit;
            end if;
            v_session := v_next;
            v_visits := v_visits + 1;
            if not exists (select from sessions as s
                            where s.session_id = v_session
                              and s.locked_until > p_now) then
                select w.tag, w.session_id, w.available_at, w.id
                  into tag, session_id, available_at, id
                  from worker_queue as w
                 where w.tag = v_tag
                   and w.session_id = v_session
                   and w.available_at <= p_now
                 order by w.available_at, w.id
                 limit 1;
                if found then
                    v_found := v_found + 1;
                    return next;
                end if;
            end if;
        end loop;
        if v_visits > 0 then
            tag := v_tag;
            session_id := v_session;
            available_at := null;
            id := null;
            return next;
        end if;
    end loop;
end
$$;
