-- What read would say of an instance's history, where that is cheap to tell: what p_node, a process, has in memory, or all of
-- it if another process has and it is short. All columns NULL otherwise.
-- Stable: it sees what the statement sees that calls it.
create or replace function history_along(
    p_instance_id            text,
    p_node                   uuid,
    out history_epoch        bigint,
    out history_execution_id bigint,
    out cached_event_id      bigint,
    out history              text[]
)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_max_events constant bigint := 32::bigint;
    c_max_bytes  constant bigint := 8192::bigint;
    v_box        record;
    v_size       record;
begin
    -- Where nobody is known to have it in memory, nothing is known of it.
    select m.history_epoch, m.cached_by, m.cached_execution_id, m.cached_event_id
      into v_box
      from mailboxes as m
     where m.instance_id = p_instance_id
       and m.cached_by is not null
       and m.cached_event_id is not null
       and m.cached_execution_id = coalesce((select e.execution_id
                                               from executions as e
                                              where e.instance_id = p_instance_id
                                              order by e.execution_id desc
                                              limit 1), 1);
    if not found or p_node is null then
        return;
    end if;
    if v_box.cached_by = p_node then
        -- Events that were added by hand come after what is in memory.
        if exists (select from history as h
                    where h.instance_id = p_instance_id
                      and h.execution_id = v_box.cached_execution_id
                      and h.event_id > v_box.cached_event_id) then
            return;
        end if;
        cached_event_id := v_box.cached_event_id;
    else
        if v_box.cached_event_id > c_max_events then
            return;
        end if;
        -- Their sizes first: what is stored apart is not fetched for that.
        select count(*) as events, sum(octet_length(h.event_data)) as bytes
          into v_size
          from history as h
         where h.instance_id = p_instance_id
           and h.execution_id = v_box.cached_execution_id;
        if v_size.events > c_max_events or v_size.bytes > c_max_bytes then
            return;
        end if;
        cached_event_id := 0;
        history := array(select h.event_data
                           from history as h
                          where h.instance_id = p_instance_id
                            and h.execution_id = v_box.cached_execution_id
                          order by h.event_id);
    end if;
    history_epoch := v_box.history_epoch;
    history_execution_id := v_box.cached_execution_id;
end
$$;
