-- Removes sessions that nobody holds and no activity waits for. Returns how many.
-- Locks: the sessions it removes, SKIP LOCKED: one that is being claimed is no orphan. Raises DX007.
create or replace function cleanup_orphaned_sessions() returns bigint
language plpgsql
as $$
declare
    v_ids   text[];
    v_count bigint;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    v_ids := array(select s.session_id
                     from sessions as s
                    where s.locked_until < clock_timestamp()
                      and not exists (select from worker_tags() as t
                                       cross join lateral (select from worker_queue as w
                                                            where w.tag = t.tag
                                                              and w.session_id = s.session_id
                                                            limit 1) as w)
                    order by s.session_id
                      for update of s skip locked);
    -- An activity enqueued since makes the session anew when it is fetched.
    delete from sessions as s where s.session_id = any (v_ids);
    get diagnostics v_count = row_count;
    return v_count;
end
$$
security definer
set search_path from current
set jit = off;
