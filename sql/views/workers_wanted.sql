-- How many workers the present backlog keeps busy: for autoscalers, which compare it with how many there are.
-- A turn or an activity counts while somebody holds it, once it is due, and p_ahead_ms before that (a worker takes time to
-- start); idle instances and later timers do not, so this goes down to 0.
-- p_turns, p_activities: how many of each a worker runs at once (duroxide: orchestration_concurrency, worker_concurrency).
create or replace function workers_wanted(
    p_turns      integer default 2,
    p_activities integer default 2,
    p_ahead_ms   bigint default 0
) returns integer
language plpgsql stable
as $$
declare
    v_until constant timestamptz := clock_timestamp() + p_ahead_ms * interval '1 millisecond';
    v_turns          bigint;
    v_activities     bigint;
begin
    if (p_turns > 0 and p_activities > 0 and p_ahead_ms >= 0) is not true then
        raise exception 'a worker runs at least one turn and one activity, and p_ahead_ms is not negative'
            using errcode = '22023';
    end if;
    select count(*) into v_turns
      from mailboxes as m
     where m.available_at < 'infinity'
       and (m.available_at <= v_until or m.lease is not null);
    select count(*) into v_activities
      from worker_queue as w
     where w.available_at <= v_until
        or w.lease is not null;
    return greatest(ceil(v_turns::numeric / p_turns), ceil(v_activities::numeric / p_activities))::integer;
end
$$
security definer
set search_path from current
set jit = off;
