//! What becomes of a handover when something goes wrong: nothing is lost, and nobody waits longer than without it.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};

use super::{ACTIVITY_ACK, TURN_ACK, gets, leased, looks, schedules, waits_for};
use crate::batching::{FETCH_ACTIVITIES, World, begin};
use crate::fixtures::{self, LOCK, NOW, activity, completed, create, raised, work};
use crate::proxy::Mode;
use crate::wake_ups::{PATIENT, Queue, SOON, Waiting, waits_for_a_lock};

/// A turn that has lost its lease schedules nothing: who waited for it gets something else.
#[tokio::test]
async fn an_ack_that_fails_hands_over_nothing() {
    let world = World::new().await;
    let provider = &world.provider;
    let token = leased(&world, "i").await;
    world
        .execute(
            "update mailboxes set lease = gen_random_uuid() where instance_id = 'i'",
            &[],
        )
        .await;
    world.settle().await;
    let worker = waits_for(provider, LOCK, TagFilter::DefaultOnly).await;
    let ack = schedules("i", vec![activity("i", 2)]);
    fixtures::ack(&**provider, &token, ack).await.expect_err("lost");
    provider
        .enqueue_for_worker(activity("other", 1))
        .await
        .expect("enqueue");
    assert_eq!(gets(worker).await.0, activity("other", 1));
}

/// The answer that would have brought it is lost. The ack is repeated, and finds that it had been made.
#[tokio::test]
async fn an_activity_whose_handover_is_lost_can_be_had_at_once() {
    let world = World::new().await;
    let provider = &world.provider;
    let token = leased(&world, "i").await;
    world.settle().await;
    let worker = waits_for(provider, LOCK, TagFilter::DefaultOnly).await;
    let mut lost = world.proxy.lose_answer_of(TURN_ACK, Mode::Pass);
    let ack = schedules("i", vec![activity("i", 2)]);
    fixtures::ack(&**provider, &token, ack).await.expect("ack");
    assert!(lost.has_happened());
    let (item, token, attempt) = gets(worker).await;
    assert_eq!((item, attempt), (activity("i", 2), 1));
    provider.ack_work_item(&token, None).await.expect("ack");
}

/// The same for a turn: it is given back.
#[tokio::test]
async fn a_turn_whose_handover_is_lost_can_be_had_at_once() {
    for from_client in [false, true] {
        let world = World::new().await;
        let provider = &world.provider;
        create(&**provider, "i").await;
        provider.enqueue_for_worker(activity("i", 2)).await.expect("enqueue");
        let (_, token, _) = work(&**provider, LOCK).await;
        world.settle().await;
        let dispatcher = Waiting::begin(provider, Queue::Turns).await;
        if from_client {
            let mut lost = world.proxy.lose_answer_of(".enqueue_for_orchestrator(", Mode::Pass);
            let error = provider.enqueue_for_orchestrator(raised("i", "x"), None).await;
            assert!(error.expect_err("lost").message.contains("may or may not"));
            assert!(lost.has_happened());
        } else {
            let mut lost = world.proxy.lose_answer_of(ACTIVITY_ACK, Mode::Pass);
            let acked = provider.ack_work_item(&token, Some(completed("i", 2))).await;
            acked.expect("ack");
            assert!(lost.has_happened());
        }
        assert_eq!(dispatcher.gets(SOON).await, ("i".to_string(), 1), "{from_client}");
    }
}

/// The call that hands over waits for a lock: who waits for it goes on looking, and what it brings at last is handed back.
#[tokio::test]
async fn a_handover_that_is_held_up_does_not_hold_up_the_fetch() {
    let world = World::new().await;
    create(&*world.provider, "locked").await;
    world.settle().await;
    let mut blocker = world.schema.client().await;
    let transaction = blocker.transaction().await.expect("begin");
    let locked = "select from mailboxes where instance_id = 'locked' for update";
    transaction.execute(locked, &[]).await.expect("lock");
    let waiting = Waiting::begin(&world.provider, Queue::Turns).await;
    let provider = Arc::clone(&world.provider);
    let held_up = tokio::spawn(async move {
        let sent = provider.enqueue_for_orchestrator(raised("locked", "x"), None).await;
        sent.expect("enqueue");
    });
    waits_for_a_lock(&world).await;
    let other = world.schema.provider().await;
    Queue::Turns.enqueue(&other, "free").await;
    assert_eq!(waiting.gets(SOON).await, ("free".to_string(), 1));
    assert!(!held_up.is_finished());
    transaction.rollback().await.expect("rollback");
    held_up.await.expect("no panic");
    let fetched = Queue::Turns.fetch(&world.provider, LOCK, SOON).await.expect("fetch");
    assert_eq!(fetched, Some(("locked".to_string(), 1)));
}

