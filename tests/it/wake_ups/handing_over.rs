//! What meets somebody who waits in its own process is handed over by the call that makes it: nobody looks for it.

mod idle;
mod starts;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use duroxide::Event;
use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, Provider, ScheduledActivityIdentifier, SemverRange, TagFilter,
    WorkItem,
};
use duroxide_postgres::PostgresProvider;
use semver::Version;
use tokio::task::JoinHandle;

use super::{PATIENT, Queue, SOON, Waiting};
use crate::batching::{FETCH_ACTIVITIES, FETCH_TURNS, World, begin};
use crate::fixtures::{
    self, Ack, LOCK, NOW, activity, completed, create, named, raised, routed_activity, scheduled, start, started, turn,
    work,
};

const TURN_ACK: &str = ".ack_orchestration_item(";
const ACTIVITY_ACK: &str = ".ack_work_item(";

type Activity = (WorkItem, String, u32);

/// A worker that waits for these tags: it has looked in vain.
async fn waits_for(provider: &Arc<PostgresProvider>, lock: Duration, tags: TagFilter) -> JoinHandle<Activity> {
    let nothing = provider.fetch_work_item(lock, NOW, None, &tags).await;
    assert!(nothing.expect("fetch").is_none());
    let provider = Arc::clone(provider);
    let mut fetch = Box::pin(async move {
        let fetched = provider.fetch_work_item(lock, PATIENT, None, &tags).await;
        fetched.expect("fetch").expect("an activity")
    });
    assert!(begin(fetch.as_mut()).await.is_pending());
    tokio::spawn(fetch)
}

async fn gets(waiting: JoinHandle<Activity>) -> Activity {
    let got = tokio::time::timeout(SOON, waiting).await;
    got.expect("in time").expect("no panic")
}

/// An instance in the middle of a turn: its token.
async fn leased(world: &World, instance: &str) -> String {
    create(&*world.provider, instance).await;
    let sent = world
        .provider
        .enqueue_for_orchestrator(raised(instance, "x"), None)
        .await;
    sent.expect("enqueue");
    let (_, token, _) = turn(&*world.provider, LOCK).await;
    token
}

/// The end of a turn that schedules these.
fn schedules(instance: &str, activities: Vec<WorkItem>) -> Ack {
    let ids = activities.iter().map(|item| match item {
        WorkItem::ActivityExecute { id, .. } => *id,
        other => panic!("{other:?}"),
    });
    Ack {
        events: ids.map(|id| scheduled(instance, id)).collect(),
        activities,
        ..Ack::default()
    }
}

/// How often somebody looked.
fn looks(world: &World) -> [usize; 2] {
    [FETCH_TURNS, FETCH_ACTIVITIES].map(|call| world.proxy.calls_of(call))
}

#[tokio::test]
async fn nobody_looks_for_what_is_handed_over() {
    let world = World::new().await;
    let provider = &world.provider;
    let token = leased(&world, "i").await;
    world.settle().await;
    let worker = waits_for(provider, LOCK, TagFilter::DefaultOnly).await;
    let dispatcher = Waiting::begin(provider, Queue::Turns).await;
    let before = looks(&world);

    // From a turn to a worker,
    let ack = schedules("i", vec![activity("i", 2)]);
    fixtures::ack(&**provider, &token, ack).await.expect("ack");
    let (item, token, attempt) = gets(worker).await;
    assert_eq!((item, attempt), (activity("i", 2), 1));
    // from there to a dispatcher,
    let acked = provider.ack_work_item(&token, Some(completed("i", 2))).await;
    acked.expect("ack");
    assert_eq!(dispatcher.gets(SOON).await, ("i".to_string(), 1));
    // and from a client, too.
    let dispatcher = Waiting::begin(provider, Queue::Turns).await;
    let before = [before[0] + 1, before[1]];
    Queue::Turns.enqueue(provider, "new").await;
    assert_eq!(dispatcher.gets(SOON).await, ("new".to_string(), 1));
    assert_eq!(looks(&world), before);
}

