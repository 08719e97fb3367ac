//! Every method has its span, which says what it was about and how it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{
    InstanceFilter, Provider, ProviderAdmin, ProviderError, PruneOptions, SessionFetchConfig, TagFilter,
};
use duroxide_postgres::Builder;

use super::capture::{BATCH, CALL, Capture, LOOK, OPERATION, Span};
use super::documented;
use crate::batching::World;
use crate::fixtures::{
    Ack, LOCK, NOW, ack, activity, completed, create, ending, event, named, raised, routed_activity, scheduled, start,
    started, turn, work,
};
use crate::proxy::Mode;
use crate::round_trips::trait_methods;
use crate::support::TestSchema;

struct Watched {
    capture: Capture,
    seen: BTreeSet<String>,
}

impl Watched {
    /// Makes one call of a method and checks its span: its name, its instance, its rows; and that one call of the database
    /// is below it.
    async fn call<T>(
        &mut self,
        operation: &str,
        instance: Option<&str>,
        rows: u64,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> T {
        let before = self.capture.own_spans().len();
        let result = call.await.unwrap_or_else(|error| panic!("{error}"));
        let spans = &self.capture.own_spans()[before..];
        let of = |name: &str| -> Vec<&Span> { spans.iter().filter(|span| span.name == name).collect() };
        let [own] = of(OPERATION)[..] else {
            panic!("{operation}: {spans:?}");
        };
        assert_eq!(own.get("operation"), Some(operation));
        assert_eq!(own.get("instance"), instance, "{operation}");
        assert_eq!(own.number("rows"), Some(rows), "{operation}");
        assert!(own.number("elapsed_us") > Some(0), "{operation}");
        assert_eq!(own.get("error"), None, "{operation}");

        let [call] = of(CALL)[..] else {
            panic!("{operation}: {spans:?}");
        };
        assert!(
            self.capture.above(call).iter().any(|above| above.index == own.index),
            "{operation}: {spans:?}"
        );
        assert_eq!(call.number("attempts"), Some(1), "{operation}");
        assert!(call.number("elapsed_us") <= own.number("elapsed_us"), "{operation}");
        assert!(call.number("pool_wait_us") <= call.number("elapsed_us"), "{operation}");
        assert!(call.number("rows").is_some(), "{operation}");
        self.seen.insert(operation.to_string());
        result
    }
}

#[test]
fn every_method_has_a_span_with_operation_instance_and_rows() {
    Capture::run(every_method);
}

async fn every_method(capture: Capture) {
    let schema = TestSchema::new();
    let provider = schema.builder().long_poll(false).connect().await.expect("provider");
    let p = &provider;
    let mut watched = Watched {
        capture,
        seen: BTreeSet::new(),
    };
    let w = &mut watched;
    let i = Some("i");

    w.call(
        "enqueue_for_orchestrator",
        i,
        1,
        p.enqueue_for_orchestrator(start("i"), None),
    )
    .await;
    let fetch = p.fetch_orchestration_item(LOCK, NOW, None);
    let (_, token, _) = w.call("fetch_orchestration_item", i, 1, fetch).await.expect("a turn");
    let renew = p.renew_orchestration_item_lock(&token, LOCK);
    w.call("renew_orchestration_item_lock", i, 1, renew).await;
    let abandon = p.abandon_orchestration_item(&token, None, true);
    w.call("abandon_orchestration_item", i, 1, abandon).await;
    let (_, token, _) = turn(p, LOCK).await;
    let set = |id, key: &str| {
        let kind = EventKind::KeyValueSet {
            key: key.to_string(),
            value: "v".to_string(),
            last_updated_at_ms: 1,
        };
        event("i", id, kind)
    };
    let status = EventKind::CustomStatusUpdated {
        status: Some("s".to_string()),
    };
    let first = Ack {
        events: vec![started("i"), set(2, "a"), set(3, "b"), event("i", 4, status)],
        activities: vec![activity("i", 5), routed_activity("i", 6, Some("t"), Some("s"))],
        messages: vec![raised("i", "x")],
        metadata: named(),
        ..Ack::default()
    };
    w.call("ack_orchestration_item", i, 7, ack(p, &token, first)).await;
    let fetch = p.fetch_orchestration_item(LOCK, NOW, None);
    let (_, token, _) = w.call("fetch_orchestration_item", i, 1, fetch).await.expect("a turn");
    let nothing = p.fetch_orchestration_item(LOCK, NOW, None);
    assert!(w.call("fetch_orchestration_item", None, 0, nothing).await.is_none());
    ack(p, &token, Ack::default()).await.expect("ack");

    let fetch = p.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly);
    let (_, token, _) = w.call("fetch_work_item", i, 1, fetch).await.expect("an activity");
    w.call("renew_work_item_lock", i, 1, p.renew_work_item_lock(&token, LOCK))
        .await;
    w.call("abandon_work_item", i, 1, p.abandon_work_item(&token, None, true))
        .await;
    let (_, token, _) = work(p, LOCK).await;
    w.call("ack_work_item", i, 1, p.ack_work_item(&token, Some(completed("i", 5))))
        .await;
    w.call("enqueue_for_worker", i, 1, p.enqueue_for_worker(activity("i", 7)))
        .await;
    let session = SessionFetchConfig {
        owner_id: "w".to_string(),
        lock_timeout: LOCK,
    };
    let tagged = TagFilter::tags(["t"]);
    p.fetch_work_item(LOCK, NOW, Some(&session), &tagged)
        .await
        .expect("fetch")
        .expect("an activity of a session");
    w.call("renew_session_lock", None, 1, p.renew_session_lock(&["w"], LOCK, LOCK))
        .await;
    w.call("cleanup_orphaned_sessions", None, 0, p.cleanup_orphaned_sessions(LOCK))
        .await;

