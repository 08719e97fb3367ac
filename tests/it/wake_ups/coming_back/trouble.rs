//! What becomes of the next activity when something goes wrong: the ack is made, nothing is lost, and nobody waits longer than
//! without it.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};

use super::{ACTIVITY_ACK, ack, enqueue, gets, leased, looks, with_one_look};
use crate::batching::{World, begin};
use crate::fixtures::{LOCK, activity, completed, create};
use crate::proxy::Mode;
use crate::wake_ups::{PATIENT, eventually, waits_for_a_lock};

/// An activity that cannot be read is reported and keeps its lease; those behind it can be had.
#[tokio::test]
async fn an_unreadable_next_one_spoils_nothing() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, 1..=4).await;
    let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    let damage = "update worker_queue set work_item = 'damaged' where activity_id = 2";
    world.execute(damage, &[]).await;
    ack(provider, &token, 1).await;
    // Nor does it hide those behind them. One may be on its way back to the queue when the other is fetched.
    let mut got = Vec::new();
    for _ in 0..2 {
        let (item, token, attempt) = eventually("something readable", || async {
            let fetch = provider.fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly);
            fetch.await.ok().flatten()
        })
        .await;
        let id = if item == activity("i", 3) { 3 } else { 4 };
        assert_eq!((item, attempt), (activity("i", id), 1));
        ack(provider, &token, id).await;
        got.push(id);
    }
    got.sort_unstable();
    assert_eq!(got, [3, 4]);
    assert_eq!(leased(&world).await, 1);
}

/// The answer is lost: the ack is repeated, and what was looked for beside it is there.
#[tokio::test]
async fn an_ack_whose_answer_is_lost_is_made_once() {
    let world = World::new().await;
    let provider = &world.provider;
    let lock = Duration::from_secs(2);
    enqueue(provider, 1..=2).await;
    let (_, token, _) = gets(provider, lock, &TagFilter::DefaultOnly).await;
    let mut lost = world.proxy.lose_answer_of(ACTIVITY_ACK, Mode::Pass);
    ack(provider, &token, 1).await;
    assert!(lost.has_happened());
    let completions = "select count(*) from orchestrator_queue where instance_id = 'i'";
    assert_eq!(world.number(completions, &[]).await, 1);
    let (item, _, attempt) = gets(provider, lock, &TagFilter::DefaultOnly).await;
    assert_eq!((item, attempt), (activity("i", 2), 1));
}

/// A worker whose lease was lost has nothing to ack, but comes back all the same.
#[tokio::test]
async fn whoever_acks_too_late_comes_back_all_the_same() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, [1]).await;
    let (_, mut token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    let mut id = 1;
    with_one_look(&world, async || {
        enqueue(provider, [id + 1]).await;
        let taken_over = "update worker_queue set lease = gen_random_uuid() where activity_id = $1";
        world.execute(taken_over, &[&i64::try_from(id).expect("small")]).await;
        let late = provider.ack_work_item(&token, Some(completed("i", id))).await;
        late.expect_err("lost");
        id += 1;
        let (item, attempt);
        (item, token, attempt) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        assert_eq!((item, attempt), (activity("i", id), 1));
    })
    .await;
}

/// The ack waits for a lock: what was looked for beside it can be had.
#[tokio::test]
async fn an_ack_that_is_held_up_does_not_hold_up_others() {
    let world = World::new().await;
    create(&*world.provider, "i").await;
    enqueue(&world.provider, 1..=3).await;
    let (_, token, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
    let mut blocker = world.schema.client().await;
    let transaction = blocker.transaction().await.expect("begin");
    let locked = "select from mailboxes where instance_id = 'i' for update";
    transaction.execute(locked, &[]).await.expect("lock");
    let provider = Arc::clone(&world.provider);
    let held_up = tokio::spawn(async move { ack(&provider, &token, 1).await });
    waits_for_a_lock(&world).await;
    // On a busy machine what was found first may be on its way back when the other one is found.
    let mut got = [
        gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await,
        gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await,
    ]
    .map(|(item, _, attempt)| (format!("{item:?}"), attempt));
    got.sort();
    assert_eq!(got, [2, 3].map(|id| (format!("{:?}", activity("i", id)), 1)));
    assert!(!held_up.is_finished());
    transaction.rollback().await.expect("rollback");
    held_up.await.expect("no panic");
    assert_eq!(leased(&world).await, 2);
}

/// A worker that holds this activity acks it and finds the next without a look of its own, if not the first time.
async fn comes_back(world: &World, mut token: String, mut id: u64) {
    let provider = &world.provider;
    with_one_look(world, async || {
        enqueue(provider, [id + 1]).await;
        ack(provider, &token, id).await;
        id += 1;
        let item;
        (item, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        assert_eq!(item, activity("i", id));
    })
    .await;
}

/// A runtime that shuts down drops the fetches that wait, and lets activities come to their end: who acks those does not come back.
#[tokio::test]
async fn nothing_is_claimed_for_a_runtime_that_shuts_down() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, 1..=2).await;
    let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    let mut waiting = Box::pin(provider.fetch_orchestration_item(LOCK, PATIENT, None));
    assert!(begin(waiting.as_mut()).await.is_pending());
    drop(waiting);
    ack(provider, &token, 1).await;
    assert_eq!(leased(&world).await, 0);
    // There is another.
    let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    comes_back(&world, token, 2).await;
}

/// Whoever carried the ack is gone with its runtime: what is kept there is not kept for ever.
#[test]
fn a_runtime_that_ends_keeps_nothing() {
    let new_runtime = || tokio::runtime::Runtime::new().expect("runtime");
    let survivor = new_runtime();
    let world = survivor.block_on(World::new());
    let provider = Arc::clone(&world.provider);
    let short = Duration::from_secs(2);
    new_runtime().block_on(async {
        enqueue(&provider, 1..=2).await;
        let (_, token, _) = gets(&provider, short, &TagFilter::DefaultOnly).await;
        ack(&provider, &token, 1).await;
    });
    let before = looks(&world);
    survivor.block_on(async {
        // From the database, when the lease ends that could not be handed back.
        let (item, token, _) = gets(&provider, short, &TagFilter::DefaultOnly).await;
        assert_eq!(item, activity("i", 2));
        assert!(looks(&world) > before);
        ack(&provider, &token, 2).await;
    });
}
