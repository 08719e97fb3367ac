//! Deletion against everything else.

use duroxide::providers::{Provider, ProviderAdmin};

use super::{MAILBOX, Stage, assert_lost};
use crate::fixtures::{Ack, LOCK, ack, child_start, create, named, raised, scheduled, started, turn};

#[tokio::test]
async fn an_ack_behind_a_deletion_brings_nothing_back() {
    let stage = Stage::new().await;
    create(&*stage.provider, "i").await;
    stage
        .provider
        .enqueue_for_orchestrator(raised("i", "x"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(MAILBOX, "i").await;
    let provider = stage.provider();
    let deletion = stage
        .waiting(1, async move { provider.delete_instance("i", true).await })
        .await;
    let provider = stage.provider();
    let late = stage
        .waiting(2, async move {
            let second = Ack {
                events: vec![scheduled("i", 2)],
                metadata: named(),
                ..Ack::default()
            };
            ack(&*provider, &token, second).await
        })
        .await;
    stage.let_go().await;
    assert_eq!(deletion.await.expect("task").expect("deleted").instances_deleted, 1);
    assert_lost(late.await.expect("task"));
    for table in [
        "instances",
        "executions",
        "history",
        "mailboxes",
        "orchestrator_queue",
        "worker_queue",
    ] {
        assert_eq!(
            stage.count(&format!("select count(*) from {table}")).await,
            0,
            "{table}"
        );
    }
}

/// A child's first turn and its parent's deletion: either the child is seen, or it comes too late for the parent.
#[tokio::test]
async fn a_child_cannot_slip_past_the_deletion_of_its_parent() {
    let stage = Stage::new().await;
    create(&*stage.provider, "parent").await;
    stage
        .provider
        .enqueue_for_orchestrator(child_start("parent::child", Some("parent")), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    // The child's ack gets as far as its own mailbox, with the parent marked; the deletion waits for the mark.
    stage.hold(MAILBOX, "parent::child").await;
    let provider = stage.provider();
    let child = stage
        .waiting(1, async move {
            let mut metadata = named();
            metadata.parent_instance_id = Some("parent".to_string());
            let first = Ack {
                events: vec![started("parent::child")],
                metadata,
                ..Ack::default()
            };
            ack(&*provider, &token, first).await
        })
        .await;
    let provider = stage.provider();
    let deletion = stage
        .waiting(2, async move { provider.delete_instance("parent", true).await })
        .await;
    stage.let_go().await;
    child.await.expect("task").expect("the child is created");
    let error = deletion.await.expect("task").expect_err("the child would be orphaned");
    assert!(error.message.contains("DX006") && error.is_retryable(), "{error}");
    let deleted = stage
        .provider
        .delete_instance("parent", true)
        .await
        .expect("with its child");
    assert_eq!(deleted.instances_deleted, 2);
}

#[tokio::test]
async fn pruning_and_deleting_one_instance_do_not_deadlock() {
    let stage = Stage::new().await;
    create(&*stage.provider, "i").await;
    stage
        .holder
        .batch_execute(
            "insert into executions (instance_id, execution_id, status, started_at) values ('i', 2, 'Running', now()); \
             update executions set status = 'ContinuedAsNew' where execution_id = 1; \
             update instances set current_execution_id = 2",
        )
        .await
        .expect("a second execution");
    stage
        .hold("select from executions where instance_id = $1 for update", "i")
        .await;
    let provider = stage.provider();
    let pruning = stage
        .waiting(1, async move {
            provider
                .prune_executions("i", duroxide::providers::PruneOptions::default())
                .await
        })
        .await;
    let provider = stage.provider();
    let deletion = stage
        .waiting(2, async move { provider.delete_instance("i", true).await })
        .await;
    stage.let_go().await;
    pruning.await.expect("task").expect("pruned");
    assert_eq!(deletion.await.expect("task").expect("deleted").instances_deleted, 1);
}
