//! A fetch that is dropped while its query is on the wire hands back what it was granted, at once and as if it had
//! never been delivered.

use duroxide::providers::{Provider, TagFilter};

use super::{INSTANCE, World, eventually};
use crate::fixtures;

/// Much longer than the tests wait: what can be claimed again was handed back.
const LEASE: std::time::Duration = std::time::Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_fetch_of_a_turn_hands_it_back() {
    let world = World::new().await;
    world
        .provider
        .enqueue_for_orchestrator(fixtures::start(INSTANCE), None)
        .await
        .expect("enqueue");
    let mut held = world.proxy.hold_answer_of(".fetch_orchestration_item(");
    let provider = world.provider.clone();
    let fetch = tokio::spawn(async move { provider.fetch_orchestration_item(LEASE, fixtures::NOW, None).await });
    held.wait().await;
    assert!(world.lease_left("mailboxes").await.is_some(), "granted");
    fetch.abort();
    assert!(fetch.await.expect_err("dropped").is_cancelled());
    held.release();

    eventually("the lease is handed back", || async {
        world.lease_left("mailboxes").await.is_none().then_some(())
    })
    .await;
    // After a moment's rest, long before the lease would have ended.
    let (turn, _, attempt) = world
        .provider
        .fetch_orchestration_item(LEASE, LEASE / 3, None)
        .await
        .expect("fetch")
        .expect("a turn");
    assert_eq!((turn.messages.len(), attempt), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_fetch_of_an_activity_hands_it_back() {
    let world = World::new().await;
    world
        .provider
        .enqueue_for_worker(fixtures::activity(INSTANCE, 2))
        .await
        .expect("enqueue");
    let mut held = world.proxy.hold_answer_of(".fetch_work_item(");
    let provider = world.provider.clone();
    let fetch = tokio::spawn(async move {
        provider
            .fetch_work_item(LEASE, fixtures::NOW, None, &TagFilter::DefaultOnly)
            .await
    });
    held.wait().await;
    assert!(world.lease_left("worker_queue").await.is_some(), "granted");
    fetch.abort();
    assert!(fetch.await.expect_err("dropped").is_cancelled());
    held.release();

    eventually("the lease is handed back", || async {
        world.lease_left("worker_queue").await.is_none().then_some(())
    })
    .await;
    let (_, _, attempt) = fixtures::work(&*world.provider, LEASE).await;
    assert_eq!(attempt, 1);
}

/// A waiting fetch of another process gets what a dropped one hands back, without waiting for its own next look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_fetch_hands_back_wakes_the_next_one() {
    let world = World::new().await;
    let other = world.schema.provider().await;
    world
        .provider
        .enqueue_for_orchestrator(fixtures::start(INSTANCE), None)
        .await
        .expect("enqueue");
    let mut held = world.proxy.hold_answer_of(".fetch_orchestration_item(");
    let provider = world.provider.clone();
    let fetch = tokio::spawn(async move { provider.fetch_orchestration_item(LEASE, fixtures::NOW, None).await });
    held.wait().await;
    let waiting = tokio::spawn(async move { other.fetch_orchestration_item(LEASE, super::LEASE, None).await });
    fetch.abort();
    held.release();
    let (turn, _, attempt) = tokio::time::timeout(super::SOON, waiting)
        .await
        .expect("soon")
        .expect("no panic")
        .expect("fetch")
        .expect("a turn");
    assert_eq!((turn.instance.as_str(), attempt), (INSTANCE, 1));
}
