-- What read would say of an instance's history, where that is cheap to tell: what p_node, a process, has in memory, or all of
-- it if another process has and it is short. No row otherwise: where nobody is known to have it in memory, nothing is known of it.
-- Has no SET clause, so that the planner can inline it: then it costs part of a statement instead of a call and three.
create or replace function history_along(p_instance_id text, p_node uuid)
returns table (
    history_epoch        bigint,
    history_execution_id bigint,
    cached_event_id      bigint,
    history              text[]
)
language sql stable
as $$
    select m.history_epoch, m.cached_execution_id,
           case when m.cached_by = p_node then m.cached_event_id else 0 end,
           case when m.cached_by <> p_node
                then array(select h.event_data
                             from history as h
                            where h.instance_id = m.instance_id
                              and h.execution_id = m.cached_execution_id
                            order by h.event_id) end
      from mailboxes as m
     where m.instance_id = p_instance_id
       and p_node is not null
       and m.cached_by is not null
       and m.cached_event_id is not null
       and m.cached_execution_id = coalesce((select e.execution_id
                                               from executions as e
                                              where e.instance_id = p_instance_id
                                              order by e.execution_id desc
                                              limit 1), 1)
       and case when m.cached_by = p_node
                -- Events that were added by hand come after what is in memory.
                then not exists (select from history as h
                                  where h.instance_id = m.instance_id
                                    and h.execution_id = m.cached_execution_id
                                    and h.event_id > m.cached_event_id)
                -- Their sizes first: what is stored apart is not fetched for that.
                else m.cached_event_id <= 32
                     and (select count(*) <= 32 and sum(octet_length(h.event_data)) <= 8192
                            from history as h
                           where h.instance_id = m.instance_id
                             and h.execution_id = m.cached_execution_id) end
     -- A query of its own, also when inlined: the mailbox is looked up by its key.
     limit 1
$$;