    w.call("read", i, 4, p.read("i")).await;
    w.call("read_with_execution", i, 4, p.read_with_execution("i", 1)).await;
    let more = p.append_with_execution("i", 1, vec![scheduled("i", 5), scheduled("i", 6)]);
    w.call("append_with_execution", i, 2, more).await;
    w.call("get_custom_status", i, 1, p.get_custom_status("i", 0)).await;
    w.call("get_kv_value", i, 1, p.get_kv_value("i", "a")).await;
    w.call("get_kv_value", i, 0, p.get_kv_value("i", "no such key")).await;
    w.call("get_kv_all_values", i, 2, p.get_kv_all_values("i")).await;
    w.call("get_instance_stats", i, 1, p.get_instance_stats("i")).await;

    w.call("list_instances", None, 1, p.list_instances()).await;
    w.call(
        "list_instances_by_status",
        None,
        0,
        p.list_instances_by_status("Failed"),
    )
    .await;
    w.call("list_executions", i, 1, p.list_executions("i")).await;
    w.call("read_history", i, 6, p.read_history("i")).await;
    let read = p.read_history_with_execution_id("i", 1);
    w.call("read_history_with_execution_id", i, 6, read).await;
    w.call("latest_execution_id", i, 1, p.latest_execution_id("i")).await;
    w.call("get_instance_info", i, 1, p.get_instance_info("i")).await;
    w.call("get_execution_info", i, 1, p.get_execution_info("i", 1)).await;
    w.call("get_system_metrics", None, 1, p.get_system_metrics()).await;
    w.call("get_queue_depths", None, 1, p.get_queue_depths()).await;
    w.call("list_children", i, 0, p.list_children("i")).await;
    w.call("get_parent_id", i, 0, p.get_parent_id("i")).await;
    w.call("get_instance_tree", i, 1, p.get_instance_tree("i")).await;
    let options = PruneOptions::default;
    w.call("prune_executions", i, 0, p.prune_executions("i", options()))
        .await;
    let all = InstanceFilter::default;
    w.call(
        "prune_executions_bulk",
        None,
        0,
        p.prune_executions_bulk(all(), options()),
    )
    .await;
    w.call("delete_instance", i, 1, p.delete_instance("i", true)).await;
    create(p, "j").await;
    let ids = ["j".to_string()];
    w.call(
        "delete_instances_atomic",
        None,
        1,
        p.delete_instances_atomic(&ids, true),
    )
    .await;
    p.enqueue_for_orchestrator(start("k"), None).await.expect("enqueue");
    let (_, token, _) = turn(p, LOCK).await;
    let only = Ack {
        events: vec![started("k")],
        metadata: ending("Completed"),
        ..Ack::default()
    };
    ack(p, &token, only).await.expect("ack");
    w.call("delete_instance_bulk", None, 1, p.delete_instance_bulk(all()))
        .await;

    let seen: Vec<String> = watched.seen.iter().cloned().collect();
    assert_eq!(seen, trait_methods());

    // Neither more nor less than the table says.
    let mut shown = BTreeMap::new();
    for span in watched.capture.own_spans() {
        let fields: BTreeSet<String> = span.field_names.iter().map(|name| name.to_string()).collect();
        shown.insert(span.name.to_string(), fields);
    }
    assert_eq!(shown, documented(&["span"]));
}

/// The last operation, which failed, and why.
fn last_error(capture: &Capture, operation: &str) -> String {
    let last = capture.spans(OPERATION).pop().expect("a span");
    assert_eq!(last.get("operation"), Some(operation));
    assert_eq!(last.get("rows"), None);
    assert!(last.number("elapsed_us").is_some());
    last.get("error").expect("an error").to_string()
}

