-- Locks activities, given by their instances, executions and ids; with p_leases only those that are leased so. Returns where
-- their rows are: the statement that changes them finds them there, whatever the planner believes of the queue (sql/README.md, "Plans").
-- Locks: worker rows, in the order of their keys.
create or replace function lock_work_items(
    p_instance_ids  text[],
    p_execution_ids bigint[],
    p_activity_ids  bigint[],
    p_leases        uuid[] default null
) returns tid[]
language sql
as $$
    select array(select w.ctid
                   from (select u.instance_id, u.execution_id, u.activity_id
                           from unnest(p_instance_ids, p_execution_ids, p_activity_ids) as u (instance_id, execution_id, activity_id)
                          order by u.instance_id collate "C", u.execution_id, u.activity_id) as t
                  cross join lateral (
                        select w.ctid
                          from worker_queue as w
                         where w.instance_id = t.instance_id
                           and w.execution_id = t.execution_id
                           and w.activity_id = t.activity_id
                           and (p_leases is null or w.lease = any (p_leases))
                         order by w.id
                           for update) as w)
$$;
