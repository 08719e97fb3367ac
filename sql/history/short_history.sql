-- The events of an execution up to one of them, in order; NULL where they are too many or too large to be sent unasked.
-- Stable: it sees what the statement sees that calls it.
create or replace function short_history(p_instance_id text, p_execution_id bigint, p_event_id bigint) returns text[]
language plpgsql stable
as $$
declare
    c_max_events constant bigint := 64::bigint;
    c_max_bytes  constant bigint := 16384::bigint;
begin
    if p_event_id > c_max_events then
        return null;
    end if;
    -- Their sizes first: what is stored apart is not fetched for that.
    if (select sum(octet_length(h.event_data))
          from history as h
         where h.instance_id = p_instance_id
           and h.execution_id = p_execution_id
           and h.event_id <= p_event_id) > c_max_bytes then
        return null;
    end if;
    return array(select h.event_data
                   from history as h
                  where h.instance_id = p_instance_id
                    and h.execution_id = p_execution_id
                    and h.event_id <= p_event_id
                  order by h.event_id);
end
$$;
