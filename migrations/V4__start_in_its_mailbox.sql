-- A new instance that is born leased brings its start along: no row in the queue that its first turn would only have to remove again.

alter table mailboxes
    add column start_item text,
    add constraint mailboxes_start_item_check check (start_item is null or lease is not null);

comment on column mailboxes.start_item is
    'The start of a new instance while its first turn is leased by the call that enqueued it; its id is in claimed_ids, and since when it is visible in claimed_until. Should that lease end without an ack, it moves to orchestrator_queue.';
