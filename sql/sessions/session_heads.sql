-- Due items of sessions that p_owner_id may serve, the first of each: sessions it owns, and sessions that nobody owns.
-- Each tag's sessions are visited in the order of their ids, from where the last visit ended (p_cursors) and
-- round once, until c_enough were found or p_max_visits were made: so every session has its turn, and a fetch
-- costs the same however many there are. A row with id NULL tells where the visit of a tag ended, and whether
-- it went all the way round.
create or replace function session_heads(
    p_tags         text[],
    p_owner_id     text,
    p_cursor_tags  text[],
    p_cursors      text[],
    p_now          timestamptz,
    p_max_visits   integer
) returns table (tag text, session_id text, available_at timestamptz, id bigint, complete boolean)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_enough  constant integer := 4;
    v_tag     text;
    v_start   text;
    v_session text;
    v_next    text;
    v_wrapped boolean;
    v_found   integer;
    v_visits  integer;
begin
    foreach v_tag in array p_tags loop
        v_start := coalesce(p_cursors[array_position(p_cursor_tags, v_tag)], '');
        v_session := v_start;
        v_wrapped := v_start = '';
        v_found := 0;
        v_visits := 0;
        complete := false;
        while v_found < c_enough and v_visits < p_max_visits loop
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
                              and s.locked_until > p_now
                              and s.owner_id <> p_owner_id) then
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
