//! What tables hold, many rows or few.

/// What has gathered in a database that has been in use for a while, its numbers `first` to `last`.
pub fn busy_year(first: u32, last: u32) -> String {
    format!(
        "
        -- 100,000 instances at rest, with a million events.
        insert into mailboxes (instance_id, available_at, pinned_version)
        select 'idle-' || n, 'infinity', 64 from generate_series({first}, least({last}, 100000)) as n
        on conflict do nothing;
        insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at)
        select 'idle-' || n, 'Test', '1.0.0', 1, now(), now() from generate_series({first}, least({last}, 100000)) as n;
        insert into executions (instance_id, execution_id, status, started_at)
        select 'idle-' || n, 1, 'Running', now() from generate_series({first}, least({last}, 100000)) as n;
        insert into history (instance_id, execution_id, event_id, event_data)
        select 'idle-' || n, 1, e, '{{}}' from generate_series({first}, least({last}, 100000)) as n, generate_series(1, 10) as e;
        -- 100,000 timers of other instances, due later.
        insert into mailboxes (instance_id, available_at, pinned_version)
        select 'timer-' || n, now() + n * interval '1 s' + interval '1 hour', 64 from generate_series({first}, least({last}, 100000)) as n;
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select 'timer-' || n, now() + n * interval '1 s' + interval '1 hour', 'm', '{{}}' from generate_series({first}, least({last}, 100000)) as n;
        -- One instance in the middle of a turn, with 20,000 messages waiting behind it, and 10,000 timers of the one under test.
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select 'locked', now() - interval '1 s', 'm', '{{}}' from generate_series({first}, least({last}, 20000));
        insert into orchestrator_queue (instance_id, visible_at, kind, work_item)
        select 'target', now() + interval '1 hour', 'm', '{{}}' from generate_series({first}, least({last}, 10000));
        -- 50,000 instances due, but pinned to versions that this node cannot replay.
        insert into mailboxes (instance_id, available_at, pinned_version)
        select 'foreign-' || n, now() - interval '1 hour', 1000000 + n % 3 from generate_series({first}, least({last}, 50000)) as n;
        -- 100,000 activities for other tags, 20,000 of sessions that others own, and 5,000 that others work on.
        insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item)
        select 'idle-' || n, 1, 2, now() - interval '1 hour', '#gpu', '', '{{}}' from generate_series({first}, least({last}, 100000)) as n;
        insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item)
        select 'idle-' || n, 1, 3, now() - interval '1 hour', '', '#s' || n % 20, '{{}}' from generate_series({first}, least({last}, 20000)) as n;
        insert into worker_queue (instance_id, execution_id, activity_id, available_at, lease, tag, session_id, work_item)
        select 'idle-' || n, 1, 4, now() + interval '1 hour', gen_random_uuid(), '', '', '{{}}' from generate_series({first}, least({last}, 5000)) as n;
        insert into kv_delta (instance_id, key, value, last_updated_at_ms)
        select 'idle-' || n + 99, 'k', 'v', 0 from generate_series({first}, least({last}, 20000)) as n
        on conflict do nothing;
        "
    )
}

/// The instance under test, one in the middle of a turn, and sessions of others.
pub const INSTANCES: &str = "
    insert into mailboxes (instance_id, available_at, pinned_version, lease, claimed_ids, claimed_until)
    values ('locked', now() + interval '1 hour', 64, gen_random_uuid(), '{}', now());
    insert into sessions (session_id, owner_id, locked_until, last_activity_at)
    select '#s' || n, 'other', now() + interval '1 hour', now() from generate_series(0, 19) as n;
    insert into mailboxes (instance_id, available_at, pinned_version) values ('target', 'infinity', 64);
    insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at)
    values ('target', 'Test', '1.0.0', 1, now(), now());
    insert into executions (instance_id, execution_id, status, started_at) values ('target', 1, 'Running', now());
    insert into history (instance_id, execution_id, event_id, event_data) select 'target', 1, e, '{}' from generate_series(1, 50) as e;
";

/// Only these are analyzed: whoever drops a schema ends the sessions that hold locks in it.
pub const TABLES: [&str; 9] = [
    "executions",
    "history",
    "instances",
    "kv_delta",
    "kv_store",
    "mailboxes",
    "orchestrator_queue",
    "sessions",
    "worker_queue",
];
