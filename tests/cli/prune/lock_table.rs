//! More instances than the server's lock table has room for.

use duroxide::providers::{InstanceFilter, ProviderAdmin};
use serde_json::json;

use super::{count, ended};
use crate::cluster::{Cluster, Options, have};
use crate::process::cli;
use crate::support::TestSchema;

const INSTANCES: i64 = 6000;

/// A server whose lock table has room for some hundreds.
fn small_server() -> Option<Cluster> {
    have("initdb").then(|| {
        Cluster::start(&Options {
            settings: "max_connections = 30\nmax_locks_per_transaction = 10\n",
            ..Options::default()
        })
    })
}

#[tokio::test]
async fn too_large_a_batch_becomes_smaller_ones() {
    let Some(server) = small_server() else { return };
    let schema = TestSchema::on(server.admin_url());
    let provider = schema.provider().await;
    ended(&schema, INSTANCES).await;
    let all = INSTANCES.to_string();
    let pruned = cli(
        &schema,
        &[
            "prune",
            "instances",
            "--older-than",
            "1d",
            "--batch-size",
            &all,
            "--json",
        ],
    );
    assert_eq!(pruned.code, 0, "{}", pruned.err);
    let half = format!("going on with {} instances at a time", INSTANCES / 2);
    assert!(
        pruned.err.contains("53200") && pruned.err.contains(&half),
        "{}",
        pruned.err
    );
    assert_eq!(pruned.json()["instances"], INSTANCES);
    assert_eq!(count(&schema, "mailboxes").await, 0);

    // The library's own bulk deletion, beyond what one transaction takes.
    ended(&schema, INSTANCES).await;
    let filter = InstanceFilter {
        limit: Some(INSTANCES as u32 - 1),
        ..InstanceFilter::default()
    };
    let deleted = provider.delete_instance_bulk(filter).await.expect("deleted");
    assert_eq!(deleted.instances_deleted as i64, INSTANCES - 1);
    assert_eq!(deleted.events_deleted as i64, 3 * (INSTANCES - 1));
    assert_eq!(count(&schema, "instances").await, 1);
}

/// It stays, and whoever deletes hears of it; others do not stay because of it.
#[tokio::test]
async fn a_tree_larger_than_the_lock_table_is_passed_by() {
    let Some(server) = small_server() else { return };
    let schema = TestSchema::on(server.admin_url());
    let provider = schema.provider().await;
    ended(&schema, INSTANCES).await;
    schema
        .client()
        .await
        .batch_execute(
            "update executions set completed_at = completed_at - interval '1 h' where instance_id = 'old-2'; \
             update instances set parent_instance_id = 'old-2' where instance_id not in ('old-1', 'old-2')",
        )
        .await
        .expect("a tree");
    let pruned = cli(&schema, &["prune", "instances", "--older-than", "1d", "--json"])
        .fails(1, &["53200", "max_locks_per_transaction", "\"old-2\"", "are 5999,"])
        .json();
    let too_large = json!({ "instance": "old-2", "reason": "too_large", "members": 5999 });
    assert_eq!(
        (&pruned["instances"], &pruned["passed_by"]),
        (&json!(1), &json!({ "count": 1, "instances": [too_large] }))
    );
    assert_eq!(count(&schema, "instances where instance_id = 'old-1'").await, 0);
    assert_eq!(count(&schema, "instances").await, INSTANCES - 1);

    // So does the library, whatever ended before and after it. Where there is nothing else, it is an error.
    let all = InstanceFilter::default;
    let error = provider.delete_instance_bulk(all()).await.expect_err("no room");
    assert!(!error.is_retryable(), "{error}");
    for words in [
        "\"old-2\" and all below it: ",
        "53200",
        "max_locks_per_transaction",
        "0 instances",
    ] {
        assert!(error.message.contains(words), "{words:?} is not in: {error}");
    }
    schema
        .client()
        .await
        .batch_execute(
            "update instances set parent_instance_id = null where instance_id in ('old-3', 'old-4', 'old-5', 'old-6'); \
             update executions set completed_at = completed_at - interval '2 h' where instance_id = 'old-3'",
        )
        .await
        .expect("an older one and younger ones");
    let one = InstanceFilter {
        limit: Some(1),
        ..all()
    };
    for deleted in ["the oldest", "beyond it"] {
        let result = provider.delete_instance_bulk(one.clone()).await.expect(deleted);
        assert_eq!(result.instances_deleted, 1, "{deleted}");
    }
    // Whoever asked for it by name hears that it stays.
    let named = InstanceFilter {
        instance_ids: Some(["old-2", "old-4", "old-5", "old-6"].map(str::to_string).to_vec()),
        ..all()
    };
    let error = provider.delete_instance_bulk(named).await.expect_err("it stays");
    assert!(
        error.message.contains("2 instances were deleted, but not \"old-2\""),
        "{error}"
    );
    assert_eq!(count(&schema, "instances").await, INSTANCES - 5);
    assert_eq!(count(&schema, "instances where instance_id = 'old-2'").await, 1);
}
