-- What a process may keep of a history in memory, and how it learns that it is no longer true.

alter table mailboxes
    add column history_epoch       bigint not null generated always as identity,
    add column cached_by           uuid,
    add column cached_execution_id bigint,
    add column cached_event_id     bigint;

comment on column mailboxes.history_epoch is
    'Changes when history changes other than by appending: what was read under another epoch must not be added to.';
comment on column mailboxes.cached_by is
    'The process that has all events of cached_execution_id up to cached_event_id in memory; NULL when none is known to.';
