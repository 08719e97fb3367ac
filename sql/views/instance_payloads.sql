-- What the current execution of each instance said of itself, and what it ended with. U+0001 '0' stands for U+0000 and
-- U+0001 '1' for U+0001.
create or replace view instance_payloads as
select i.instance_id, i.current_execution_id as execution_id, i.custom_status, e.output
  from instances as i
  left join executions as e
    on e.instance_id = i.instance_id
   and e.execution_id = i.current_execution_id;
