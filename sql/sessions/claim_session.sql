-- Makes p_owner_id the owner of a session that it owns already or that nobody owns; false if it cannot
-- be had right now.
-- Locks: tries an advisory lock and the session's row, and re-checks under them. Never waits for a holder.
create or replace function claim_session(
    p_session_id      text,
    p_owner_id        text,
    p_lock_timeout_ms bigint
) returns boolean
language plpgsql
as $$
declare
    v_session sessions;
    v_now     timestamptz;
begin
    -- Two claims of a session that has no row yet meet here.
    if not pg_try_advisory_xact_lock(schema_key(), hashtext('session:' || p_session_id)) then
        return false;
    end if;
    select s.* into v_session from sessions as s where s.session_id = p_session_id for update skip locked;
    v_now := clock_timestamp();
    if not found then
        insert into sessions (session_id, owner_id, locked_until, last_activity_at)
        select p_session_id, p_owner_id, v_now + p_lock_timeout_ms * interval '1 ms', v_now
         where not exists (select from sessions as s where s.session_id = p_session_id)
            on conflict (session_id) do nothing;
        return found;
    end if;
    if v_session.locked_until > v_now and v_session.owner_id <> p_owner_id then
        return false;
    end if;
    update sessions as s
       set owner_id = p_owner_id,
           locked_until = v_now + p_lock_timeout_ms * interval '1 ms',
           last_activity_at = v_now
     where s.session_id = p_session_id;
    return true;
end
$$;
