//! What becomes of the next activity when something goes wrong: the ack is made, nothing is lost, and nobody waits longer than
//! without it.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter, WorkItem};

use super::{ACTIVITY_ACK, HANDED_BACK, ack, enqueue, gets, leased, looks, without_a_look};
use crate::batching::{World, begin};
use crate::fixtures::{LOCK, NOW, activity, completed, create};
use crate::proxy::Mode;
use crate::wake_ups::{PATIENT, eventually, waits_for_a_lock};

/// An activity that cannot be read is reported and keeps its lease; the one behind it can be had.
#[tokio::test]
async fn an_unreadable_next_one_spoils_nothing() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, 1..=3).await;
    let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    let damage = "update worker_queue set work_item = 'damaged' where activity_id = 2";
    world.execute(damage, &[]).await;
    ack(provider, &token, 1).await;
    let (item, _, attempt) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    assert_eq!((item, attempt), (activity("i", 3), 1));
    assert_eq!(leased(&world).await, 2);
}

/// The server refuses the call because of it: the ack goes without.
#[tokio::test]
async fn an_ack_that_is_refused_because_of_the_next_one_goes_without() {
    let world = World::new().await;
    let provider = &world.provider;
    create(&**provider, "bad").await;
    enqueue(provider, [1]).await;
    let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    provider.enqueue_for_worker(activity("bad", 2)).await.expect("enqueue");
    let damage = "alter table history rename to readable; \
                  create view history as select r.instance_id, r.execution_id, r.event_id, r.ack_id, \
                         (1 / (r.event_id - r.event_id))::text as event_data from readable as r; \
                  update mailboxes set cached_by = gen_random_uuid()";
    world.admin.batch_execute(damage).await.expect("damage");
    ack(provider, &token, 1).await;
    assert_eq!(world.proxy.calls_of(ACTIVITY_ACK), 2);
    let completions = "select count(*) from orchestrator_queue where instance_id = 'i'";
    assert_eq!(world.number(completions, &[]).await, 1);
    let (item, _, attempt) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    assert_eq!((item, attempt), (activity("bad", 2), 1));
}

/// The answer is lost: the ack is repeated, and what the first attempt claimed can be had when that lease ends.
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
    assert_eq!((item, attempt), (activity("i", 2), 2));
}

/// A worker whose lease was lost has nothing to ack, but comes back all the same.
#[tokio::test]
async fn an_ack_that_comes_too_late_brings_the_next() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, [1]).await;
    let (_, mut token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    let mut id = 1;
    without_a_look(&world, async || {
        enqueue(provider, [id + 1]).await;
        let taken_over = "update worker_queue set lease = gen_random_uuid() where activity_id = $1";
        world.execute(taken_over, &[&i64::try_from(id).expect("small")]).await;
        let before = looks(&world);
        let late = provider.ack_work_item(&token, Some(completed("i", id))).await;
        late.expect_err("lost");
        id += 1;
        let (item, attempt);
        (item, token, attempt) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        assert_eq!((item, attempt), (activity("i", id), 1));
        looks(&world) == before
    })
    .await;
}

/// The call waits for a lock before it looks: others look for themselves, and in the end it claims nothing, because whoever sent it may
/// have given up.
#[tokio::test]
async fn an_ack_that_is_held_up_does_not_hold_up_others() {
    let world = World::new().await;
    create(&*world.provider, "i").await;
    enqueue(&world.provider, [1]).await;
    let (_, token, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
    // Nothing is to be found any more, until something is enqueued.
    let fetch = world.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly);
    assert!(fetch.await.expect("fetch").is_none());
    enqueue(&world.provider, [2]).await;
    let mut blocker = world.schema.client().await;
    let transaction = blocker.transaction().await.expect("begin");
    let locked = "select from mailboxes where instance_id = 'i' for update";
    transaction.execute(locked, &[]).await.expect("lock");
    let provider = Arc::clone(&world.provider);
    let held_up = tokio::spawn(async move { ack(&provider, &token, 1).await });
    waits_for_a_lock(&world).await;
    let (item, _, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
    assert_eq!(item, activity("i", 2));
    assert!(!held_up.is_finished());
    enqueue(&world.provider, [3]).await;
    let begun = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock' \
                    and query_start < clock_timestamp() - interval '300 ms'";
    eventually("it has been held up for long", || async {
        (world.number(begun, &[&world.schema.name]).await == 1).then_some(())
    })
    .await;
    transaction.rollback().await.expect("rollback");
    held_up.await.expect("no panic");
    assert_eq!((leased(&world).await, world.proxy.calls_of(HANDED_BACK)), (1, 0));
    let (item, _, attempt) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
    assert_eq!((item, attempt), (activity("i", 3), 1));
}

/// The answer to an ack has to come in time: what is large is not in it, once that is known.
#[tokio::test]
async fn large_activities_are_fetched_by_themselves() {
    let world = World::new().await;
    let provider = &world.provider;
    for id in 1..=4 {
        let WorkItem::ActivityExecute {
            instance,
            execution_id,
            name,
            session_id,
            tag,
            ..
        } = activity("i", id)
        else {
            panic!("not an activity");
        };
        let input = "x".repeat(if id < 4 { 100_000 } else { 1 });
        let large = WorkItem::ActivityExecute {
            instance,
            execution_id,
            id,
            name,
            input,
            session_id,
            tag,
        };
        provider.enqueue_for_worker(large).await.expect("enqueue");
    }
    let mut token = gets(provider, LOCK, &TagFilter::DefaultOnly).await.1;
    for id in 1..=3 {
        ack(provider, &token, id).await;
        assert_eq!(leased(&world).await, 0, "{id}");
        token = gets(provider, LOCK, &TagFilter::DefaultOnly).await.1;
    }
    // The last one was small.
    comes_back(&world, token, 4).await;
}

/// A worker that holds this activity acks it and has the next without a look, if not the first time.
async fn comes_back(world: &World, mut token: String, mut id: u64) {
    let provider = &world.provider;
    without_a_look(world, async || {
        enqueue(provider, [id + 1]).await;
        let before = looks(world);
        ack(provider, &token, id).await;
        id += 1;
        let item;
        (item, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        assert_eq!(item, activity("i", id));
        looks(world) == before
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

/// Much of the lease has passed when the answer comes: whoever begins has all of it.
#[tokio::test]
async fn what_comes_too_late_is_handed_back() {
    let world = World::new().await;
    let provider = &world.provider;
    let lock = Duration::from_secs(4);
    enqueue(provider, 1..=2).await;
    let (_, token, _) = gets(provider, lock, &TagFilter::DefaultOnly).await;
    let mut held = world.proxy.hold_answer_of(ACTIVITY_ACK);
    let mut acking = Box::pin(ack(provider, &token, 1));
    tokio::select! {
        () = &mut acking => panic!("not held"),
        () = held.wait() => {}
    }
    tokio::time::sleep(lock / 4).await;
    held.release();
    acking.await;
    let (item, _, attempt) = gets(provider, lock, &TagFilter::DefaultOnly).await;
    assert_eq!((item, attempt), (activity("i", 2), 1));
    eventually("it was handed back", || async {
        (world.proxy.calls_of(HANDED_BACK) == 1).then_some(())
    })
    .await;
}
