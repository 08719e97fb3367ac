-- An owner's sessions in the order of their ids, so that a fetch can visit some of them and go on from there.

drop index if exists sessions_owner_idx;
create index sessions_owner_idx on sessions (owner_id, session_id);
