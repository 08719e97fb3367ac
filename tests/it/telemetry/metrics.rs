//! What is counted and measured of calls, connections and memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, ProviderAdmin};

use super::documented;
use super::recorder::Recorded;
use crate::batching::World;
use crate::fixtures::{Ack, LOCK, ack, activity, create, event, raised, scheduled, start, started, turn, work};
use crate::proxy::Mode;
use crate::support::TestSchema;

pub const PATIENT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

pub async fn eventually(what: &str, happened: impl Fn() -> bool) {
    let waiting = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, waiting).await;
    waited.unwrap_or_else(|_| panic!("in vain: {what}"));
}

async fn operations_calls_and_errors(recorded: Recorded) {
    let world = World::with(|builder| builder.long_poll(false)).await;
    let p = &*world.provider;
    for instance in ["i", "j"] {
        p.enqueue_for_orchestrator(start(instance), None)
            .await
            .expect("enqueue");
    }
    let enqueues = [("operation", "enqueue_for_orchestrator"), ("outcome", "ok")];
    assert_eq!(recorded.sum("operations_total", &enqueues), 2.0);
    let calls = [("function", "enqueue_for_orchestrator"), ("outcome", "ok")];
    assert_eq!(recorded.sum("calls_total", &calls), 2.0);
    let took = recorded.values("operation_duration_seconds", &enqueues[..1]);
    let called = recorded.values("call_duration_seconds", &calls[..1]);
    assert_eq!((took.len(), called.len()), (2, 2));
    for (took, called) in took.into_iter().zip(called) {
        assert!(0.0 < called && called <= took);
    }
    assert_eq!(recorded.values("batch_items", &enqueues[..1]), [1.0, 1.0]);

    let (_, token, _) = turn(p, LOCK).await;
    world.execute("update mailboxes set lease = null", &[]).await;
    ack(p, &token, Ack::default()).await.expect_err("it was taken away");
    p.ack_work_item("no token", None).await.expect_err("no token");
    world.proxy.set(Mode::Refuse).await;
    p.list_instances().await.expect_err("nobody listens");
    eventually("no connection is to be had", || {
        recorded.sum("connections_total", &[("outcome", "error")]) >= 1.0
    })
    .await;
    world.proxy.set(Mode::Pass).await;
    for (operation, class) in [
        ("ack_orchestration_item", "lease_lost"),
        ("ack_work_item", "permanent"),
        ("list_instances", "connection"),
    ] {
        let of = [("operation", operation), ("class", class)];
        assert_eq!(recorded.sum("errors_total", &of), 1.0, "{of:?}");
        assert_eq!(recorded.sum("errors_total", &of[..1]), 1.0, "{of:?}");
        let failed = [("operation", operation), ("outcome", "error")];
        assert_eq!(recorded.sum("operations_total", &failed), 1.0, "{of:?}");
    }
    // A lease that is gone is no error of the call; a server that is gone is.
    let of = |function| [("function", function), ("outcome", "error")];
    assert_eq!(recorded.sum("calls_total", &of("ack_orchestration_item")), 0.0);
    assert_eq!(recorded.sum("calls_total", &of("list_instances")), 1.0);
    assert!(recorded.sum("connections_total", &[("outcome", "ok")]) >= 1.0);
}

async fn retries(recorded: Recorded) {
    let world = World::with(|builder| builder.long_poll(false)).await;
    let p = &*world.provider;
    p.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    let (_, token, _) = work(p, LOCK).await;
    let before = recorded.sum("retries_total", &[]);
    let renewed = [("operation", "renew_work_item_lock"), ("outcome", "ok")];
    let renewed_before = recorded.sum("operations_total", &renewed);
    world.proxy.lose_answer_of(".renew_work_item_lock(", Mode::Pass);
    p.renew_work_item_lock(&token, LOCK).await.expect("renewed");
    let retries = [("function", "renew_work_item_lock"), ("reason", "connection")];
    assert_eq!(recorded.sum("retries_total", &retries), 1.0);
    assert_eq!(recorded.sum("retries_total", &[]) - before, 1.0);
    // Those who called do not know.
    assert_eq!(recorded.sum("operations_total", &renewed), renewed_before + 1.0);
    let errors = [("operation", "renew_work_item_lock")];
    assert_eq!(recorded.sum("errors_total", &errors), 0.0);
}

async fn waits_for_the_pool(recorded: Recorded) {
    let limit = Duration::from_millis(50);
    let world = World::with(|builder| builder.pool_size(2).pool_wait(limit).long_poll(false)).await;
    let p = &*world.provider;
    p.list_instances().await.expect("connected");
    // One of two is kept for acks and renewals, so this one is all there is.
    let mut held = world.proxy.hold_answer_of(".list_instances(");
    let busy = async {
        p.list_instances().await.expect("in the end");
    };
    let other = async {
        held.wait().await;
        let before = recorded
            .values("pool_wait_seconds", &[("connections", "ordinary")])
            .len();
        let error = p.get_queue_depths().await.expect_err("no connection");
        assert!(error.is_retryable(), "{error}");
        let waits = recorded.values("pool_wait_seconds", &[("connections", "ordinary")]);
        assert_eq!(waits.len(), before + 1);
        assert!(waits.iter().any(|waited| *waited >= limit.as_secs_f64()));
        held.release();
    };
    tokio::join!(busy, other);
    let timeouts = [("connections", "ordinary")];
    assert_eq!(recorded.sum("pool_timeouts_total", &timeouts), 1.0);
    let errors = [("operation", "get_queue_depths"), ("class", "pool")];
    assert_eq!(recorded.sum("errors_total", &errors), 1.0);
    // Acks have connections of their own.
    p.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    let (_, token, _) = work(p, LOCK).await;
    let reserved = || {
        let waits = recorded.values("pool_wait_seconds", &[("connections", "reserved")]);
        waits.len()
    };
    let before = reserved();
    p.renew_work_item_lock(&token, LOCK).await.expect("renewed");
    assert_eq!(reserved(), before + 1);
}

