//! `prune`: batch by batch, and never what runs.

mod beside_work;
mod in_the_way;
mod lock_table;

use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use serde_json::json;

use crate::database::Database;
use crate::fixtures::{Ack, LOCK, ack, create, ending, start, started, turn};
use crate::process::{cli, command, finish, says, signal};
use crate::support::{TestSchema, connect};

/// Instances that ended two days ago, without the ceremony of running them.
pub async fn ended(schema: &TestSchema, count: i64) {
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             select 'old-' || n, 'Test', '1.0.0', 1, now() - interval '3 days', now() - interval '2 days' \
               from generate_series(1, {count}) as n; \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select 'old-' || n, 1, 'Completed', now() - interval '3 days', now() - interval '2 days' \
               from generate_series(1, {count}) as n; \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select 'old-' || n, 1, e, '{{}}' from generate_series(1, {count}) as n, generate_series(1, 3) as e; \
             insert into mailboxes (instance_id, available_at) \
             select 'old-' || n, 'infinity' from generate_series(1, {count}) as n"
        ))
        .await
        .expect("old instances");
}

pub async fn count(schema: &TestSchema, what: &str) -> i64 {
    let row = schema
        .client()
        .await
        .query_one(&format!("select count(*) from {what}"), &[])
        .await;
    row.expect("count").get(0)
}

#[tokio::test]
async fn instances_that_ended_long_ago_go_and_no_others() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "running").await;
    provider
        .enqueue_for_orchestrator(start("recent"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let end = Ack {
        events: vec![started("recent")],
        metadata: ending("Completed"),
        ..Ack::default()
    };
    ack(&*provider, &token, end).await.expect("ack");
    ended(&schema, 25).await;
    // A child that still runs keeps its root.
    schema
        .client()
        .await
        .batch_execute("update instances set parent_instance_id = 'old-25' where instance_id = 'running'")
        .await
        .expect("a child");

    cli(&schema, &["prune", "instances"]).fails(2, &["nothing was deleted", "--older-than"]);
    cli(
        &schema,
        &["prune", "instances", "--older-than", "1d", "--batch-size", "0"],
    )
    .fails(2, &["--batch-size"]);
    let planned = cli(
        &schema,
        &["prune", "instances", "--older-than", "1d", "--dry-run", "--json"],
    )
    .ok()
    .json();
    assert_eq!(planned, json!({ "dry_run": true, "instances": 24 }));
    assert_eq!(count(&schema, "instances").await, 27);
    let pruned = cli(
        &schema,
        &[
            "prune",
            "instances",
            "--older-than",
            "1d",
            "--batch-size",
            "10",
            "--json",
        ],
    )
    .ok()
    .json();
    assert_eq!(
        pruned,
        json!({ "dry_run": false, "instances": 24, "executions": 24, "events": 72, "passed_by": { "count": 0, "instances": [] } })
    );
    let left = cli(&schema, &["instances", "--json"]).ok().json();
    assert_eq!(left["instances"].as_array().map(Vec::len), Some(3), "{left}");
    let again = cli(&schema, &["prune", "instances", "--older-than", "1d"]).ok().out;
    assert_eq!(again, "deleted 0 instances, 0 executions, 0 events\n");
}

#[tokio::test]
async fn old_executions_go_and_the_latest_stay() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             values ('long', 'Test', '1.0.0', 100, now() - interval '100 days', now()), \
                    ('short', 'Test', '1.0.0', 3, now() - interval '3 days', now()); \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select i.instance_id, n, case when n = i.current_execution_id then 'Running' else 'ContinuedAsNew' end, \
                    now() - (i.current_execution_id - n + 1) * interval '1 day', \
                    case when n < i.current_execution_id then now() - (i.current_execution_id - n) * interval '1 day' end \
               from instances as i, generate_series(1, i.current_execution_id) as n; \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select e.instance_id, e.execution_id, 1, '{}' from executions as e",
        )
        .await
        .expect("executions");
    cli(&schema, &["prune", "executions"]).fails(2, &["nothing was deleted", "--keep-last", "--older-than"]);
    let planned = cli(
        &schema,
        &["prune", "executions", "--keep-last", "2", "--dry-run", "--json"],
    )
    .ok()
    .json();
    assert_eq!(planned, json!({ "dry_run": true, "executions": 99, "instances": 2 }));
    // By age: what ended 50 days ago or earlier, more than a batch can hold.
    let aged = cli(
        &schema,
        &[
            "prune",
            "executions",
            "--older-than",
            "1199h",
            "--batch-size",
            "20",
            "--json",
        ],
    );
    assert_eq!(
        aged.ok().json(),
        json!({ "dry_run": false, "executions": 50, "events": 50, "passed_by": { "count": 0, "instances": [] } })
    );
    let kept = cli(
        &schema,
        &[
            "prune",
            "executions",
            "--keep-last",
            "2",
            "--batch-size",
            "20",
            "--json",
        ],
    )
    .ok()
    .json();
    assert_eq!(kept["executions"], 49);
    let rows = client
        .query(
            "select execution_id from executions order by instance_id, execution_id",
            &[],
        )
        .await
        .expect("executions");
    let left: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [99, 100, 2, 3]);
}

