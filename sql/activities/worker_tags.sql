-- Every tag in the worker queue, found by hopping through the index: the cost grows with the tags, not with the rows.
-- Has no SET clause, so that the planner can inline it.
create or replace function worker_tags() returns table (tag text)
language sql stable
as $$
    with recursive hop (tag) as (
        (select w.tag from worker_queue as w order by w.tag limit 1)
        union all
        select n.tag
          from hop as h
         cross join lateral (select w.tag from worker_queue as w where w.tag > h.tag order by w.tag limit 1) as n
    )
    select h.tag from hop as h
$$;
