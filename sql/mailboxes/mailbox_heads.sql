-- The earliest due time of each version that fits the range (-1, unpinned, fits every range), found by
-- hopping from version to version in the index: the cost grows with the versions, not with the mailboxes.
-- Has no SET clause, so that the planner can inline it.
create or replace function mailbox_heads(p_min_version bigint, p_max_version bigint)
returns table (version bigint, available_at timestamptz)
language sql stable
as $$
    with recursive head (version, available_at) as (
        (select m.pinned_version, m.available_at
           from mailboxes as m
          where m.available_at < 'infinity'
          order by m.pinned_version, m.available_at
          limit 1)
        union all
        select n.pinned_version, n.available_at
          from head as h
         cross join lateral (
               select m.pinned_version, m.available_at
                 from mailboxes as m
                where m.pinned_version > greatest(h.version, p_min_version - 1)
                  and m.pinned_version <= p_max_version
                  and m.available_at < 'infinity'
                order by m.pinned_version, m.available_at
                limit 1) as n
    )
    select h.version, h.available_at
      from head as h
     where h.version = -1
        or h.version between p_min_version and p_max_version
$$;