/// An instance whose history cannot be read spoils neither the enqueue nor the ack that would have handed it over.
#[tokio::test]
async fn a_turn_that_cannot_be_read_spoils_nothing() {
    let world = World::new().await;
    let provider = &world.provider;
    create(&**provider, "bad").await;
    provider.enqueue_for_worker(activity("bad", 2)).await.expect("enqueue");
    let (_, token, _) = work(&**provider, LOCK).await;
    let damage = "alter table history rename to readable; \
                  create view history as select r.instance_id, r.execution_id, r.event_id, r.ack_id, \
                         (1 / (r.event_id - r.event_id))::text as event_data from readable as r; \
                  update mailboxes set cached_by = null";
    world.admin.batch_execute(damage).await.expect("damage");
    world.settle().await;
    for from_client in [true, false] {
        let nothing = provider.fetch_orchestration_item(LOCK, NOW, None).await.expect("fetch");
        assert!(nothing.is_none());
        let mut fetch = Box::pin(provider.fetch_orchestration_item(LOCK, PATIENT, None));
        assert!(begin(fetch.as_mut()).await.is_pending());
        if from_client {
            let sent = provider.enqueue_for_orchestrator(raised("bad", "x"), None).await;
            sent.expect("enqueue");
        } else {
            let acked = provider.ack_work_item(&token, Some(completed("bad", 2))).await;
            acked.expect("ack");
        }
        let fetched = tokio::time::timeout(SOON, fetch)
            .await
            .expect("in time")
            .expect("fetch");
        let (item, token, _) = fetched.expect("a turn");
        let error = item.history_error.expect("reported");
        assert!(error.contains("division by zero"), "{error}");
        // Idle again, as if that turn had been acked.
        world.execute("delete from orchestrator_queue", &[]).await;
        provider
            .abandon_orchestration_item(&token, None, true)
            .await
            .expect("abandon");
        assert!(
            provider
                .fetch_orchestration_item(LOCK, NOW, None)
                .await
                .expect("fetch")
                .is_none()
        );
        world.settle().await;
    }
}

/// Whoever got it never acks: somebody who has heard of nothing since takes it over when the lease ends, in the same process and in
/// another.
#[tokio::test]
async fn what_is_handed_over_passes_on_when_its_lease_ends() {
    const LEASE: Duration = Duration::from_secs(1);
    for in_another in [false, true] {
        let world = World::new().await;
        let provider = &world.provider;
        let (other, proxy) = world.another_process().await;
        let token = leased(&world, "i").await;
        world.settle().await;
        // Until the listener of the other is up as well, it looks now and then.
        loop {
            let before = proxy.calls_of(FETCH_ACTIVITIES);
            let nothing = other.fetch_work_item(LEASE, LEASE, None, &TagFilter::DefaultOnly).await;
            assert!(nothing.expect("fetch").is_none());
            if proxy.calls_of(FETCH_ACTIVITIES) == before {
                break;
            }
        }
        let worker = waits_for(provider, LEASE, TagFilter::DefaultOnly).await;
        let heir = waits_for(
            if in_another { &other } else { provider },
            LEASE,
            TagFilter::DefaultOnly,
        )
        .await;
        let before = looks(&world);
        let ack = schedules("i", vec![activity("i", 2)]);
        fixtures::ack(&**provider, &token, ack).await.expect("ack");
        assert_eq!(gets(worker).await.2, 1);
        assert_eq!(looks(&world), before);
        assert_eq!(gets(heir).await.2, 2, "{in_another}");
    }
}