#[test]
fn a_span_says_which_kind_of_error_it_was() {
    Capture::run(async |capture| {
        let world = World::with(|builder| builder.long_poll(false)).await;
        let p = &*world.provider;
        p.renew_work_item_lock("no token", LOCK).await.expect_err("no token");
        assert_eq!(last_error(&capture, "renew_work_item_lock"), "permanent");

        p.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
        let (_, token, _) = turn(p, LOCK).await;
        world.execute("update mailboxes set lease = null", &[]).await;
        ack(p, &token, Ack::default()).await.expect_err("it was taken away");
        assert_eq!(last_error(&capture, "ack_orchestration_item"), "lease_lost");
        // The database was asked, and answered.
        assert_eq!(capture.spans(CALL).pop().expect("a call").get("error"), None);
        p.renew_orchestration_item_lock(&token, LOCK)
            .await
            .expect_err("it was taken away");
        assert_eq!(last_error(&capture, "renew_orchestration_item_lock"), "lease_lost");
        assert_eq!(
            capture.spans(CALL).pop().expect("a call").get("error"),
            Some("lease_lost")
        );

        world.proxy.set(Mode::Refuse).await;
        p.read("i").await.expect_err("nobody listens");
        assert_eq!(last_error(&capture, "read"), "connection");
        p.fetch_orchestration_item(LOCK, NOW, None)
            .await
            .expect_err("nobody listens");
        assert_eq!(last_error(&capture, "fetch_orchestration_item"), "connection");
        world.proxy.set(Mode::Pass).await;

        p.close();
        p.list_instances().await.expect_err("closed");
        assert_eq!(last_error(&capture, "list_instances"), "closed");
    });
}

#[test]
fn errors_of_the_server_are_told_apart() {
    Capture::run(async |capture| {
        let world = World::with(|builder| builder.long_poll(false)).await;
        let p = &*world.provider;
        let mut config = world.proxy.config();
        config.options("-c lock_timeout=10");
        let builder = Builder::from_config(config).schema(&world.schema.name);
        let impatient = builder.long_poll(false).connect().await.expect("provider");
        let mut blocker = world.schema.client().await;
        let transaction = blocker.transaction().await.expect("begin");
        transaction
            .batch_execute("lock table instances in access exclusive mode")
            .await
            .expect("lock");
        let cancel = async {
            let cancelled = "select pg_cancel_backend(pid) from pg_stat_activity \
                             where application_name = $1 and wait_event_type = 'Lock'";
            while world
                .admin
                .query_opt(cancelled, &[&world.schema.name])
                .await
                .expect("cancel")
                .is_none()
            {
                tokio::task::yield_now().await;
            }
        };
        let (listed, ()) = tokio::join!(p.list_instances(), cancel);
        listed.expect_err("cancelled");
        assert_eq!(last_error(&capture, "list_instances"), "timeout");
        impatient.list_instances().await.expect_err("locked");
        assert_eq!(last_error(&capture, "list_instances"), "retryable");
        transaction.rollback().await.expect("rollback");

        world
            .admin
            .batch_execute("drop function get_queue_depths()")
            .await
            .expect("drop");
        p.get_queue_depths().await.expect_err("it is gone");
        assert_eq!(last_error(&capture, "get_queue_depths"), "permanent");
    });
}

#[test]
fn a_call_that_is_made_again_has_one_span_and_several_attempts() {
    Capture::run(async |capture| {
        let world = World::new().await;
        let p = &*world.provider;
        p.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
        let (_, token, _) = work(p, LOCK).await;
        world.proxy.lose_answer_of(".renew_work_item_lock(", Mode::Pass);
        p.renew_work_item_lock(&token, LOCK).await.expect("renewed");
        let call = capture.spans(CALL).pop().expect("a call");
        assert_eq!(call.get("function"), Some("renew_work_item_lock"));
        assert_eq!((call.number("attempts"), call.get("error")), (Some(2), None));
    });
}

#[test]
fn a_fetch_that_is_dropped_says_so() {
    Capture::run(async |capture| {
        let schema = TestSchema::new();
        let provider = schema.provider().await;
        let fetch = provider.fetch_orchestration_item(LOCK, Duration::from_secs(60), None);
        let impatient = tokio::time::timeout(Duration::from_millis(1), fetch).await;
        assert!(impatient.is_err());
        assert_eq!(last_error(&capture, "fetch_orchestration_item"), "dropped");
    });
}

/// Nothing is below an operation that is none of its own: neither batch nor look is shared here.
#[test]
fn what_is_for_one_operation_alone_is_its_child() {
    Capture::run(async |capture| {
        let schema = TestSchema::new();
        let provider = schema.builder().long_poll(false).connect().await.expect("provider");
        let p = &*std::sync::Arc::new(provider);
        p.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
        turn(p, LOCK).await;
        let batch = capture.spans(BATCH).pop().expect("a batch");
        assert_eq!(batch.number("items"), Some(1));
        let operation = &capture.above(&batch)[0];
        assert_eq!(operation.get("operation"), Some("enqueue_for_orchestrator"));
        let look = capture.spans(LOOK).pop().expect("a look");
        assert_eq!(
            (
                look.number("callers"),
                look.get("reason"),
                look.get("queue"),
                look.number("rows")
            ),
            (Some(1), Some("asked"), Some("orchestrator"), Some(1))
        );
        let operation = &capture.above(&look)[0];
        assert_eq!(operation.get("operation"), Some("fetch_orchestration_item"));
    });
}
