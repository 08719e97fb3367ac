//! A process whose connection for LISTEN is cut still gets the work of others, and listens again.

use std::time::{Duration, Instant};

use duroxide::providers::Provider;

use super::{LEASE, World, eventually};
use crate::fixtures;

/// More than the longest fallback poll, less than the poll timeout.
const POLLED: Duration = Duration::from_secs(7);
/// Less than the shortest fallback poll of a provider that listens: only a notification is so quick.
const NOTIFIED: Duration = Duration::from_secs(2);
const POLL_TIMEOUT: Duration = Duration::from_secs(60);

/// The backend that listens for the provider behind the proxy, as long as that has enqueued nothing.
async fn listener(world: &World) -> Option<i32> {
    let backend = "select pid from pg_stat_activity where query = 'select pg_backend_pid()' and application_name = $1";
    let row = world.admin.query_opt(backend, &[&world.schema.name]).await;
    row.expect("pg_stat_activity").map(|row| row.get(0))
}

/// How long it takes until a waiting fetch gets what another process enqueues.
async fn delivery(world: &World, other: &dyn Provider, instance: &str) -> Duration {
    let before = world.proxy.calls_of(".fetch_orchestration_item(");
    let waiting = {
        let provider = world.provider.clone();
        tokio::spawn(async move { provider.fetch_orchestration_item(LEASE, POLL_TIMEOUT, None).await })
    };
    eventually("the fetch has looked once", || async {
        (world.proxy.calls_of(".fetch_orchestration_item(") > before).then_some(())
    })
    .await;
    let enqueued = Instant::now();
    other
        .enqueue_for_orchestrator(fixtures::start(instance), None)
        .await
        .expect("enqueue");
    let (turn, _, _) = tokio::time::timeout(POLL_TIMEOUT, waiting)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("fetch")
        .expect("a turn");
    assert_eq!(turn.instance, instance);
    enqueued.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_listener_comes_back() {
    let world = World::new().await;
    let other = world.schema.provider().await;
    let first = eventually("somebody listens", || listener(&world)).await;
    let quick = delivery(&world, &*other, "before").await;
    assert!(quick < NOTIFIED, "{quick:?}");

    world.terminate(first).await;
    let second = eventually("somebody listens again", || async {
        listener(&world).await.filter(|process| *process != first)
    })
    .await;
    assert_ne!(second, first);
    let quick = delivery(&world, &*other, "after").await;
    assert!(quick < NOTIFIED, "{quick:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_arrives_while_nobody_can_listen() {
    let world = World::new().await;
    let other = world.schema.provider().await;
    let first = eventually("somebody listens", || listener(&world)).await;
    // Waits before the listener is lost, and sleeps as long as one may who counts on it.
    let waiting = {
        let provider = world.provider.clone();
        tokio::spawn(async move { provider.fetch_orchestration_item(LEASE, POLL_TIMEOUT, None).await })
    };
    eventually("the fetch has looked once", || async {
        (world.proxy.calls_of(".fetch_orchestration_item(") > 0).then_some(())
    })
    .await;
    world.proxy.forbid("listen ");
    world.terminate(first).await;
    eventually("nobody listens", || async {
        listener(&world).await.is_none().then_some(())
    })
    .await;
    other
        .enqueue_for_orchestrator(fixtures::start("waited for"), None)
        .await
        .expect("enqueue");
    let turn = tokio::time::timeout(POLLED, waiting).await.expect("in time");
    assert!(turn.expect("no panic").expect("fetch").is_some());

    // Whoever begins to wait now, polls more often.
    let polled = delivery(&world, &*other, "polled for").await;
    assert!(polled < NOTIFIED, "{polled:?}");

    world.proxy.allow_all();
    eventually("somebody listens again", || listener(&world)).await;
    let quick = delivery(&world, &*other, "after").await;
    assert!(quick < NOTIFIED, "{quick:?}");
}
