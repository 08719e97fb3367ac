-- How many whole milliseconds from p_from to p_to, rounded up, at least 0; NULL if p_to is infinity.
-- Has no SET clause, so that the planner can inline it.
create or replace function ms_between(p_from timestamptz, p_to timestamptz) returns bigint
language sql immutable parallel safe
as $$ select case when p_to < 'infinity' then greatest(0, ceil(extract(epoch from p_to - p_from) * 1000)::bigint) end $$;
