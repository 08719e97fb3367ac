-- Messages and activities that nobody holds, visible or not.
create or replace function get_queue_depths()
returns table (orchestrator_queue bigint, worker_queue bigint)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := clock_timestamp();
begin
    return query
    select (select count(*) from orchestrator_queue)
               - (select coalesce(sum(cardinality(m.claimed_ids)), 0)::bigint
                    from mailboxes as m
                   where m.available_at > v_now
                     and m.available_at < 'infinity'
                     and m.lease is not null
                     and m.start_item is null)
               -- Those in their mailboxes whose leases have expired: reads what is due.
               + (select count(m.start_item)
                    from mailboxes as m
                   where m.available_at <= v_now),
           (select count(*) from worker_queue)
               - (select count(*)
                    from worker_tags() as t
                    join worker_queue as w
                      on w.tag = t.tag
                     and w.available_at > v_now
                     and w.lease is not null);
end
$$
security definer
set search_path from current
set enable_seqscan = off
set jit = off;
