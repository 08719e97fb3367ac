-- Puts activities into the worker queue, visible at once. Durable before it returns. Locks: none.
create or replace function enqueue_for_worker(
    p_instance_ids  text[],
    p_execution_ids bigint[],
    p_activity_ids  bigint[],
    p_tags          text[],
    p_sessions      text[],
    p_work_items    text[]
) returns void
language plpgsql
as $$
begin
    insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item)
    select t.instance_id, t.execution_id, t.activity_id, clock_timestamp(), t.tag, t.session_id, t.work_item
      from unnest(p_instance_ids, p_execution_ids, p_activity_ids, p_tags, p_sessions, p_work_items)
           as t (instance_id, execution_id, activity_id, tag, session_id, work_item);
end
$$
security definer
set search_path from current
set jit = off;