async fn the_listener(recorded: Recorded) {
    let count = |event| recorded.sum("listener_events_total", &[("event", event)]);
    let before = count("connected");
    let world = World::new().await;
    eventually("it listens", || count("connected") > before).await;
    let (connected, lost, failed) = (count("connected"), count("lost"), count("failed"));
    let nothing = || recorded.sum("looks_total", &[("outcome", "nothing")]);
    let looked = nothing();
    let waiting = {
        let p = Arc::clone(&world.provider);
        tokio::spawn(async move { p.fetch_orchestration_item(LOCK, PATIENT, None).await })
    };
    eventually("somebody waits", || nothing() > looked).await;
    world.proxy.set(Mode::Refuse).await;
    // Whoever relied on it looks.
    waiting.await.expect("task").expect_err("nobody listens");
    let looks = [("reason", "listener"), ("outcome", "error")];
    assert_eq!(recorded.sum("looks_total", &looks), 1.0);
    eventually("it was lost", || count("lost") > lost).await;
    eventually("it cannot connect", || count("failed") > failed).await;
    world.proxy.set(Mode::Pass).await;
    eventually("it listens again", || count("connected") > connected).await;
    assert_eq!((count("connected"), count("lost")), (connected + 1.0, lost + 1.0));
}

async fn the_history_cache(recorded: Recorded) {
    const LIMIT: usize = 64 << 10;
    let schema = TestSchema::new();
    let builder = || schema.builder().long_poll(false).history_cache(LIMIT);
    let near = builder().connect().await.expect("provider");
    let far = builder().connect().await.expect("provider");
    let lookups =
        || ["hit", "partial", "miss"].map(|result| recorded.sum("history_cache_lookups_total", &[("result", result)]));
    // There is no history before the first turn.
    let nothing = lookups();
    create(&near, "i").await;
    assert_eq!(lookups(), nothing);
    let [hit, partial, miss] = nothing;
    // Its own turn is in memory.
    assert_eq!(near.read("i").await.expect("read").len(), 1);
    assert_eq!(lookups(), [hit + 1.0, partial, miss]);
    // Not in that of another process.
    assert_eq!(far.read("i").await.expect("read").len(), 1);
    assert_eq!(lookups(), [hit + 1.0, partial, miss + 1.0]);
    // What is new is all it needs.
    near.enqueue_for_orchestrator(raised("i", "x"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&near, LOCK).await;
    assert_eq!(lookups(), [hit + 2.0, partial, miss + 1.0]);
    let more = Ack {
        events: vec![scheduled("i", 2)],
        ..Ack::default()
    };
    ack(&near, &token, more).await.expect("ack");
    assert_eq!(far.read("i").await.expect("read").len(), 2);
    assert_eq!(lookups(), [hit + 2.0, partial + 1.0, miss + 1.0]);

    let bytes = || recorded.sum("history_cache_bytes", &[]);
    assert!(bytes() > 0.0);
    let evictions = || recorded.sum("history_cache_evictions_total", &[]);
    assert_eq!(evictions(), 0.0);
    let long = duroxide::EventKind::ExternalEvent {
        name: "note".to_string(),
        data: "n".repeat(3000),
    };
    for number in 0..20 {
        let instance = format!("long{number}");
        near.enqueue_for_orchestrator(start(&instance), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(&near, LOCK).await;
        let first = Ack {
            events: vec![started(&instance), event(&instance, 2, long.clone())],
            ..Ack::default()
        };
        ack(&near, &token, first).await.expect("ack");
    }
    assert!(evictions() > 0.0);
    assert!(bytes() <= 2.0 * LIMIT as f64, "{}", bytes());
}

#[test]
fn operations_calls_and_errors_are_counted() {
    Recorded::run(operations_calls_and_errors, |_| {});
}

#[test]
fn retries_are_counted() {
    Recorded::run(retries, |_| {});
}

#[test]
fn waits_for_the_pool_are_measured() {
    Recorded::run(waits_for_the_pool, |_| {});
}

#[test]
fn losing_the_listener_is_counted() {
    Recorded::run(the_listener, |_| {});
}

#[test]
fn the_history_cache_is_measured() {
    Recorded::run(the_history_cache, |recorded| {
        // What is gone takes no memory.
        assert_eq!(recorded.sum("history_cache_bytes", &[]), 0.0);
    });
}

/// The table names each metric that the code has, with its kind and labels, and no other.
#[test]
fn the_table_of_metrics_is_complete() {
    let everything = async |recorded: Recorded| {
        operations_calls_and_errors(recorded.clone()).await;
        waits_for_the_pool(recorded.clone()).await;
        retries(recorded.clone()).await;
        the_listener(recorded.clone()).await;
        the_history_cache(recorded).await;
    };
    Recorded::run(everything, |recorded| {
        assert_eq!(recorded.labels(), documented(&["counter", "gauge", "histogram"]));
        for kind in ["counter", "gauge", "histogram"] {
            let names: BTreeSet<String> = documented(&[kind]).into_keys().collect();
            assert_eq!(recorded.described(kind), names, "{kind}");
        }
    });
}
