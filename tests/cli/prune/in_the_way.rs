//! What keeps `prune` from everything, not from one instance: it says so, blames nobody, and can be stopped meanwhile.

use serde_json::json;
use tokio_postgres::Client;

use super::{count, ended};
use crate::process::{cli, command, finish, key_values, run_on, signal, user};
use crate::support::TestSchema;

async fn holder(schema: &TestSchema, sql: &str) -> (Client, i32) {
    let client = schema.client().await;
    let pid = client.query_one("select pg_backend_pid()", &[]).await;
    client.batch_execute(&format!("begin; {sql}")).await.expect(sql);
    (client, pid.expect("pid").get(0))
}

#[tokio::test]
async fn a_locked_table_is_named_and_no_instance_is_blamed() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 3).await;
    let (holder, pid) = holder(&schema, "lock table history").await;
    let lock = format!("session {pid} has AccessExclusiveLock on history");
    let pruned = cli(&schema, &["prune", "instances", "--older-than", "1d", "--json"])
        .fails(1, &[&lock, "0 instances were deleted before that"]);
    assert!(!pruned.err.contains("old-"), "{}", pruned.err);
    assert_eq!(
        pruned.json(),
        json!({ "dry_run": false, "instances": 0, "executions": 0, "events": 0, "passed_by": { "count": 0, "instances": [] } })
    );
    holder.batch_execute("commit").await.expect("commit");
    assert_eq!(count(&schema, "instances").await, 3);
}

#[tokio::test]
async fn a_count_does_not_wait_for_ever() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    let (_holder, pid) = holder(&schema, "lock table instances").await;
    let lock = format!("session {pid} has AccessExclusiveLock on instances");
    let failed = cli(&schema, &["prune", "instances", "--older-than", "1d", "--dry-run"]).fails(1, &[&lock]);
    // Nothing was to be deleted.
    assert!(!failed.err.contains("were deleted"), "{}", failed.err);
}

/// The lock stays: it is the signal that ends it. What was done is printed then too.
#[tokio::test]
async fn a_prune_that_counts_can_be_stopped() {
    for arguments in [
        &["instances", "--older-than", "1d"],
        &["executions", "--keep-last", "1"],
    ] {
        // A schema each: the server notices some time later that somebody who waited is gone.
        let schema = TestSchema::new();
        let _provider = schema.provider().await;
        let (_holder, pid) = holder(&schema, "lock table executions").await;
        let arguments = [&["--schema", &schema.name, "--json", "prune"], &arguments[..]].concat();
        let child = command(&schema.url, &arguments).spawn().expect("start");
        crate::locks::waiter(&schema.client().await, pid).await;
        signal(&child, "-TERM");
        let stopped = finish(child)
            .await
            .fails(130, &["interrupted", "run it again to go on"]);
        assert_eq!(stopped.json()["executions"], 0);
    }
}

/// Where somebody has very many, going on would take as many times two seconds.
#[tokio::test]
async fn after_some_that_stay_it_stops() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 7).await;
    let (_holder, _) = holder(&schema, "select from mailboxes for update").await;
    let arguments = [
        "prune",
        "instances",
        "--older-than",
        "1d",
        "--batch-size",
        "1",
        "--json",
    ];
    let pruned =
        cli(&schema, &arguments).fails(1, &["locks on 5 instances in a row", "somebody had locks on instance"]);
    assert_eq!(pruned.json()["passed_by"]["count"], 5);
}

#[tokio::test]
async fn what_would_be_the_same_again_is_not_to_be_run_again() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    ended(&schema, 2).await;
    let with = |options: &str| {
        let url = format!(
            "{} user={} options='{options}'",
            key_values(&schema.url),
            user(&schema.url)
        );
        run_on(
            &url,
            &["--schema", &schema.name, "prune", "instances", "--older-than", "1d"],
        )
    };
    let (holder, _) = holder(&schema, "select from mailboxes for update").await;
    let failed = with("-c statement_timeout=500").fails(1, &["57014", "smaller --batch-size", "raise it"]);
    assert!(!failed.err.contains("run it again"), "{}", failed.err);
    holder.batch_execute("commit").await.expect("commit");
    // Defaults that the functions, or a server, would refuse.
    let pruned = with("-c default_transaction_isolation=serializable -c default_transaction_read_only=on");
    assert_eq!(pruned.ok().out, "deleted 2 instances, 2 executions, 6 events\n");
}
