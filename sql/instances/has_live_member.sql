-- Whether one of these instances is running, or between two executions.
create or replace function has_live_member(p_instance_ids text[]) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from unnest(p_instance_ids) as t (instance_id)
                     join instances as i on i.instance_id = t.instance_id
                     join executions as e
                       on e.instance_id = i.instance_id
                      and e.execution_id = i.current_execution_id
                    where e.status in ('Running', 'ContinuedAsNew'));
end
$$
set search_path from current
set enable_seqscan = off
set enable_hashjoin = off;
