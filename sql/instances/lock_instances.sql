-- Keeps turns, enqueuers and new children away from these instances until this transaction ends.
-- Locks: exclusive advisory locks in key order, then the mailboxes by instance id; waits for both.
-- Nobody waits for such an advisory lock while holding a row, so this cannot deadlock.
create or replace function lock_instances(p_instance_ids text[]) returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(schema_key(), k.key)
       from (select distinct mailbox_key(t.instance_id) as key
               from unnest(p_instance_ids) as t (instance_id)
              order by 1) as k;
    perform from mailboxes as m
      where m.instance_id = any (p_instance_ids)
      order by m.instance_id
        for update;
end
$$
set search_path from current;
