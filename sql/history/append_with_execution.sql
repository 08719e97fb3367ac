-- Adds events to an execution, without a turn. Durable before it returns. Their ids may lie before others, so nobody's
-- memory of the history counts any more.
-- Locks: the mailbox.
-- Raises 23505 on history_pkey (an event id that exists).
create or replace function append_with_execution(
    p_instance_id  text,
    p_execution_id bigint,
    p_event_ids    bigint[],
    p_event_data   text[]
) returns void
language plpgsql
as $$
begin
    insert into history (instance_id, execution_id, event_id, event_data)
    select p_instance_id, p_execution_id, t.event_id, t.event_data
      from unnest(p_event_ids, p_event_data) as t (event_id, event_data);
    update mailboxes as m
       set history_epoch = default,
           cached_by = null
     where m.instance_id = p_instance_id;
end
$$
security definer
set search_path from current;
