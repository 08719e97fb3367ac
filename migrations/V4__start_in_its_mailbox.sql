-- A new instance that is born leased brings its start along: no row in the queue that its first turn would only have to remove again.

alter table mailboxes
    add column start_item text,
    add constraint mailboxes_start_item_check check (start_item is null or lease is not null);

comment on column mailboxes.start_item is
    'The start of a new instance while its first turn is leased by the call that enqueued it. claimed_ids has its id, 0, once for each delivery, and claimed_until since when it is visible. Should that lease end without an ack, it moves to orchestrator_queue.';
