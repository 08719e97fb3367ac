//! Fetches that wait at once: each gets only what fits, for as long as it asked, and a dropped one loses nothing.

use std::pin::pin;
use std::time::Duration;

use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, Provider, SemverRange, SessionFetchConfig, TagFilter, WorkItem,
};
use futures_util::future::join_all;
use semver::Version;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;

use super::{FETCH_ACTIVITIES, World, begin};
use crate::fixtures::{self, Ack, LOCK, NOW, ack, activity, named, raised, routed_activity, start, started, turn};

const PATIENT: Duration = Duration::from_secs(30);
/// Much less than any lease here: what can be had by then was handed back.
const SOON: Duration = Duration::from_secs(10);
/// A second, and what a slow machine needs.
const WITHIN_A_SECOND: Duration = Duration::from_secs(3);

/// Hands a turn over to somebody who waits.
const ENQUEUE: &str = ".enqueue_for_orchestrator(";

/// Enqueues while others go on.
fn enqueue(world: &World, item: WorkItem) -> JoinHandle<()> {
    let provider = world.provider.clone();
    tokio::spawn(async move { provider.enqueue_for_orchestrator(item, None).await.expect("enqueue") })
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// The minutes left of the lease on a row, rounded up: a lease that began just now.
async fn lease_minutes(world: &World, table: &str, instance: &str) -> u64 {
    let left = format!(
        "select ceil(extract(epoch from available_at - clock_timestamp()) / 60)::bigint from {table} \
          where instance_id = $1 and lease is not null"
    );
    world.number(&left, &[&instance]).await as u64
}

#[tokio::test]
async fn workers_with_different_terms_get_what_fits_for_as_long_as_they_asked() {
    let world = World::new().await;
    let session = |owner: &str| {
        Some(SessionFetchConfig {
            owner_id: owner.to_string(),
            lock_timeout: LOCK,
        })
    };
    let tagged = |tag: &str| TagFilter::tags([tag]);
    // The session belongs to its first owner.
    let enqueued = world
        .provider
        .enqueue_for_worker(routed_activity("earlier", 1, Some("c"), Some("s")))
        .await;
    enqueued.expect("enqueue");
    let owner = session("owner");
    let fetched = world
        .provider
        .fetch_work_item(LOCK, NOW, owner.as_ref(), &tagged("c"))
        .await;
    fetched.expect("fetch").expect("an activity");

    let terms = [
        ("untagged", minutes(1), None, TagFilter::DefaultOnly),
        ("a", minutes(2), None, tagged("a")),
        ("a or b", minutes(3), None, TagFilter::tags(["a", "b"])),
        ("owner", minutes(4), session("owner"), tagged("c")),
        ("stranger", minutes(5), session("stranger"), tagged("c")),
        (
            "untagged, longer",
            minutes(6),
            session("stranger"),
            TagFilter::DefaultOnly,
        ),
    ];
    let fetches = terms.map(|(who, lease, session, tags)| {
        let provider = world.provider.clone();
        tokio::spawn(async move {
            let wait = if who == "stranger" { SOON / 5 } else { PATIENT };
            let fetched = provider.fetch_work_item(lease, wait, session.as_ref(), &tags).await;
            let item = fetched.expect("fetch").map(|(item, _, _)| item);
            (who, lease, item)
        })
    });
    for item in [
        activity("untagged 1", 1),
        activity("untagged 2", 1),
        routed_activity("b", 1, Some("b"), None),
        routed_activity("c", 1, Some("c"), Some("s")),
    ] {
        world.provider.enqueue_for_worker(item).await.expect("enqueue");
    }
    for (position, fetch) in fetches.into_iter().enumerate() {
        if position == 1 {
            // Only now, so that the one who also takes others cannot have taken it.
            let late = routed_activity("a", 1, Some("a"), None);
            world.provider.enqueue_for_worker(late).await.expect("enqueue");
        }
        let (who, lease, item) = tokio::time::timeout(PATIENT, fetch)
            .await
            .expect("in time")
            .expect("no panic");
        let got = item.map(|item| match item {
            WorkItem::ActivityExecute { instance, .. } => instance,
            other => panic!("{other:?}"),
        });
        match who {
            "stranger" => assert_eq!(got, None),
            "untagged" | "untagged, longer" => assert!(got.as_ref().expect("an activity").starts_with("untagged")),
            "a" => assert_eq!(got.as_deref(), Some("a")),
            "a or b" => assert_eq!(got.as_deref(), Some("b")),
            _ => assert_eq!(got.as_deref(), Some("c")),
        }
        if let Some(instance) = got {
            let minutes = lease_minutes(&world, "worker_queue", &instance).await;
            assert_eq!(minutes * 60, lease.as_secs(), "{who}");
        }
    }
}

/// Two workers of one owner, who differ in nothing else, and sessions that come at once: one look would bring both.
#[tokio::test]
async fn workers_have_their_sessions_for_as_long_as_they_asked() {
    let world = World::new().await;
    let fetch = |session_minutes| {
        let provider = world.provider.clone();
        Box::pin(async move {
            let session = SessionFetchConfig {
                owner_id: "owner".to_string(),
                lock_timeout: minutes(session_minutes),
            };
            let fetched = provider.fetch_work_item(LOCK, PATIENT, Some(&session), &TagFilter::DefaultOnly);
            let (item, _, _) = fetched.await.expect("fetch").expect("an activity");
            match item {
                WorkItem::ActivityExecute { session_id, .. } => (session_minutes, session_id.expect("a session")),
                other => panic!("{other:?}"),
            }
        })
    };
    // Where there is a session already, whoever looks says from the beginning for whom, and for how long.
    let earlier = routed_activity("earlier", 1, None, Some("earlier"));
    world.provider.enqueue_for_worker(earlier).await.expect("enqueue");
    assert_eq!(fetch(1).await.1, "earlier");
    let sent = world.provider.enqueue_for_orchestrator(start("i"), None).await;
    sent.expect("enqueue");
    let (_, token, _) = turn(&*world.provider, LOCK).await;

    // The second comes while the first one's look is on the wire, so that the next would be for both.
    let mut held = world.proxy.hold_answer_of(FETCH_ACTIVITIES);
    let short = tokio::spawn(fetch(10));
    held.wait().await;
    let mut long = fetch(20);
    assert!(begin(long.as_mut()).await.is_pending());
    let long = tokio::spawn(long);
    held.release();
    let both = Ack {
        events: vec![started("i")],
        activities: vec![
            routed_activity("i", 2, None, Some("one")),
            routed_activity("i", 3, None, Some("other")),
        ],
        metadata: named(),
        ..Ack::default()
    };
    ack(&*world.provider, &token, both).await.expect("ack");
    for fetch in [short, long] {
        let (session_minutes, session) = tokio::time::timeout(PATIENT, fetch)
            .await
            .expect("in time")
            .expect("no panic");
        let left = "select ceil(extract(epoch from locked_until - clock_timestamp()) / 60)::bigint from sessions \
             where session_id = $1 and owner_id = $2";
        let routing_keys: &[&(dyn ToSql + Sync)] = &[&format!("#{session}"), &"owner"];
        assert_eq!(
            world.number(left, routing_keys).await as u64,
            session_minutes,
            "{session}"
        );
    }
}

#[tokio::test]
async fn dispatchers_with_different_terms_get_what_fits_for_as_long_as_they_asked() {
    let world = World::new().await;
    let versions = [Version::new(0, 1, 0), Version::new(0, 2, 0), Version::new(0, 3, 0)];
    for (version, name) in versions.iter().zip(["one", "two", "three"]) {
        world
            .provider
            .enqueue_for_orchestrator(start(name), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(&*world.provider, LOCK).await;
        let pinned = Ack {
            events: vec![started(name)],
            metadata: ExecutionMetadata {
                pinned_duroxide_version: Some(version.clone()),
                ..named()
            },
            ..Ack::default()
        };
        ack(&*world.provider, &token, pinned).await.expect("ack");
    }
    let fetches: Vec<_> = [(0, "one", 1), (1, "two", 2), (2, "three", 3)]
        .map(|(version, name, lease)| {
            let provider = world.provider.clone();
            let filter = DispatcherCapabilityFilter {
                supported_duroxide_versions: vec![SemverRange::new(
                    versions[version].clone(),
                    versions[version].clone(),
                )],
            };
            tokio::spawn(async move {
                let fetched = provider
                    .fetch_orchestration_item(minutes(lease), PATIENT, Some(&filter))
                    .await;
                let (item, _, _) = fetched.expect("fetch").expect("a turn");
                assert_eq!(item.instance, name);
                (name, lease)
            })
        })
        .into();
    for name in ["three", "one", "two"] {
        let message = raised(name, "go on");
        world
            .provider
            .enqueue_for_orchestrator(message, None)
            .await
            .expect("enqueue");
    }
    for fetch in fetches {
        let (name, lease) = tokio::time::timeout(PATIENT, fetch)
            .await
            .expect("in time")
            .expect("no panic");
        assert_eq!(lease_minutes(&world, "mailboxes", name).await, lease);
    }
}

/// As many as wait are served by one look.
#[tokio::test]
async fn fetches_that_wait_share_a_look() {
    let world = World::new().await;
    world.settle().await;
    let fetch = || {
        world
            .provider
            .fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly)
    };
    let mut waiting = Box::pin(join_all((0..8).map(|_| fetch())));
    assert!(begin(waiting.as_mut()).await.is_pending());
    let before = world.proxy.calls_of(FETCH_ACTIVITIES);
    // All at once, by somebody else.
    world
        .execute(
            "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select 'i' || n, 1, 1, clock_timestamp(), '', '', replace($1, 'i0', 'i' || n) from generate_series(1, 7) as n",
            &[&serde_json::to_string(&activity("i0", 1)).expect("JSON")],
        )
        .await;
    let other = world.schema.provider().await;
    other.enqueue_for_worker(activity("i8", 1)).await.expect("enqueue");
    let granted = tokio::time::timeout(SOON, waiting).await.expect("soon");
    let mut tokens: Vec<_> = granted
        .into_iter()
        .map(|item| item.expect("fetch").expect("one each").1)
        .collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 8);
    assert_eq!(world.proxy.calls_of(FETCH_ACTIVITIES) - before, 1);
}

