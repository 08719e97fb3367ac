-- By orchestration name: how many run, and what ended within the last minute and the last hour.
-- ended_…: completed, failed or continued as new. average_duration: of the executions that ended within the hour.
-- Reads the running executions and those of the last hour, not the others.
create or replace view orchestration_throughput as
select i.orchestration_name,
       count(*) filter (where e.status = 'Running') as running,
       count(*) filter (where e.status = 'Completed' and e.completed_at > statement_timestamp() - interval '1 minute')
           as completed_last_minute,
       count(*) filter (where e.status = 'Failed' and e.completed_at > statement_timestamp() - interval '1 minute')
           as failed_last_minute,
       count(*) filter (where e.completed_at > statement_timestamp() - interval '1 minute') as ended_last_minute,
       count(*) filter (where e.status = 'Completed') as completed_last_hour,
       count(*) filter (where e.status = 'Failed') as failed_last_hour,
       count(*) filter (where e.status <> 'Running') as ended_last_hour,
       avg(e.completed_at - e.started_at) as average_duration
  from (select r.instance_id, r.status, r.started_at, null::timestamptz as completed_at
          from executions as r
         where r.status = 'Running'
        union all
        select r.instance_id, r.status, r.started_at, r.completed_at
          from executions as r
         where r.status in ('Completed', 'Failed', 'ContinuedAsNew')
           and r.completed_at > statement_timestamp() - interval '1 hour') as e
  join instances as i on i.instance_id = e.instance_id
 group by i.orchestration_name;
