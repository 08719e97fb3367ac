-- Second half of a mailbox's advisory lock key. Two instances that share a key cost each other an extra fetch.
-- Has no SET clause, so that the planner can inline it.
create or replace function mailbox_key(p_instance_id text) returns integer
language sql immutable parallel safe
as $$ select hashtext(p_instance_id) $$;
