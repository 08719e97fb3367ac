-- The parent of an instance, NULL for a root. Raises DX003 when the instance does not exist.
create or replace function get_parent_id(p_instance_id text) returns text
language plpgsql stable
as $$
declare
    v_parent text;
begin
    select i.parent_instance_id into v_parent from instances as i where i.instance_id = p_instance_id;
    if not found then
        raise exception 'Instance "%" not found', p_instance_id using errcode = 'DX003';
    end if;
    return v_parent;
end
$$
security definer
set search_path from current
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
