//! What calls of one process share (memory, looks, calls on the wire) when one of them is late, lost or dropped.

use std::pin::pin;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};
use duroxide::{Event, EventKind};

use crate::batching::{World, begin};
use crate::fixtures::{self, Ack, LOCK, activity, create, event, raised, turn};

const INSTANCE: &str = "instance";
const ACK: &str = ".ack_orchestration_item";

fn noted(id: u64, note: &str) -> Event {
    let kind = EventKind::ExternalEvent {
        name: "note".to_string(),
        data: note.to_string(),
    };
    event(INSTANCE, id, kind)
}

fn adds(event: Event) -> Ack {
    Ack {
        events: vec![event],
        ..Ack::default()
    }
}

async fn cached(provider: &dyn Provider, events: u64) {
    create(provider, INSTANCE).await;
    for id in 2..=events {
        provider
            .enqueue_for_orchestrator(raised(INSTANCE, "x"), None)
            .await
            .expect("enqueue");
        let (item, token, _) = turn(provider, LOCK).await;
        assert_eq!(item.history.len() as u64, id - 1);
        fixtures::ack(provider, &token, adds(noted(id, "right")))
            .await
            .expect("ack");
    }
}

/// A turn whose lease ended is acked while the ack of the turn that took it over, in the same process, is on the
/// wire: the events of the first are taken for those of the second.
#[tokio::test]
async fn events_of_a_late_ack_are_not_taken_for_those_of_the_ack_that_counts() {
    let world = World::new().await;
    let near = &*world.provider;
    create(near, INSTANCE).await;
    near.enqueue_for_orchestrator(raised(INSTANCE, "x"), None)
        .await
        .expect("enqueue");
    let (_, late, _) = turn(near, LOCK).await;
    world
        .execute("update mailboxes set available_at = clock_timestamp()", &[])
        .await;
    let (_, counts, _) = turn(near, LOCK).await;

    let mut held = world.proxy.hold_answer_of(ACK);
    let provider = world.provider.clone();
    let first = tokio::spawn(async move { fixtures::ack(&*provider, &counts, adds(noted(2, "right"))).await });
    held.wait().await;
    let mut second = pin!(fixtures::ack(near, &late, adds(noted(2, "wrong"))));
    assert!(begin(second.as_mut()).await.is_pending());
    let mut held_second = world.proxy.hold_answer_of(ACK);
    held.release();
    first.await.expect("no panic").expect("ack");
    held_second.wait().await;

    let stored = near.read_with_execution(INSTANCE, 1).await.expect("read");
    let read = near.read(INSTANCE).await.expect("read");
    near.enqueue_for_orchestrator(raised(INSTANCE, "y"), None)
        .await
        .expect("enqueue");
    let (item, _, _) = turn(near, LOCK).await;
    held_second.release();
    second.await.expect_err("late");
    assert_eq!(read, stored, "read");
    assert_eq!(item.history, stored, "turn");
}

/// A failover to a server that had not got the last commits: the database is as it was before the last ack.
#[tokio::test]
async fn events_that_a_failover_lost_are_not_in_the_history() {
    let world = World::new().await;
    let near = &*world.provider;
    cached(near, 3).await;
    let before = "update mailboxes set cached_event_id = 2";
    world.admin.batch_execute(&format!("set session_replication_role = replica; delete from history where event_id = 3; {before}; reset session_replication_role")).await.expect("failover");
    world.proxy.cut();
    let stored = near.read_with_execution(INSTANCE, 1).await;
    let stored = match stored {
        Ok(stored) => stored,
        Err(_) => near.read_with_execution(INSTANCE, 1).await.expect("read"),
    };
    assert_eq!(stored.len(), 2);
    assert_eq!(near.read(INSTANCE).await.expect("read").len(), 2, "read");
    near.enqueue_for_orchestrator(raised(INSTANCE, "y"), None)
        .await
        .expect("enqueue");
    let (item, _, _) = turn(near, LOCK).await;
    assert_eq!(item.history, stored, "turn");
}

#[tokio::test]
async fn a_turn_after_a_failover_that_lost_events_does_not_have_them() {
    let world = World::new().await;
    let near = &*world.provider;
    cached(near, 3).await;
    let before = "update mailboxes set cached_event_id = 2";
    world.admin.batch_execute(&format!("set session_replication_role = replica; delete from history where event_id = 3; {before}; reset session_replication_role")).await.expect("failover");
    world.proxy.cut();
    while near
        .enqueue_for_orchestrator(raised(INSTANCE, "y"), None)
        .await
        .is_err()
    {}
    let (item, _, _) = turn(near, LOCK).await;
    assert_eq!(
        item.history,
        near.read_with_execution(INSTANCE, 1).await.expect("read"),
        "turn"
    );
}

/// Two looks on the wire; the one for the first fetch brings nothing; its time is up while the other is still out.
#[tokio::test]
async fn a_fetch_does_not_wait_longer_than_it_said() {
    let world = World::new().await;
    let fetch = |wait: Duration| {
        let provider = world.provider.clone();
        tokio::spawn(async move {
            provider
                .fetch_work_item(LOCK, wait, None, &TagFilter::DefaultOnly)
                .await
        })
    };
    // The listener is up.
    tokio::time::sleep(Duration::from_secs(1)).await;
    const FETCH: &str = ".fetch_work_item(";
    let mut first_look = world.proxy.hold_answer_of(FETCH);
    let first = fetch(Duration::from_millis(500));
    first_look.wait().await;
    let mut second_look = world.proxy.hold_answer_of(FETCH);
    let second = fetch(Duration::from_secs(20));
    second_look.wait().await;
    first_look.release();
    tokio::time::sleep(Duration::from_millis(700)).await;
    second_look.release();
    let ended = tokio::time::timeout(Duration::from_secs(10), first).await;
    second.abort();
    assert!(
        ended
            .expect("its time is up")
            .expect("no panic")
            .expect("fetch")
            .is_none()
    );
}

