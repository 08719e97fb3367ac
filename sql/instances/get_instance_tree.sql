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
            select i.instance_id, t.depth + 1
              from tree as t
              join instances as i on i.parent_instance_id = t.instance_id
        ) cycle instance_id set is_cycle using path
        select t.instance_id
          from tree as t
         where not t.is_cycle
         group by t.instance_id
         order by min(t.depth), t.instance_id);
end
$$
security definer
set search_path from current;
