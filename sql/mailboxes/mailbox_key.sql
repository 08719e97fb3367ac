-- Second half of a mailbox's advisory lock key. Instances share 4,096 keys, so that a transaction
-- with thousands of targets cannot exhaust the server's lock table; a collision costs one extra fetch.
-- Has no SET clause, so that the planner can inline it.
create or replace function mailbox_key(p_instance_id text) returns integer
language sql immutable parallel safe
as $$ select hashtext(p_instance_id) & 4095 $$;