/// What was committed stays, the rest is untouched, and the next run goes on.
#[tokio::test]
async fn an_interrupted_prune_can_be_resumed() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 2000).await;
    let arguments = [
        "--schema",
        &schema.name,
        "prune",
        "instances",
        "--older-than",
        "1d",
        "--batch-size",
        "1",
    ];
    let child = command(&schema.url, &arguments).spawn().expect("start");
    let deadline = Instant::now() + Duration::from_secs(60);
    while count(&schema, "instances").await > 1990 {
        assert!(Instant::now() < deadline, "it deletes nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    signal(&child, "-INT");
    let said = finish(child).await.fails(130, &[]).err;
    let left = count(&schema, "instances").await;
    assert!(left > 0, "it had ended already");
    assert!(
        said.contains(&format!("{} instances were deleted", 2000 - left)),
        "{said}, {left} left"
    );
    for table in ["executions", "mailboxes"] {
        assert_eq!(count(&schema, table).await, left, "{table}");
    }
    assert_eq!(count(&schema, "history").await, left * 3);
    let rest = cli(&schema, &["prune", "instances", "--older-than", "1d", "--json"])
        .ok()
        .json();
    assert_eq!(rest["instances"], left);
}

#[tokio::test]
async fn the_cleanup_role_can_prune() {
    let schema = TestSchema::new();
    schema.provider().await;
    ended(&schema, 3).await;
    let client = schema.client().await;
    client
        .batch_execute(&format!("create role {0} login password '{0}'", schema.name))
        .await
        .expect("role");
    cli(&schema, &["grant", "--for", "cleanup", &schema.name]).ok();
    let url = format!(
        "{} user={1} password={1}",
        crate::process::key_values(&schema.url),
        schema.name
    );
    let run = |arguments: &[&str]| crate::process::run_on(&url, &[&["--schema", &schema.name], arguments].concat());
    run(&["prune", "executions", "--keep-last", "1"]).ok();
    let pruned = run(&["prune", "instances", "--older-than", "1d", "--json"]).ok().json();
    assert_eq!(pruned["instances"], 3);
    run(&["status"]).fails(1, &["permission denied", "--for dashboard"]);
    run(&["show", "i"]).fails(
        1,
        &["permission denied", &format!("--schema {} grant ROLE", schema.name)],
    );
    for arguments in [
        &["schema", "drop", "--yes"][..],
        &["grant", "--for", "dashboard", &schema.name],
    ] {
        let refused = run(arguments);
        assert!(
            refused.code == 1 && refused.err.contains("owner"),
            "{arguments:?}: {}",
            refused.err
        );
        assert!(!refused.err.contains("DeployPolicy"), "{}", refused.err);
    }
    client
        .batch_execute(&format!(
            "revoke all on all functions in schema {0} from {0}; revoke all on all tables in schema {0} from {0}",
            schema.name
        ))
        .await
        .expect("revoke");
    cli(&schema, &["grant", &schema.name]).ok();
    for arguments in [&["delete", "i"][..], &["prune", "instances", "--older-than", "1d"]] {
        run(arguments).fails(1, &["permission denied", "grant --for cleanup ROLE"]);
    }
}

/// A place is remembered as text, which must mean the same when it is read back.
#[tokio::test]
async fn it_goes_on_where_it_was_whatever_times_look_like() {
    let database = Database::create().await;
    for (datestyle, zone) in [("SQL, DMY", "Asia/Kolkata"), ("German", "America/New_York")] {
        let client = connect(&database.url).await;
        client
            .batch_execute(&format!(
                "alter database {0} set datestyle = '{datestyle}'; alter database {0} set timezone = '{zone}'",
                database.name
            ))
            .await
            .expect("settings");
        let schema = TestSchema::on(database.url.clone());
        let _provider = schema.provider().await;
        ended(&schema, 20).await;
        schema
            .client()
            .await
            .batch_execute("update executions set completed_at = completed_at - substr(instance_id, 5)::integer * interval '1 day'")
            .await
            .expect("ends");
        let arguments = [
            "prune",
            "instances",
            "--older-than",
            "1d",
            "--batch-size",
            "5",
            "--json",
        ];
        assert_eq!(cli(&schema, &arguments).ok().json()["instances"], 20, "{datestyle}");
        drop(schema);
    }
    database.drop().await;
}

/// One instance that somebody has locks on for good keeps nobody else.
#[tokio::test]
async fn what_is_locked_is_passed_by_and_named() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 2).await;
    let client = schema.client().await;
    client
        .batch_execute(
            "update instances set current_execution_id = 2; \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select e.instance_id, 2, e.status, e.started_at, e.completed_at from executions as e",
        )
        .await
        .expect("a second execution each");
    let holder = schema.client().await;
    holder
        .batch_execute(
            "begin; select from mailboxes where instance_id = 'old-1' for update; \
             select from executions where instance_id = 'old-1' for update",
        )
        .await
        .expect("locked");
    let says = ["somebody had locks on instance \"old-1\": ", "Run it again later"];
    let passed_by = json!({ "count": 1, "instances": [{ "instance": "old-1", "reason": "locked" }] });
    let arguments = ["prune", "executions", "--keep-last", "1", "--json"];
    assert_eq!(
        cli(&schema, &arguments).fails(1, &says).json(),
        json!({ "dry_run": false, "executions": 1, "events": 3, "passed_by": passed_by })
    );
    let arguments = ["prune", "instances", "--older-than", "1d"];
    let pruned = cli(&schema, &arguments).fails(1, &says);
    assert_eq!(
        pruned.out,
        "deleted 1 instances, 1 executions, 0 events; 1 instances passed by\n"
    );
    let pruned = cli(&schema, &[&arguments[..], &["--json"]].concat()).fails(1, &says);
    assert_eq!(
        pruned.json(),
        json!({ "dry_run": false, "instances": 0, "executions": 0, "events": 0, "passed_by": passed_by })
    );
    assert_eq!(count(&schema, "instances where instance_id = 'old-1'").await, 1);
    holder.batch_execute("commit").await.expect("commit");
    assert_eq!(
        cli(&schema, &arguments).ok().out,
        "deleted 1 instances, 2 executions, 3 events\n"
    );
}

