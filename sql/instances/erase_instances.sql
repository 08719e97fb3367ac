-- Deletes everything about these instances, which the caller has locked and checked.
-- Locks: worker rows by key, then executions by key.
create or replace function erase_instances(p_instance_ids text[])
returns table (
    instances_deleted      bigint,
    executions_deleted     bigint,
    events_deleted         bigint,
    queue_messages_deleted bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_count bigint;
begin
    delete from orchestrator_queue as q where q.instance_id = any (p_instance_ids);
    get diagnostics queue_messages_deleted = row_count;
    perform from worker_queue as w
      where w.instance_id = any (p_instance_ids)
      order by w.instance_id, w.execution_id, w.activity_id, w.id
        for update;
    delete from worker_queue as w where w.instance_id = any (p_instance_ids);
    get diagnostics v_count = row_count;
    queue_messages_deleted := queue_messages_deleted + v_count;
    -- Before their history, as pruning does.
    perform from executions as e
      where e.instance_id = any (p_instance_ids)
      order by e.instance_id, e.execution_id
        for update;
    perform set_config('duroxide_postgres.erasing', 'on', true);
    delete from history as h where h.instance_id = any (p_instance_ids);
    get diagnostics events_deleted = row_count;
    perform set_config('duroxide_postgres.erasing', 'off', true);
    delete from executions as e where e.instance_id = any (p_instance_ids);
    get diagnostics executions_deleted = row_count;
    delete from kv_store as k where k.instance_id = any (p_instance_ids);
    delete from kv_delta as k where k.instance_id = any (p_instance_ids);
    delete from instances as i where i.instance_id = any (p_instance_ids);
    get diagnostics instances_deleted = row_count;
    queue_messages_deleted := queue_messages_deleted
        + (select count(*) from mailboxes as m where m.instance_id = any (p_instance_ids) and m.start_item is not null);
    delete from mailboxes as m where m.instance_id = any (p_instance_ids);
    return next;
end
$$
set search_path from current
set enable_seqscan = off;
