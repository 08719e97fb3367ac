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
      from orchestrator_queue as q
     where q.instance_id = p_instance_id;
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