/// A batch whose task is cancelled (another runtime shuts down) was sent all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_in_a_runtime_that_ends_is_not_sent_twice() {
    let world = World::new().await;
    const ENQUEUE: &str = ".enqueue_for_worker";
    let mut held = world.proxy.hold_answer_of(ENQUEUE);
    let elsewhere = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("runtime");
    let provider = world.provider.clone();
    let first = elsewhere.spawn(async move { provider.enqueue_for_worker(activity("i", 1)).await });
    held.wait().await;
    let mut second = pin!(world.provider.enqueue_for_worker(activity("i", 2)));
    assert!(begin(second.as_mut()).await.is_pending());
    let mut held_second = world.proxy.hold_answer_of(ENQUEUE);
    held.release();
    first.await.expect("no panic").expect("enqueue");
    held_second.wait().await;
    elsewhere.shutdown_background();
    let answer = second.await;
    let rows = world
        .number("select count(*) from worker_queue where activity_id = 2", &[])
        .await;
    assert_eq!(rows, 1, "{answer:?}");
}

/// The history is not in memory any more, and the connection is cut when it is read again.
#[tokio::test]
async fn a_cut_connection_is_not_a_history_error() {
    let world = World::with(|builder| builder.history_cache(16 << 10)).await;
    let near = &*world.provider;
    cached(near, 2).await;
    for number in 0..20 {
        create(near, &format!("i{number}")).await;
        near.read(&format!("i{number}")).await.expect("read");
    }
    near.enqueue_for_orchestrator(raised(INSTANCE, "y"), None)
        .await
        .expect("enqueue");
    let mut lost = world
        .proxy
        .lose_request_of(".read_with_execution(", crate::proxy::Mode::Pass);
    let fetched = near.fetch_orchestration_item(LOCK, Duration::ZERO, None).await;
    assert!(lost.has_happened(), "not forgotten");
    if let Ok(Some((item, _, _))) = fetched {
        assert_eq!(item.history_error, None);
        assert_eq!(item.history.len(), 2);
    }
}

/// An enqueue that was dropped in the line is carried out, but nobody who waits is told.
#[tokio::test]
async fn what_a_dropped_caller_enqueued_wakes_who_waits() {
    let world = World::new().await;
    const ENQUEUE: &str = ".enqueue_for_worker";
    const FETCH: &str = ".fetch_work_item(";
    world.settle().await;
    let looks = world.proxy.calls_of(FETCH);
    let provider = world.provider.clone();
    let waiting = tokio::spawn(async move {
        provider
            .fetch_work_item(LOCK, Duration::from_secs(60), None, &TagFilter::DefaultOnly)
            .await
    });
    let mut held = world.proxy.hold_answer_of(ENQUEUE);
    let provider = world.provider.clone();
    let elsewhere = fixtures::routed_activity("i", 1, Some("elsewhere"), None);
    let first = tokio::spawn(async move { provider.enqueue_for_worker(elsewhere).await });
    held.wait().await;
    {
        let mut dropped = pin!(world.provider.enqueue_for_worker(activity("i", 2)));
        assert!(begin(dropped.as_mut()).await.is_pending());
    }
    let mut second = world.proxy.hold_request_of(ENQUEUE);
    held.release();
    first.await.expect("no panic").expect("enqueue");
    second.wait().await;
    // The first has woken those who wait, in vain: when it came back, or by a look right behind it.
    while world.proxy.calls_of(FETCH) == looks {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    second.release();
    let fetched = tokio::time::timeout(Duration::from_secs(2), waiting).await;
    let rows = world
        .number("select count(*) from worker_queue where activity_id = 2", &[])
        .await;
    assert_eq!(rows, 1);
    assert!(fetched.expect("woken").expect("no panic").expect("fetch").is_some());
}

/// Somebody who sleeps at the pace of the fallback is woken, looks, and learns that something is due in 300 ms: it goes
/// back to its old sleep instead.
#[tokio::test]
async fn a_timer_wakes_who_waits_when_it_is_due() {
    const DELAY: Duration = Duration::from_millis(300);
    let world = World::new().await;
    let other = world.schema.provider().await;
    create(&*other, INSTANCE).await;
    world.settle().await;
    for by_delay in [true, false] {
        let nothing = world
            .provider
            .fetch_orchestration_item(LOCK, Duration::ZERO, None)
            .await;
        assert!(nothing.expect("fetch").is_none());
        let mut waiting = pin!(
            world
                .provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(60), None)
        );
        assert!(begin(waiting.as_mut()).await.is_pending());
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        let enqueued = std::time::Instant::now();
        let fires = fixtures::timer(INSTANCE, (now + DELAY).as_millis() as u64);
        let sent = match by_delay {
            true => {
                other
                    .enqueue_for_orchestrator(raised(INSTANCE, "later"), Some(DELAY))
                    .await
            }
            false => other.enqueue_for_orchestrator(fires, None).await,
        };
        sent.expect("enqueue");
        let fetched = tokio::time::timeout(Duration::from_secs(2), waiting).await;
        let (_, token, attempt) = fetched.expect("in time").expect("fetch").expect("a turn");
        assert_eq!(attempt, 1);
        // The wish of a timer is in whole milliseconds.
        assert!(
            enqueued.elapsed() >= DELAY - Duration::from_millis(1),
            "after {:?}",
            enqueued.elapsed()
        );
        fixtures::ack(&*world.provider, &token, Ack::default())
            .await
            .expect("ack");
    }
}