/// While it waits for somebody's lock, too: SIGTERM as well, and the second signal without waiting.
#[tokio::test]
async fn a_prune_that_waits_can_be_stopped() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 2).await;
    let holder = schema.client().await;
    let pid: i32 = holder
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("pid")
        .get(0);
    holder
        .batch_execute("begin; select from mailboxes for update")
        .await
        .expect("locked");
    let observer = schema.client().await;
    let arguments = ["--schema", &schema.name, "prune", "instances", "--older-than", "1d"];
    for signals in [&["-TERM"][..], &["-INT", "-TERM"]] {
        let mut child = command(&schema.url, &arguments).spawn().expect("start");
        crate::locks::waiter(&observer, pid).await;
        for name in signals {
            signal(&child, name);
            // Signals that are pending together are one: it has to be taken before the next.
            if name != signals.last().expect("a signal") {
                child = says(child, "interrupted: ").await;
            }
        }
        let said = finish(child).await.fails(130, &[]).err;
        // At once: nothing is said, for nothing is known about the batch under way.
        assert_eq!(
            said.contains("0 instances were deleted before that"),
            signals.len() == 1,
            "{said}"
        );
        assert!(!said.contains("passed by"), "{said}");
    }
    holder.batch_execute("commit").await.expect("commit");
    assert_eq!(count(&schema, "instances").await, 2);
}
