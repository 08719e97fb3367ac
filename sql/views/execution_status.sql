-- Each execution of each instance: an instance that continues as new has many. No payloads.
-- is_current: the latest one, which pruning never takes. duration: until now while it runs.
create or replace view execution_status as
select e.instance_id,
       e.execution_id,
       e.execution_id = i.current_execution_id as is_current,
       e.status,
       e.started_at,
       e.completed_at,
       coalesce(e.completed_at, statement_timestamp()) - e.started_at as duration
  from executions as e
  join instances as i on i.instance_id = e.instance_id;