/// Of two who wait, one goes away while the look for both is on the wire: the other gets what was found.
#[tokio::test]
async fn what_a_dropped_worker_was_to_get_goes_to_the_next_one() {
    let world = World::new().await;
    world.settle().await;
    let fetch = || {
        world
            .provider
            .fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly)
    };
    let mut dropped = Box::pin(fetch());
    let mut stays = pin!(fetch());
    assert!(begin(dropped.as_mut()).await.is_pending());
    assert!(begin(stays.as_mut()).await.is_pending());
    let before = world.proxy.calls_of(FETCH_ACTIVITIES);
    let mut held = world.proxy.hold_answer_of(FETCH_ACTIVITIES);
    let other = world.schema.provider().await;
    other.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    held.wait().await;
    drop(dropped);
    held.release();
    let fetched = tokio::time::timeout(SOON, stays).await.expect("soon").expect("fetch");
    let (_, token, attempt) = fetched.expect("the activity");
    assert_eq!(attempt, 1);
    assert_eq!(world.proxy.calls_of(FETCH_ACTIVITIES) - before, 1, "the same look");
    world.provider.ack_work_item(&token, None).await.expect("ack");
}

#[tokio::test]
async fn what_a_dropped_dispatcher_was_to_get_goes_to_the_next_one() {
    let world = World::new().await;
    world.settle().await;
    let fetch = || world.provider.fetch_orchestration_item(LOCK, PATIENT, None);
    let mut dropped = Box::pin(fetch());
    let mut stays = pin!(fetch());
    assert!(begin(dropped.as_mut()).await.is_pending());
    assert!(begin(stays.as_mut()).await.is_pending());
    let mut held = world.proxy.hold_answer_of(ENQUEUE);
    let enqueue = enqueue(&world, start("i"));
    held.wait().await;
    drop(dropped);
    held.release();
    enqueue.await.expect("no panic");
    let fetched = tokio::time::timeout(SOON, stays).await.expect("soon").expect("fetch");
    let (item, token, attempt) = fetched.expect("the turn");
    assert_eq!((item.instance.as_str(), attempt), ("i", 1));
    let first = Ack {
        events: vec![started("i")],
        metadata: named(),
        ..Ack::default()
    };
    ack(&*world.provider, &token, first).await.expect("ack");
}

