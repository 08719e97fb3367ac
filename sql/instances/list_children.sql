-- The direct children of an instance.
create or replace function list_children(p_instance_id text) returns text[]
language plpgsql stable
as $$
begin
    return array(select i.instance_id
                   from instances as i
                  where i.parent_instance_id = p_instance_id
                  order by i.instance_id);
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
