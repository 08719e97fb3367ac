-- First half of every advisory lock key: advisory locks are database-wide, schemas are not.
-- Has no SET clause, so that the planner can inline it.
create or replace function schema_key() returns integer
language sql stable parallel safe
as $$ select hashtext('duroxide-postgres:' || current_schema()) $$;
