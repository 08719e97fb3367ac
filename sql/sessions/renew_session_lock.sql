-- Extends the sessions of these owners that are still held and were used within p_idle_timeout_ms.
-- Returns how many.
-- Locks: the sessions, by session id. Raises DX007.
create or replace function renew_session_lock(
    p_owner_ids       text[],
    p_extend_ms       bigint,
    p_idle_timeout_ms bigint
) returns bigint
language plpgsql
as $$
declare
    v_ids   text[];
    v_now   timestamptz;
    v_count bigint;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    v_ids := array(select s.session_id
                     from sessions as s
                    where s.owner_id = any (p_owner_ids)
                      and s.locked_until > clock_timestamp()
                      and s.last_activity_at > clock_timestamp() - p_idle_timeout_ms * interval '1 ms'
                    order by s.session_id
                      for update);
    -- The clock is read after the locks: a session that expired meanwhile stays expired.
    v_now := clock_timestamp();
    update sessions as s
       set locked_until = v_now + p_extend_ms * interval '1 ms'
     where s.session_id = any (v_ids)
       and s.owner_id = any (p_owner_ids)
       and s.locked_until > v_now
       and s.last_activity_at > v_now - p_idle_timeout_ms * interval '1 ms';
    get diagnostics v_count = row_count;
    return v_count;
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
