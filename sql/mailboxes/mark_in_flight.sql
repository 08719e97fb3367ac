-- Announces, until this transaction ends, that messages for these instances are under way: from here on none
-- of their mailboxes can go idle unseen (see next_available_at). False if there are too many for the server's
-- lock table: then the caller must lock the mailboxes themselves, which serves the same end at a higher price.
-- Locks: shared advisory locks, in key order. Waits only for transactions that wait for nobody.
create or replace function mark_in_flight(p_instance_ids text[]) returns boolean
language plpgsql
as $$
declare
    c_max_marks constant integer := 256;
    v_one       integer;
    v_other     integer;
begin
    if cardinality(p_instance_ids) > c_max_marks then
        return false;
    end if;
    if cardinality(p_instance_ids) = 1 then
        -- The usual case, without a query.
        if pg_advisory_xact_lock_shared(schema_key(), mailbox_key(p_instance_ids[1])) is null then null; end if;
        return true;
    end if;
    if cardinality(p_instance_ids) = 2 then
        v_one := mailbox_key(p_instance_ids[1]);
        v_other := mailbox_key(p_instance_ids[2]);
        if pg_advisory_xact_lock_shared(schema_key(), least(v_one, v_other)) is null then null; end if;
        if pg_advisory_xact_lock_shared(schema_key(), greatest(v_one, v_other)) is null then null; end if;
        return true;
    end if;
    perform pg_advisory_xact_lock_shared(schema_key(), k.key)
       from (select distinct mailbox_key(i.instance_id) as key
               from unnest(p_instance_ids) as i (instance_id)
              order by 1) as k;
    return true;
end
$$;
