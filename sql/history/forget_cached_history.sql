-- Makes every process read a history anew whose events were changed or removed by hand. Nothing in sql/ updates
-- events, and what deletes them says so ("erasing") because it deletes the mailbox too, or only old executions.
-- Inserts are not watched: they are the hot path, and a cached history is always asked for what comes after it.
-- Locks: the mailbox.
create or replace function forget_cached_history() returns trigger
language plpgsql
as $$
begin
    if tg_op = 'TRUNCATE' then
        update mailboxes as m
           set history_epoch = default,
               cached_by = null;
    else
        update mailboxes as m
           set history_epoch = default,
               cached_by = null
         where m.instance_id in (old.instance_id, new.instance_id);
    end if;
    return null;
end
$$
security definer
set search_path from current;

create or replace trigger history_updated
    after update on history
    for each row
    execute function forget_cached_history();

create or replace trigger history_truncated
    after truncate on history
    for each statement
    execute function forget_cached_history();

create or replace trigger history_deleted
    after delete on history
    for each row
    when (current_setting('duroxide_postgres.erasing', true) is distinct from 'on')
    execute function forget_cached_history();
