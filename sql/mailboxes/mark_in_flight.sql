-- Announces, until this transaction ends, that messages for these instances are under way.
-- From here on none of their mailboxes can go idle unseen: see next_available_at.
-- Locks: shared advisory locks, in key order. Waits only for transactions that wait for nobody.
create or replace function mark_in_flight(p_instance_ids text[]) returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock_shared(schema_key(), k.key)
       from (select distinct mailbox_key(i.instance_id) as key
               from unnest(p_instance_ids) as i (instance_id)
              order by 1) as k;
end
$$
set search_path from current;
