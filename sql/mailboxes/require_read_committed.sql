-- Every function that locks relies on the next statement seeing what was committed meanwhile.
-- Raises DX007 under any other isolation level.
create or replace function require_read_committed() returns void
language plpgsql
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'duroxide-postgres needs READ COMMITTED transactions, not %',
                upper(current_setting('transaction_isolation'))
            using errcode = 'DX007',
                  hint = 'Set default_transaction_isolation to ''read committed'' for this role or database.';
    end if;
end
$$
set search_path from current;
