-- The given instances and all their descendants, parents before children; an id that does not exist
-- is a tree of its own.
create or replace function get_instance_tree(p_instance_ids text[]) returns text[]
language plpgsql stable
as $$
begin
    return array(
        with recursive tree (instance_id, depth) as (
            select distinct t.instance_id collate "C", 0
              from unnest(p_instance_ids) as t (instance_id)
            union all
            select c.instance_id, t.depth + 1
              from tree as t
             cross join lateral (
                   select i.instance_id
                     from instances as i
                    where i.parent_instance_id = t.instance_id
                    -- A fence: as a join it would read all children there are where the statistics know one parent.
                   offset 0) as c
        ) cycle instance_id set is_cycle using path
        select t.instance_id
          from tree as t
         where not t.is_cycle
         group by t.instance_id
         order by min(t.depth), t.instance_id);
end
$$
security definer
set search_path from current
set enable_seqscan = off
set jit = off;
