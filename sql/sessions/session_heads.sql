-- Due items of sessions that p_owner_id may serve: all sessions it owns, and up to p_limit that nobody owns,
-- each with its first due item. Unowned sessions are looked for in the order of their ids after p_after,
-- wrapping around, so that callers that pass on last_visited serve every session in its turn; at most
-- p_max_visits sessions of other owners are passed over.
create or replace function session_heads(
    p_tags       text[],
    p_owner_id   text,
    p_after      text,
    p_now        timestamptz,
    p_limit      integer,
    p_max_visits integer
) returns table (tag text, session_id text, available_at timestamptz, id bigint)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_tag     text;
    v_session text;
    v_found   integer := 0;
    v_visits  integer := 0;
    v_wrapped boolean;
begin
    return query
    select h.tag, h.session_id, h.available_at, h.id
      from sessions as s
     cross join unnest(p_tags) as t (tag)
     cross join lateral (
           select w.tag, w.session_id, w.available_at, w.id
             from worker_queue as w
            where w.tag = t.tag
              and w.session_id = s.session_id
              and w.available_at <= p_now
            order by w.available_at, w.id
            limit 1) as h
     where s.owner_id = p_owner_id
       and s.locked_until > p_now;

    foreach v_tag in array p_tags loop
        v_session := greatest(p_after, '');
        v_wrapped := v_session = '';
        loop
            exit when v_found >= p_limit or v_visits >= p_max_visits;
            select w.session_id
              into v_session
              from worker_queue as w
             where w.tag = v_tag
               and w.session_id > v_session
             order by w.session_id
             limit 1;
            if not found then
                exit when v_wrapped;
                v_wrapped := true;
                v_session := '';
                continue;
            end if;
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
    end loop;
end
$$
set search_path from current;
