-- All events of the latest execution of each given instance, in order; one row an instance, in the order given. Also its custom status,
-- which is asked for next more often than not: version NULL if there is no instance, -1 if the status is too large to be sent unasked.
-- Of a history that the caller has in memory (its epoch, execution and last event) only later events are returned,
-- unless it has changed other than by appending, or this server does not know that event: cached_event_id says what the answer adds to, 0 when it is complete.
create or replace function read(
    p_instance_ids  text[],
    p_epochs        bigint[],
    p_execution_ids bigint[],
    p_event_ids     bigint[],
    p_event_data    text[]
) returns table (
    history_epoch         bigint,
    execution_id          bigint,
    cached_event_id       bigint,
    history               text[],
    custom_status         text,
    custom_status_version bigint
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_max_status_bytes constant integer := 1024;
begin
    if cardinality(p_instance_ids) = 1 then
        -- The usual case, in small statements. The function is stable: they all see the same.
        select m.history_epoch into history_epoch from mailboxes as m where m.instance_id = p_instance_ids[1];
        select e.execution_id
          into execution_id
          from executions as e
         where e.instance_id = p_instance_ids[1]
         order by e.execution_id desc
         limit 1;
        execution_id := coalesce(execution_id, 1);
        cached_event_id := 0;
        if history_epoch = p_epochs[1] and execution_id = p_execution_ids[1]
           and exists (select from history as h
                        where h.instance_id = p_instance_ids[1]
                          and h.execution_id = p_execution_ids[1]
                          and h.event_id = p_event_ids[1]
                          and h.event_data = p_event_data[1]) then
            cached_event_id := p_event_ids[1];
        end if;
        select array_agg(e.event_data)
          into history
          from (select h.event_data
                  from history as h
                 where h.instance_id = p_instance_ids[1]
                   and h.execution_id = read.execution_id
                   and h.event_id > read.cached_event_id
                 order by h.event_id) as e;
        select case when octet_length(i.custom_status) <= c_max_status_bytes then i.custom_status end,
               case when octet_length(i.custom_status) > c_max_status_bytes then -1 else i.custom_status_version end
          into custom_status, custom_status_version
          from instances as i
         where i.instance_id = p_instance_ids[1];
        return next;
        return;
    end if;
    return query
    select m.history_epoch, l.execution_id, c.event_id,
           (select array_agg(e.event_data)
              from (select h.event_data
                      from history as h
                     where h.instance_id = t.instance_id
                       and h.execution_id = l.execution_id
                       and h.event_id > c.event_id
                     order by h.event_id) as e),
           case when octet_length(i.custom_status) <= c_max_status_bytes then i.custom_status end,
           case when octet_length(i.custom_status) > c_max_status_bytes then -1 else i.custom_status_version end
      from unnest(p_instance_ids, p_epochs, p_execution_ids, p_event_ids, p_event_data)
           with ordinality as t (instance_id, epoch, execution_id, event_id, event_data, position)
      left join lateral (select b.history_epoch from mailboxes as b where b.instance_id = t.instance_id offset 0) as m on true
      left join lateral (
           select n.custom_status, n.custom_status_version from instances as n where n.instance_id = t.instance_id
           offset 0) as i on true
     cross join lateral (
           select coalesce((select e.execution_id
                              from executions as e
                             where e.instance_id = t.instance_id
                             order by e.execution_id desc
                             limit 1), 1) as execution_id
           -- Computed once, not wherever it is used.
           offset 0) as l
     cross join lateral (
           select case when m.history_epoch = t.epoch and l.execution_id = t.execution_id
                        and exists (select from history as h
                                     where h.instance_id = t.instance_id
                                       and h.execution_id = t.execution_id
                                       and h.event_id = t.event_id
                                       and h.event_data = t.event_data)
                       then t.event_id else 0 end as event_id
           offset 0) as c
     order by t.position;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off;
