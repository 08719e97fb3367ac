//! A fetch that waits goes out right behind the call that brings it something, on the same connection.

use std::sync::Arc;

use duroxide::providers::Provider;

use super::{BOTH, Queue, SOON, Waiting, eventually, waits_for_a_lock};
use crate::batching::World;
use crate::fixtures::{self, Ack, LOCK, activity, completed, create, raised, scheduled, turn, work};
use crate::proxy::Mode;

/// A provider whose statements are prepared, and somebody who waits.
async fn waiting(queue: Queue) -> (World, Waiting) {
    let world = World::new().await;
    queue.enqueue(&world.provider, "before").await;
    assert!(queue.fetch(&world.provider, LOCK, SOON).await.expect("fetch").is_some());
    world.settle().await;
    let waiting = Waiting::begin(&world.provider, queue).await;
    (world, waiting)
}

impl Queue {
    /// What puts something into it.
    fn enqueue_call(self) -> &'static str {
        match self {
            Self::Turns => ".enqueue_for_orchestrator(",
            Self::Activities => ".enqueue_for_worker",
        }
    }
}

/// Its caller knows nothing of the enqueue's success yet, and already its work is claimed.
#[tokio::test]
async fn work_is_claimed_before_the_enqueue_is_answered() {
    for queue in BOTH {
        let (world, waiting) = waiting(queue).await;
        let mut held = world.proxy.hold_answer_of(queue.enqueue_call());
        let enqueue = queue.enqueue(&world.provider, "instance");
        let claimed = async {
            held.wait().await;
            eventually("claimed", || async {
                queue.is_leased(&world, "instance").await.then_some(())
            })
            .await;
            held.release();
        };
        tokio::join!(enqueue, claimed);
        assert_eq!(waiting.gets(SOON).await, ("instance".to_string(), 1), "{queue:?}");
    }
}

/// So are the activities of a turn, and the turn after an activity.
#[tokio::test]
async fn work_is_claimed_before_the_ack_is_answered() {
    let world = World::new().await;
    let provider = &*world.provider;
    create(provider, "instance").await;
    provider
        .enqueue_for_orchestrator(raised("instance", "x"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(provider, LOCK).await;
    world.settle().await;
    let waiting = Waiting::begin(&world.provider, Queue::Activities).await;
    let mut held = world.proxy.hold_answer_of(".ack_orchestration_item(");
    let ack = Ack {
        events: vec![scheduled("instance", 2)],
        activities: vec![activity("instance", 2)],
        ..Ack::default()
    };
    let ack = fixtures::ack(provider, &token, ack);
    let claimed = async {
        held.wait().await;
        eventually("claimed", || async {
            Queue::Activities.is_leased(&world, "instance").await.then_some(())
        })
        .await;
        held.release();
    };
    let (acked, ()) = tokio::join!(ack, claimed);
    acked.expect("ack");
    assert_eq!(waiting.gets(SOON).await.0, "instance");

    create(provider, "other").await;
    provider
        .enqueue_for_worker(activity("other", 3))
        .await
        .expect("enqueue");
    let (_, token, _) = work(provider, LOCK).await;
    let waiting = Waiting::begin(&world.provider, Queue::Turns).await;
    let mut held = world.proxy.hold_answer_of(".ack_work_item(");
    let ack = world.provider.ack_work_item(&token, Some(completed("other", 3)));
    let claimed = async {
        held.wait().await;
        eventually("claimed", || async {
            Queue::Turns.is_leased(&world, "other").await.then_some(())
        })
        .await;
        held.release();
    };
    let (acked, ()) = tokio::join!(ack, claimed);
    acked.expect("ack");
    assert_eq!(waiting.gets(SOON).await.0, "other");
}

/// The mailbox that a turn sends to is locked: the look behind its ack is stuck, but nobody waits for that look alone.
#[tokio::test]
async fn a_look_behind_a_call_that_is_held_up_does_not_hold_up_the_fetch() {
    let world = World::new().await;
    create(&*world.provider, "locked").await;
    create(&*world.provider, "sender").await;
    let sent = world
        .provider
        .enqueue_for_orchestrator(raised("sender", "x"), None)
        .await;
    sent.expect("enqueue");
    let (_, token, _) = turn(&*world.provider, LOCK).await;
    world.settle().await;
    let mut blocker = world.schema.client().await;
    let transaction = blocker.transaction().await.expect("begin");
    transaction
        .execute("select from mailboxes where instance_id = 'locked' for update", &[])
        .await
        .expect("lock");
    let waiting = Waiting::begin(&world.provider, Queue::Turns).await;
    let looks = world.proxy.calls_of(".fetch_orchestration_item(");
    let provider = Arc::clone(&world.provider);
    let held_up = tokio::spawn(async move {
        let ack = Ack {
            messages: vec![raised("locked", "x")],
            ..Ack::default()
        };
        fixtures::ack(&*provider, &token, ack).await.expect("ack");
    });
    waits_for_a_lock(&world).await;
    eventually("a look is behind it", || async {
        (world.proxy.calls_of(".fetch_orchestration_item(") > looks).then_some(())
    })
    .await;
    let other = world.schema.provider().await;
    Queue::Turns.enqueue(&other, "free").await;
    assert_eq!(waiting.gets(SOON).await, ("free".to_string(), 1));
    assert!(!held_up.is_finished());

    let handed_back = world.proxy.calls_of(".abandon_orchestration_item(");
    transaction.rollback().await.expect("rollback");
    held_up.await.expect("no panic");
    // The look behind it claims it for nobody, and hands it back: due as it was before.
    eventually("handed back", || async {
        (world.proxy.calls_of(".abandon_orchestration_item(") > handed_back).then_some(())
    })
    .await;
    eventually("due", || async {
        let due = "select count(*) from mailboxes as m join orchestrator_queue as q using (instance_id) \
                    where m.instance_id = 'locked' and m.lease is null and m.available_at = q.visible_at";
        (world.number(due, &[]).await == 1).then_some(())
    })
    .await;
    let fetched = Queue::Turns.fetch(&world.provider, LOCK, SOON).await.expect("fetch");
    assert_eq!(fetched, Some(("locked".to_string(), 1)));
}

/// The connection ends under both. What becomes of the enqueue nobody knows; the fetch goes on waiting.
#[tokio::test]
async fn a_fetch_survives_the_connection_of_the_call_before_it() {
    for queue in BOTH {
        let (world, waiting) = waiting(queue).await;
        let mut lost = world.proxy.lose_request_of(queue.enqueue_call(), Mode::Pass);
        let sent = match queue {
            Queue::Turns => world.provider.enqueue_for_orchestrator(raised("lost", "x"), None).await,
            Queue::Activities => world.provider.enqueue_for_worker(activity("lost", 1)).await,
        };
        let error = sent.expect_err("lost");
        assert!(error.message.contains("may or may not"), "{error}");
        assert!(lost.has_happened());
        queue.enqueue(&world.provider, "instance").await;
        assert_eq!(waiting.gets(SOON).await, ("instance".to_string(), 1), "{queue:?}");
    }
}
