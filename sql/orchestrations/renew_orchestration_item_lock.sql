-- Extends a lease that has not ended yet; one that has expired stays expired.
-- Locks: the mailbox. Raises DX001 (lease lost), DX007.
create or replace function renew_orchestration_item_lock(
    p_instance_id text,
    p_lease       uuid,
    p_extend_ms   bigint
) returns void
language plpgsql
as $$
declare
    v_box mailboxes;
begin
    perform require_read_committed();
    perform set_config('synchronous_commit', 'off', true);

    select m.* into v_box from mailboxes as m where m.instance_id = p_instance_id for update;
    if v_box.lease is distinct from p_lease or v_box.available_at <= clock_timestamp() then
        raise exception 'Invalid lock token: the lease on instance "%" has expired or is held by somebody else', p_instance_id
            using errcode = 'DX001';
    end if;

    update mailboxes as m
       set available_at = clock_timestamp() + p_extend_ms * interval '1 ms'
     where m.instance_id = p_instance_id;
end
$$
security definer
set search_path from current
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off;
