-- The stored shape of a duroxide-postgres schema. Applied with search_path set to that schema.
-- Functions live in sql/, one a file, and are re-applied when they change; this file never changes.
--
-- Every key starts with the instance, so that all rows of one instance are neighbours.
-- Identifiers collate "C": comparisons are plain byte comparisons and no index depends on a locale.

-- One row per instance: its lock, its lease and its place in line.
create table mailboxes (
    instance_id    text collate "C" not null,
    available_at   timestamptz      not null,
    lease          uuid,
    claimed_ids    bigint[],
    claimed_until  timestamptz,
    pinned_version bigint           not null default -1,
    constraint mailboxes_pkey primary key (instance_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

comment on column mailboxes.available_at is
    'When the instance can next be claimed: the earliest visible message; the end of the lease while leased; infinity when idle.';
comment on column mailboxes.lease is
    'The turn that holds the instance; NULL when nobody does. Expired once available_at has passed.';
comment on column mailboxes.claimed_ids is
    'The messages of the leased turn. Recorded here so that a turn that succeeds never updates its messages.';
comment on column mailboxes.claimed_until is
    'The largest visible_at among the claimed messages: bounds the index scan that finds them again.';
comment on column mailboxes.pinned_version is
    'duroxide version of the current execution, packed so that it sorts; -1 when it has none and any node may run it.';

-- What a fetch walks. Version first: instances this node cannot replay are never visited.
-- Idle mailboxes are not in it, so they cost a fetch nothing.
create index mailboxes_claim_idx on mailboxes (pinned_version, available_at)
    where available_at < 'infinity';

-- Work for orchestrations. Guarded by the mailbox of its instance: only its lease holder removes rows.
create table orchestrator_queue (
    instance_id   text collate "C" not null,
    visible_at    timestamptz      not null,
    id            bigint           not null generated always as identity,
    kind          "char"           not null,
    attempt_count integer          not null default 0,
    work_item     text             not null,
    constraint orchestrator_queue_pkey primary key (instance_id, visible_at, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

comment on column orchestrator_queue.kind is
    's: starts an execution; q: QueueMessage, dropped when its instance was never started; m: any other message.';
comment on column orchestrator_queue.attempt_count is
    'Deliveries that ended without an ack. The delivery under way is not counted: see mailboxes.claimed_ids.';

-- Work for activities.
create table worker_queue (
    instance_id   text collate "C" not null,
    execution_id  bigint           not null,
    activity_id   bigint           not null,
    id            bigint           not null generated always as identity,
    available_at  timestamptz      not null,
    lease         uuid,
    attempt_count integer          not null default 0,
    tag           text collate "C" not null,
    session_id    text collate "C" not null,
    work_item     text             not null,
    constraint worker_queue_pkey primary key (instance_id, execution_id, activity_id, id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

comment on column worker_queue.available_at is
    'When a worker can next take it: once visible; the end of the lease while leased.';
comment on column worker_queue.tag is
    'Routing key: empty when untagged, otherwise ''#'' and the tag. Never NULL, so that one index serves every filter in order.';
comment on column worker_queue.session_id is
    'Routing key: empty without a session, otherwise ''#'' and the session.';

create index worker_queue_claim_idx on worker_queue (tag, session_id, available_at, id);

-- Which worker a session sticks to.
create table sessions (
    session_id       text collate "C" not null,
    owner_id         text collate "C" not null,
    locked_until     timestamptz      not null,
    last_activity_at timestamptz      not null,
    constraint sessions_pkey primary key (session_id)
) with (fillfactor = 70, autovacuum_vacuum_cost_delay = 0);

comment on column sessions.session_id is 'As worker_queue.session_id.';

create index sessions_owner_idx on sessions (owner_id);

-- What is known about an instance beside its history.
create table instances (
    instance_id           text collate "C" not null,
    orchestration_name    text             not null,
    orchestration_version text             not null,
    current_execution_id  bigint           not null,
    parent_instance_id    text collate "C",
    custom_status         text,
    custom_status_version bigint           not null default 0,
    created_at            timestamptz      not null,
    updated_at            timestamptz      not null,
    constraint instances_pkey primary key (instance_id)
) with (fillfactor = 90);

create index instances_parent_idx on instances (parent_instance_id)
    where parent_instance_id is not null;

comment on column instances.custom_status is
    'Free text. U+0000 is stored as U+0001 ''0'' and U+0001 as U+0001 ''1'', here and in executions.output and the KV values.';

create table executions (
    instance_id  text collate "C" not null,
    execution_id bigint           not null,
    status       text             not null,
    output       text,
    started_at   timestamptz      not null,
    completed_at timestamptz,
    constraint executions_pkey primary key (instance_id, execution_id)
) with (fillfactor = 90);

-- Counts by status and finds what is old enough to delete.
create index executions_status_idx on executions (status, completed_at);

create table history (
    instance_id  text collate "C" not null,
    execution_id bigint           not null,
    event_id     bigint           not null,
    ack_id       uuid,
    event_data   text             not null,
    constraint history_pkey primary key (instance_id, execution_id, event_id)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

comment on column history.ack_id is
    'On the first event of an ack: which call wrote it, so that its retry after a lost answer knows that it had succeeded.';

-- Values as of the end of the previous execution.
create table kv_store (
    instance_id        text collate "C" not null,
    key                text collate "C" not null,
    value              text             not null,
    last_updated_at_ms bigint           not null,
    constraint kv_store_pkey primary key (instance_id, key)
);

-- What the current execution changed; a NULL value hides the key. Merged into kv_store when it ends.
create table kv_delta (
    instance_id        text collate "C" not null,
    key                text collate "C" not null,
    value              text,
    last_updated_at_ms bigint           not null,
    constraint kv_delta_pkey primary key (instance_id, key)
);

-- Which release deployed the functions. One row, written by the deployer.
create table deployment (
    only_row         boolean     not null default true,
    release          text        not null,
    serves_from      text        not null,
    functions_digest text        not null,
    deployed_at      timestamptz not null,
    constraint deployment_pkey primary key (only_row),
    constraint deployment_only_row_check check (only_row)
);

comment on column deployment.serves_from is 'The oldest release whose processes these functions still serve.';
