-- Milliseconds since the epoch as a timestamp, to the millisecond; infinity beyond the year 9999.
-- Has no SET clause, so that the planner can inline it.
create or replace function timestamp_from_ms(p_ms bigint) returns timestamptz
language sql immutable parallel safe
as $$
    select case
             when p_ms > 253402300799999 then timestamptz 'infinity'
             else to_timestamp(p_ms / 1000.0::double precision)
           end
$$;
