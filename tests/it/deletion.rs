//! Deleting and pruning: what goes, and what must stay.

use std::time::Duration;

use duroxide::providers::{InstanceFilter, Provider, ProviderAdmin, PruneOptions};

use crate::fixtures::{Ack, LOCK, ack, child_start, create, ending, named, raised, start, started, turn};
use crate::support::TestSchema;

/// Instances that ended, one after the other, without the ceremony of running them.
async fn ended(schema: &TestSchema, count: u32) {
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             select 'old-' || n, 'Test', '1.0.0', 1, now() - interval '3 days', now() from generate_series(1, {count}) as n; \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select 'old-' || n, 1, 'Completed', now() - interval '3 days', now() - interval '2 days' + n * interval '1 s' \
               from generate_series(1, {count}) as n"
        ))
        .await
        .expect("instances that ended");
}

fn up_to(limit: u32) -> InstanceFilter {
    InstanceFilter {
        limit: Some(limit),
        ..InstanceFilter::default()
    }
}

/// Deleting this instance fails as often as `times`.
async fn fails(schema: &TestSchema, instance: &str, sql_state: &str, times: i64) {
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "create sequence failures; \
             create function fail() returns trigger language plpgsql as $$ begin \
                 if nextval('failures') <= {times} then \
                     raise exception 'in the way' using errcode = '{sql_state}'; \
                 end if; \
                 return old; end $$; \
             create trigger fail before delete on instances for each row \
                 when (old.instance_id = '{instance}') execute function fail()"
        ))
        .await
        .expect("a trigger");
}

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

/// Two who clean up at once choose the same instances. The one who comes second goes on with the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_deletion_goes_on_behind_another() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    ended(&schema, 10).await;
    let mut other = schema.client().await;
    let first = other.transaction().await.expect("begin");
    first
        .execute("select delete_instance_bulk(null, null, 3)", &[])
        .await
        .expect("deleted");
    let pid: i32 = first
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("pid")
        .get(0);

    let second = tokio::spawn({
        let provider = provider.clone();
        async move { provider.delete_instance_bulk(up_to(3)).await }
    });
    let observer = schema.client().await;
    let waiting = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and $1 = any (pg_blocking_pids(pid)))";
    while !observer
        .query_one(waiting, &[&pid])
        .await
        .expect("activity")
        .get::<_, bool>(0)
    {
        assert!(!second.is_finished(), "it did not wait");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.commit().await.expect("commit");
    let deleted = second.await.expect("no panic").expect("deleted");
    assert_eq!(deleted.instances_deleted, 3);
    assert_eq!(provider.list_instances().await.expect("list").len(), 4);
}

/// What earlier batches deleted stays deleted, so it is reported.
#[tokio::test]
async fn a_batch_that_fails_hides_no_others() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    ended(&schema, 1100).await;
    fails(&schema, "old-1050", "57014", 2).await;
    let deleted = provider.delete_instance_bulk(up_to(5000)).await.expect("a part");
    assert_eq!(deleted.instances_deleted, 1000);
    assert_eq!(deleted.executions_deleted, 1000);
    // With nothing to report, the error is.
    let error = provider
        .delete_instance_bulk(up_to(5000))
        .await
        .expect_err("in the way");
    assert!(error.message.contains("57014") && error.is_retryable(), "{error}");
    let deleted = provider.delete_instance_bulk(up_to(5000)).await.expect("the rest");
    assert_eq!(deleted.instances_deleted, 100);
}

#[tokio::test]
async fn a_batch_whose_trees_change_is_tried_again() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    ended(&schema, 5).await;
    fails(&schema, "old-3", "DX006", 12).await;
    let error = provider.delete_instance_bulk(up_to(5)).await.expect_err("not for ever");
    assert!(error.message.contains("DX006") && error.is_retryable(), "{error}");
    let deleted = provider.delete_instance_bulk(up_to(5)).await.expect("deleted");
    assert_eq!(deleted.instances_deleted, 5);
}
