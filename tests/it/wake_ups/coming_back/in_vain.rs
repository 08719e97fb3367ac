//! What was looked for and nobody came for: it is as if nobody had looked.

use std::time::{Duration, Instant};

use duroxide::providers::{ExecutionMetadata, Provider, ScheduledActivityIdentifier, TagFilter, WorkItem};
use uuid::Uuid;

use super::{Activity, HANDED_BACK, PATIENT, SOON, WOKEN, ack, enqueue, eventually, gets, leased};
use crate::batching::World;
use crate::fixtures::{LOCK, NOW, activity, create, raised, turn};

/// How long a fetch that does not wait is put off while something is on its way, or a little less.
const IN_HAND: Duration = Duration::from_millis(200);
/// How long something is kept for whoever comes back, or a little less.
const RETURNING: Duration = Duration::from_millis(45);

/// Acks one activity, and does not come back. How many are leased now, and may go back at any moment.
async fn leaves(world: &World) -> i64 {
    let (item, token, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
    ack(&world.provider, &token, id_of(&item)).await;
    leased(world).await
}

fn id_of(item: &WorkItem) -> u64 {
    match item {
        WorkItem::ActivityExecute { id, .. } => *id,
        other => panic!("{other:?}"),
    }
}

async fn everything_is_back(world: &World) {
    let back = eventually("it is handed back", || async {
        (leased(world).await == 0).then_some(())
    });
    // Long before a lease ends.
    tokio::time::timeout(WOKEN, back).await.expect("soon");
}

/// In front of what came later, and behind what has waited longer.
#[tokio::test]
async fn what_goes_back_has_its_own_place() {
    let world = eventually("something older comes before it is back", || async {
        let world = World::new().await;
        enqueue(&world.provider, 1..=4).await;
        let (_, token, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
        ack(&world.provider, &token, 1).await;
        let older = "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select instance_id, 1, 9, clock_timestamp() - interval '1 minute', '', '', replace(work_item, '\"id\":4', '\"id\":9') \
               from worker_queue where activity_id = 4 and exists (select from worker_queue where lease is not null)";
        let was_in_time = world.admin.execute(older, &[]).await.expect("older") == 1;
        everything_is_back(&world).await;
        was_in_time.then_some(world)
    })
    .await;
    let (other, _proxy) = world.another_process().await;
    for id in [9, 2, 3, 4] {
        let (item, _, attempt): Activity = gets(&other, LOCK, &TagFilter::DefaultOnly).await;
        assert_eq!((item, attempt), (activity("i", id), 1));
    }
}

/// Otherwise a call each would be spent on it, again and again.
#[tokio::test]
async fn what_went_back_is_not_looked_for_again_at_once() {
    let world = World::new().await;
    enqueue(&world.provider, 1..=60).await;
    let went_back = || world.proxy.calls_of(HANDED_BACK);
    leaves(&world).await;
    eventually("some go back", || async { (went_back() > 0).then_some(()) }).await;
    let before = went_back();
    for _ in 0..5 {
        leaves(&world).await;
        everything_is_back(&world).await;
    }
    // Each time it tries one, and one more for the first that is found; and there may be some from the first time. It would be up to six.
    let more = went_back() - before;
    assert!((1..=15).contains(&more), "{more}");
}

/// Its instance wants it no longer.
#[tokio::test]
async fn what_was_cancelled_meanwhile_is_not_begun() {
    let world = World::new().await;
    let provider = &world.provider;
    eventually("it is kept when it is cancelled", || async {
        let instance = Uuid::new_v4().to_string();
        create(&**provider, &instance).await;
        let message = provider.enqueue_for_orchestrator(raised(&instance, "x"), None).await;
        message.expect("enqueue");
        let (_, turn, _) = turn(&**provider, LOCK).await;
        enqueue(provider, [1]).await;
        let later = provider.enqueue_for_worker(activity(&instance, 2)).await;
        later.expect("enqueue");
        let found = Instant::now();
        let is_kept = leaves(&world).await == 1;
        let cancelled = ScheduledActivityIdentifier {
            instance: instance.clone(),
            execution_id: 1,
            activity_id: 2,
        };
        let metadata = ExecutionMetadata::default();
        let acked = provider.ack_orchestration_item(&turn, 1, vec![], vec![], vec![], metadata, vec![cancelled]);
        acked.await.expect("ack");
        let is_kept = is_kept && found.elapsed() < RETURNING;
        let fetched = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
        // The answer of the look that found it may have come behind the ack.
        let is_gone = fetched.expect("fetch").is_none();
        (is_kept && is_gone).then_some(())
    })
    .await;
}

/// Another worker of the same process asks for something else, and does not wait: nothing is hidden from it.
#[tokio::test]
async fn nothing_is_hidden_from_who_asks_on_other_terms() {
    eventually("some are kept", || async {
        let world = World::new().await;
        enqueue(&world.provider, 1..=3).await;
        let are_kept = leaves(&world).await > 0;
        for _ in 2..=3 {
            let begun = Instant::now();
            let fetched = world
                .provider
                .fetch_work_item(LOCK * 2, NOW, None, &TagFilter::Any)
                .await;
            let fetched = fetched.expect("fetch");
            if fetched.is_none() && begun.elapsed() > IN_HAND {
                // It was on its way back for longer than anybody waits for it.
                return None;
            }
            assert_eq!(fetched.expect("an activity").2, 1);
        }
        are_kept.then_some(())
    })
    .await;
}

/// Nobody of this process will come back any more.
#[tokio::test]
async fn what_is_kept_when_a_provider_closes_can_be_had() {
    eventually("some are kept", || async {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        // Its listener is up, by which it tells others.
        world.settle().await;
        enqueue(&world.provider, 1..=3).await;
        let are_kept = leaves(&world).await > 0;
        world.provider.close();
        for _ in 2..=3 {
            let fetch = other.fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly);
            let fetched = tokio::time::timeout(SOON, fetch).await.expect("in time");
            assert_eq!(fetched.expect("fetch").expect("an activity").2, 1);
        }
        are_kept.then_some(())
    })
    .await;
}
