-- A timestamp as whole milliseconds since the epoch.
-- Has no SET clause, so that the planner can inline it.
create or replace function ms_from_timestamp(p_at timestamptz) returns bigint
language sql immutable parallel safe
as $$ select floor(extract(epoch from p_at) * 1000)::bigint $$;
