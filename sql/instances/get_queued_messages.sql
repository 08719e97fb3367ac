-- What waits in the queue of an instance: how many messages, and for how long the one that starts it has been due; negative
-- if it is not yet, NULL if there is none.
-- An instance that was started and has had no turn is nothing else yet.
create or replace function get_queued_messages(p_instance_id text)
returns table (messages bigint, start_waits_ms bigint)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    select count(*), floor(extract(epoch from clock_timestamp() - min(q.visible_at) filter (where q.kind = 's')) * 1000)::bigint
      from (select o.visible_at, o.kind
              from orchestrator_queue as o
             where o.instance_id = p_instance_id
            union all
            select m.claimed_until, 's'
              from mailboxes as m
             where m.instance_id = p_instance_id
               and m.start_item is not null) as q;
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
