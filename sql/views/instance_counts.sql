-- How many instances are running, completed and failed. A completed or failed execution is the last of its instance, so
-- executions by status, which are in an index, count instances.
create or replace view instance_counts as
select s.status, (select count(*) from executions as e where e.status = s.status) as instances
  from (values ('Running'), ('Completed'), ('Failed')) as s (status);
