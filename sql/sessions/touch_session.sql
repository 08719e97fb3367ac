-- Notes that a session is in use, unless it has passed to nobody.
-- Locks: the session.
create or replace function touch_session(p_session_id text, p_now timestamptz) returns void
language plpgsql
as $$
begin
    update sessions as s
       set last_activity_at = p_now
     where s.session_id = p_session_id
       and s.locked_until > p_now;
end
$$;
