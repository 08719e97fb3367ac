-- When an unleased mailbox, locked by the caller, is due: its earliest message visible after p_after,
-- infinity when there is none. "None" counts only with proof that no enqueuer is in flight, and the
-- proof holds until the caller commits; without it the mailbox is due now and will be looked at again.
-- Locks: tries the exclusive advisory lock, never waits.
create or replace function next_available_at(
    p_instance_id text,
    p_after       timestamptz default '-infinity'
) returns timestamptz
language plpgsql
as $$
declare
    v_next timestamptz;
begin
    if not pg_try_advisory_xact_lock(schema_key(), mailbox_key(p_instance_id)) then
        return clock_timestamp();
    end if;
    -- A statement of its own: only a snapshot taken after the lock sees what in-flight enqueuers committed.
    select q.visible_at
      into v_next
      from orchestrator_queue as q
     where q.instance_id = p_instance_id
       and q.visible_at > p_after
     order by q.visible_at
     limit 1;
    return coalesce(v_next, 'infinity');
end
$$;
