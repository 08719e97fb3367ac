-- Each instance with the state of its current execution: what runs, since when, and what became of it. No payloads.
-- age: since it was created. duration: of the current execution, until now while it runs.
create or replace view instance_status as
select i.instance_id,
       i.orchestration_name,
       i.orchestration_version,
       coalesce(e.status, 'Unknown') as status,
       i.current_execution_id as execution_id,
       i.parent_instance_id,
       i.created_at,
       greatest(i.updated_at, e.started_at, e.completed_at) as updated_at,
       e.started_at,
       e.completed_at,
       statement_timestamp() - i.created_at as age,
       coalesce(e.completed_at, statement_timestamp()) - e.started_at as duration
  from instances as i
  left join executions as e
    on e.instance_id = i.instance_id
   and e.execution_id = i.current_execution_id;
