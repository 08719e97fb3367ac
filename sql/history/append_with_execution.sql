-- Adds events to an execution, without a turn. Durable before it returns.
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
end
$$
security definer
set search_path from current;