/// All who waited went away while the look for them was on the wire, or what hands it over: it is handed back, to whoever asks.
#[tokio::test]
async fn what_nobody_waits_for_any_more_is_handed_back() {
    let world = World::new().await;
    let other = world.schema.provider().await;
    world.settle().await;
    let mut turns = Box::pin(join_all(
        (0..3).map(|_| world.provider.fetch_orchestration_item(LOCK, PATIENT, None)),
    ));
    let fetch = || {
        world
            .provider
            .fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly)
    };
    let mut activities = Box::pin(join_all((0..3).map(|_| fetch())));
    assert!(begin(turns.as_mut()).await.is_pending());
    assert!(begin(activities.as_mut()).await.is_pending());
    let mut held = [
        world.proxy.hold_answer_of(ENQUEUE),
        world.proxy.hold_answer_of(FETCH_ACTIVITIES),
    ];
    let enqueue = enqueue(&world, start("i"));
    other.enqueue_for_worker(activity("i", 1)).await.expect("enqueue");
    for held in &mut held {
        held.wait().await;
    }
    drop((turns, activities));
    for held in held {
        held.release();
    }
    enqueue.await.expect("no panic");
    let handed_back = async {
        let (mut turn, mut work) = (None, None);
        while turn.is_none() || work.is_none() {
            if turn.is_none() {
                turn = other.fetch_orchestration_item(LOCK, NOW, None).await.expect("fetch");
            }
            if work.is_none() {
                let any = TagFilter::DefaultOnly;
                work = other.fetch_work_item(LOCK, NOW, None, &any).await.expect("fetch");
            }
        }
        (turn.expect("the turn").2, work.expect("the activity").2)
    };
    let attempts = tokio::time::timeout(WITHIN_A_SECOND, handed_back).await;
    assert_eq!(attempts.expect("within a second"), (1, 1));
}