/// Several turns end in one call, and not all that they schedule is waited for.
#[tokio::test]
async fn a_shared_ack_hands_over_as_much_as_is_waited_for() {
    let world = World::new().await;
    let provider = &world.provider;
    let tokens = [
        leased(&world, "a").await,
        leased(&world, "b").await,
        leased(&world, "c").await,
    ];
    world.settle().await;
    let workers = [
        waits_for(provider, LOCK, TagFilter::DefaultOnly).await,
        waits_for(provider, LOCK, TagFilter::DefaultOnly).await,
        waits_for(provider, LOCK, TagFilter::DefaultOnly).await,
        waits_for(provider, LOCK, TagFilter::DefaultOnly).await,
    ];
    let [a, b, c] = tokens;
    // The first goes alone; the others wait for it, and share the next call.
    let mut held = world.proxy.hold_answer_of(TURN_ACK);
    let first = {
        let provider = Arc::clone(provider);
        tokio::spawn(async move { fixtures::ack(&*provider, &a, schedules("a", vec![activity("a", 2)])).await })
    };
    held.wait().await;
    let of = |instance: &str| schedules(instance, (2..5).map(|id| activity(instance, id)).collect());
    let mut others = Box::pin(async {
        tokio::join!(
            fixtures::ack(&**provider, &b, of("b")),
            fixtures::ack(&**provider, &c, of("c"))
        )
    });
    assert!(begin(others.as_mut()).await.is_pending());
    held.release();
    let (second, third) = others.await;
    first.await.expect("no panic").expect("ack");
    second.expect("ack");
    third.expect("ack");

    let mut got = Vec::new();
    for worker in workers {
        let (item, token, attempt) = gets(worker).await;
        assert_eq!(attempt, 1);
        got.push(item);
        // It is leased to whoever got it.
        provider.ack_work_item(&token, None).await.expect("ack");
    }
    // The others are there for whoever asks. Those who acked were to come back, so one may just be on its way back to the queue.
    for _ in 0..3 {
        let fetched = provider
            .fetch_work_item(LOCK, SOON, None, &TagFilter::DefaultOnly)
            .await;
        got.push(fetched.expect("fetch").expect("an activity").0);
    }
    let nothing = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
    assert!(nothing.expect("fetch").is_none());
    let all = [("a", 2..3), ("b", 2..5), ("c", 2..5)]
        .map(|(instance, ids)| ids.map(|id| activity(instance, id)).collect::<Vec<_>>());
    let sorted = |items: Vec<WorkItem>| {
        let mut items: Vec<_> = items.iter().map(|item| format!("{item:?}")).collect();
        items.sort();
        items
    };
    assert_eq!(sorted(got), sorted(all.concat()));
}

#[tokio::test]
async fn workers_are_handed_only_what_they_asked_for_and_for_as_long() {
    let world = World::new().await;
    let provider = &world.provider;
    let token = leased(&world, "i").await;
    world.settle().await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let (untagged, tagged) = (
        waits_for(provider, minutes(2), TagFilter::DefaultOnly).await,
        waits_for(provider, minutes(3), TagFilter::tags(["t"])).await,
    );
    let ack = schedules(
        "i",
        vec![
            routed_activity("i", 2, Some("foreign"), None),
            routed_activity("i", 3, None, Some("session")),
            routed_activity("i", 4, Some("t"), None),
            activity("i", 5),
        ],
    );
    fixtures::ack(&**provider, &token, ack).await.expect("ack");
    assert_eq!(gets(untagged).await.0, activity("i", 5));
    assert_eq!(gets(tagged).await.0, routed_activity("i", 4, Some("t"), None));
    for (activity, minutes) in [(2, None), (3, None), (4, Some(3)), (5, Some(2))] {
        let left = "select coalesce((select ceil(extract(epoch from available_at - clock_timestamp()) / 60)::bigint \
                      from worker_queue where activity_id = $1 and lease is not null), 0)";
        assert_eq!(
            world.number(left, &[&i64::from(activity)]).await,
            minutes.unwrap_or(0),
            "{activity}"
        );
    }
}

/// It was never to begin.
#[tokio::test]
async fn what_the_same_turn_cancels_is_not_handed_over() {
    let world = World::new().await;
    let provider = &world.provider;
    let token = leased(&world, "i").await;
    world.settle().await;
    let worker = waits_for(provider, LOCK, TagFilter::DefaultOnly).await;
    let cancelled = ScheduledActivityIdentifier {
        instance: "i".to_string(),
        execution_id: 1,
        activity_id: 2,
    };
    let metadata = ExecutionMetadata::default();
    let activities = vec![activity("i", 2)];
    let events = vec![scheduled("i", 2)];
    let acked = provider.ack_orchestration_item(&token, 1, events, activities, Vec::new(), metadata, vec![cancelled]);
    acked.await.expect("ack");
    provider
        .enqueue_for_worker(activity("other", 1))
        .await
        .expect("enqueue");
    assert_eq!(gets(worker).await.0, activity("other", 1));
}

