//! Deleting and pruning: what goes, and what must stay.

use duroxide::providers::{InstanceFilter, Provider, ProviderAdmin, PruneOptions};

use crate::fixtures::{Ack, LOCK, ack, child_start, create, ending, named, raised, start, started, turn};
use crate::support::TestSchema;

/// Between two executions an instance is alive: its next start is on the way.
#[tokio::test]
async fn an_instance_that_continues_as_new_is_not_deleted() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let first = Ack {
        events: vec![started("i")],
        messages: vec![start("i")],
        metadata: ending("ContinuedAsNew"),
        ..Ack::default()
    };
    ack(&*provider, &token, first).await.expect("ack");
    let error = provider.delete_instance("i", false).await.expect_err("alive");
    assert!(error.message.contains("DX004"), "{error}");
    let deleted = provider
        .delete_instance_bulk(InstanceFilter::default())
        .await
        .expect("bulk");
    assert_eq!(deleted.instances_deleted, 0);
    turn(&*provider, LOCK).await;
    assert_eq!(
        provider
            .delete_instance("i", true)
            .await
            .expect("forced")
            .instances_deleted,
        1
    );
}

/// A finished root with a live descendant stays; a child whose parent is gone is a root.
#[tokio::test]
async fn bulk_deletion_takes_whole_trees_that_are_finished() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    for (instance, parent, status) in [
        ("busy", None, "Completed"),
        ("busy::child", Some("busy"), "Running"),
        ("done", None, "Failed"),
        ("done::child", Some("done"), "Completed"),
        ("orphan", Some("gone"), "Completed"),
    ] {
        provider
            .enqueue_for_orchestrator(child_start(instance, parent), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(&*provider, LOCK).await;
        let mut metadata = ending(status);
        metadata.parent_instance_id = parent.map(str::to_string);
        let first = Ack {
            events: vec![started(instance)],
            metadata,
            ..Ack::default()
        };
        ack(&*provider, &token, first).await.expect("ack");
    }
    let deleted = provider
        .delete_instance_bulk(InstanceFilter::default())
        .await
        .expect("bulk");
    assert_eq!(deleted.instances_deleted, 3);
    let mut left = provider.list_instances().await.expect("list");
    left.sort();
    assert_eq!(left, ["busy", "busy::child"]);
}

#[tokio::test]
async fn pruning_keeps_the_last_executions_and_is_quick() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "i").await;
    let client = schema.client().await;
    client
        .batch_execute(
            "insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select 'i', n, 'ContinuedAsNew', now(), now() from generate_series(2, 5000) as n; \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select 'i', n, 1, '{}' from generate_series(2, 5000) as n; \
             update executions set status = 'ContinuedAsNew', completed_at = now(); \
             update executions set status = 'Running' where execution_id in (5000, 17); \
             update instances set current_execution_id = 5000",
        )
        .await
        .expect("executions");
    for (keep_last, left) in [(Some(100), 101), (Some(10), 11), (Some(0), 2), (None, 2)] {
        let options = PruneOptions {
            keep_last,
            completed_before: None,
        };
        let pruned = provider.prune_executions("i", options).await.expect("prune");
        assert_eq!(pruned.executions_deleted, pruned.events_deleted);
        let executions = provider.list_executions("i").await.expect("list");
        assert_eq!(executions.len(), left, "{keep_last:?}");
        assert!(executions.contains(&5000) && executions.contains(&17));
    }
    provider
        .enqueue_for_orchestrator(raised("i", "x"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let next = Ack {
        execution_id: Some(5000),
        metadata: named(),
        ..Ack::default()
    };
    ack(&*provider, &token, next)
        .await
        .expect("the current execution goes on");
}