/// A fetch that does not wait looks for itself, whatever others are told to expect.
#[tokio::test]
async fn a_fetch_that_does_not_wait_always_looks() {
    let world = World::new().await;
    world.settle().await;
    let insert = "select enqueue_for_worker('i', 1, 1, '', '', $1)";
    let item = serde_json::to_string(&activity("i", 1)).expect("JSON");
    // Nobody is told.
    world.admin.query(insert, &[&item]).await.expect("insert");
    let (_, _, attempt) = fixtures::work(&*world.provider, LOCK).await;
    assert_eq!(attempt, 1);
}

/// Workers share their looks until there are sessions. Whoever came while the look was on the wire that found some asks for
/// itself, at once.
#[tokio::test]
async fn sessions_that_a_look_meets_keep_nobody_waiting() {
    let world = World::new().await;
    world.settle().await;
    for (id, session) in [(1, "s1"), (2, "s2")] {
        let item = routed_activity("i", id, None, Some(session));
        world.provider.enqueue_for_worker(item).await.expect("enqueue");
    }
    let fetch = |owner: &str| {
        let (provider, owner_id) = (world.provider.clone(), owner.to_string());
        Box::pin(async move {
            let session = SessionFetchConfig {
                owner_id,
                lock_timeout: LOCK,
            };
            let fetched = provider.fetch_work_item(LOCK, PATIENT, Some(&session), &TagFilter::DefaultOnly);
            fetched.await.expect("fetch").expect("an activity")
        })
    };
    let mut held = world.proxy.hold_answer_of(FETCH_ACTIVITIES);
    let (mut first, mut second) = (fetch("one"), fetch("two"));
    tokio::select! {
        _ = &mut first => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    assert!(begin(second.as_mut()).await.is_pending());
    held.release();
    let both = futures_util::future::join(first, second);
    tokio::time::timeout(SOON, both).await.expect("soon");
}