#[tokio::test]
async fn a_dispatcher_is_not_handed_an_instance_it_cannot_replay() {
    let world = World::new().await;
    let provider = &world.provider;
    provider
        .enqueue_for_orchestrator(start("newer"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&**provider, LOCK).await;
    let pinned = Ack {
        events: vec![started("newer")],
        metadata: ExecutionMetadata {
            pinned_duroxide_version: Some(Version::new(9, 0, 0)),
            ..named()
        },
        ..Ack::default()
    };
    fixtures::ack(&**provider, &token, pinned).await.expect("ack");
    world.settle().await;
    let filter = DispatcherCapabilityFilter {
        supported_duroxide_versions: vec![SemverRange::new(Version::new(0, 1, 0), Version::new(1, 0, 0))],
    };
    let nothing = provider.fetch_orchestration_item(LOCK, NOW, Some(&filter)).await;
    assert!(nothing.expect("fetch").is_none());
    let mut fetch = Box::pin(provider.fetch_orchestration_item(LOCK, PATIENT, Some(&filter)));
    assert!(begin(fetch.as_mut()).await.is_pending());
    let sent = provider.enqueue_for_orchestrator(raised("newer", "x"), None).await;
    sent.expect("enqueue");
    provider
        .enqueue_for_orchestrator(start("fits"), None)
        .await
        .expect("enqueue");
    let fetched = tokio::time::timeout(SOON, fetch)
        .await
        .expect("in time")
        .expect("fetch");
    assert_eq!(fetched.expect("a turn").0.instance, "fits");
    assert_eq!(turn(&**provider, LOCK).await.0.instance, "newer");
}

/// Whoever gets an activity reads the history of its instance next: that is what is stored, also if somebody changed it while the
/// turn ran.
#[tokio::test]
async fn the_history_that_comes_with_a_handover_is_the_stored_one() {
    let changes = [
        None,
        Some("delete from history where instance_id = 'i' and event_id = 1"),
        Some(
            "insert into history (instance_id, execution_id, event_id, event_data) \
             select instance_id, execution_id, 7, replace(event_data, '\"event_id\":1', '\"event_id\":7') \
               from history where instance_id = 'i' and event_id = 1",
        ),
    ];
    for change in changes {
        let world = World::new().await;
        let provider = &world.provider;
        let token = leased(&world, "i").await;
        if let Some(change) = change {
            world.execute(change, &[]).await;
        }
        world.settle().await;
        let nothing = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
        assert!(nothing.expect("fetch").is_none());
        let reader = Arc::clone(provider);
        let mut worker = Box::pin(async move {
            let fetched = reader
                .fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly)
                .await;
            fetched.expect("fetch").expect("an activity");
            reader.read("i").await.expect("read")
        });
        assert!(begin(worker.as_mut()).await.is_pending());
        let worker = tokio::spawn(worker);
        let ack = schedules("i", vec![activity("i", 2)]);
        fixtures::ack(&**provider, &token, ack).await.expect("ack");
        let history = tokio::time::timeout(SOON, worker)
            .await
            .expect("in time")
            .expect("no panic");
        let stored: Vec<Event> = world
            .schema
            .provider()
            .await
            .read_with_execution("i", 1)
            .await
            .expect("read");
        assert_eq!(history, stored, "{change:?}");
    }
}

/// An activity of an instance ends that is in a turn of this process: the end of the turn finds its completion.
#[tokio::test]
async fn nobody_looks_for_an_instance_that_is_in_a_turn_here() {
    let world = World::new().await;
    let provider = &world.provider;
    create(&**provider, "i").await;
    provider.enqueue_for_worker(activity("i", 2)).await.expect("enqueue");
    let (_, activity, _) = work(&**provider, LOCK).await;
    let sent = provider.enqueue_for_orchestrator(raised("i", "x"), None).await;
    sent.expect("enqueue");
    let (_, token, _) = turn(&**provider, LOCK).await;
    world.settle().await;
    let waiting = Waiting::begin(provider, Queue::Turns).await;
    let before = looks(&world);
    let acked = provider.ack_work_item(&activity, Some(completed("i", 2))).await;
    acked.expect("ack");
    // Whoever is woken is so before the answer, and looks at once.
    world.settle().await;
    assert_eq!(looks(&world), before);
    fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");
    assert_eq!(waiting.gets(SOON).await, ("i".to_string(), 1));
}

/// More activities of the instance are under way: their ends may come together, so a look brings them.
#[tokio::test]
async fn an_instance_with_more_activities_is_looked_for() {
    let world = World::new().await;
    let provider = &world.provider;
    create(&**provider, "i").await;
    for id in [2, 3] {
        provider.enqueue_for_worker(activity("i", id)).await.expect("enqueue");
    }
    let (_, first, _) = work(&**provider, LOCK).await;
    let (_, second, _) = work(&**provider, LOCK).await;
    world.settle().await;
    let dispatcher = Waiting::begin(provider, Queue::Turns).await;
    let [before, _] = looks(&world);
    let acked = provider.ack_work_item(&first, Some(completed("i", 2))).await;
    acked.expect("ack");
    assert_eq!(dispatcher.gets(SOON).await, ("i".to_string(), 1));
    let [after, _] = looks(&world);
    assert!(after > before);
    provider.ack_work_item(&second, None).await.expect("ack");
}
