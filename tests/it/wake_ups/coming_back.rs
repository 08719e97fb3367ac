//! A worker that acks an activity comes back for the next: that is looked for beside the call that acks.

mod in_vain;
mod trouble;

use std::time::Duration;

use duroxide::providers::{Provider, SessionFetchConfig, TagFilter, WorkItem};
use duroxide_postgres::PostgresProvider;
use futures_util::future::join_all;

use super::{PATIENT, SOON, WOKEN, eventually};
use crate::batching::{FETCH_ACTIVITIES, World};
use crate::fixtures::{LOCK, NOW, activity, completed, routed_activity};

const ACTIVITY_ACK: &str = ".ack_work_item";
const HANDED_BACK: &str = ".abandon_work_item(";
/// Longer than the acks are beside which something is looked for.
const SLOW: Duration = Duration::from_millis(40);

type Activity = (WorkItem, String, u32);

/// What a worker gets that waits for work, and so comes back.
async fn gets(provider: &PostgresProvider, lock: Duration, tags: &TagFilter) -> Activity {
    let fetch = provider.fetch_work_item(lock, PATIENT, None, tags);
    let fetched = tokio::time::timeout(SOON, fetch).await;
    fetched.expect("in time").expect("fetch").expect("an activity")
}

async fn enqueue(provider: &PostgresProvider, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        let sent = provider.enqueue_for_worker(activity("i", id)).await;
        sent.expect("enqueue");
    }
}

async fn ack(provider: &PostgresProvider, token: &str, id: u64) {
    let acked = provider.ack_work_item(token, Some(completed("i", id))).await;
    acked.expect("ack");
}

fn looks(world: &World) -> usize {
    world.proxy.calls_of(FETCH_ACTIVITIES)
}

/// Tries until nobody had to look for itself: on a busy machine some are slow to come back.
async fn with_one_look(world: &World, mut attempt: impl AsyncFnMut()) {
    for _ in 0..10 {
        let before = looks(world);
        attempt().await;
        if looks(world) == before + 1 {
            return;
        }
    }
    panic!("always more than one look, of {}", looks(world));
}

async fn leased(world: &World) -> i64 {
    let leased = "select count(*) from worker_queue where lease is not null";
    world.number(leased, &[]).await
}

/// One look brings two, as long as each of them seems to be short: on a busy machine not always.
#[tokio::test]
async fn whoever_comes_back_often_has_the_next_already() {
    let world = World::new().await;
    let provider = &world.provider;
    let mut fewest = usize::MAX;
    for round in 1..=10 {
        enqueue(provider, 1..=20).await;
        let before = looks(&world);
        let mut got = Vec::new();
        for _ in 1..=20 {
            let (item, token, attempt) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
            let WorkItem::ActivityExecute { id, .. } = item else {
                panic!("{item:?}");
            };
            assert_eq!(attempt, 1, "{id}");
            ack(provider, &token, id).await;
            got.push(id);
        }
        // In their order, unless a look took so long that another overtook it.
        got.sort_unstable();
        assert_eq!(got, Vec::from_iter(1..=20));
        let completions = "select count(*) from orchestrator_queue where instance_id = 'i'";
        assert_eq!(world.number(completions, &[]).await, 20 * round);
        fewest = fewest.min(looks(&world) - before);
        if fewest < 15 {
            return;
        }
    }
    panic!("never less than {fewest} looks for 20");
}

/// What is found beside an ack that takes its time would be back in the queue when it is answered.
#[tokio::test]
async fn nothing_is_looked_for_beside_acks_that_take_long() {
    let world = World::new().await;
    enqueue(&world.provider, 1..=10).await;
    for last_took_long in [false, true] {
        let (item, token, _) = gets(&world.provider, LOCK, &TagFilter::DefaultOnly).await;
        let WorkItem::ActivityExecute { id, .. } = item else {
            panic!("{item:?}");
        };
        eventually("nothing is at hand", || async {
            (leased(&world).await == 1).then_some(())
        })
        .await;
        let before = looks(&world);
        let mut held = world.proxy.hold_answer_of(ACTIVITY_ACK);
        let acked = tokio::spawn({
            let provider = world.provider.clone();
            async move { ack(&provider, &token, id).await }
        });
        held.wait().await;
        if last_took_long {
            tokio::time::sleep(SLOW).await;
            assert_eq!(looks(&world), before);
        } else {
            eventually("there is a look", || async { (looks(&world) > before).then_some(()) }).await;
            tokio::time::sleep(SLOW).await;
        }
        held.release();
        acked.await.expect("no panic");
    }
}

/// Where activities are short the next ones are looked for while a worker works, and not while it acks: on a busy machine not always.
#[tokio::test]
async fn what_is_short_is_looked_for_between_acks() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, 1..=60).await;
    for _ in 0..30 {
        let (item, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        let WorkItem::ActivityExecute { id, .. } = item else {
            panic!("{item:?}");
        };
        let is_at_hand = leased(&world).await > 1;
        let before = looks(&world);
        let mut held = world.proxy.hold_answer_of(ACTIVITY_ACK);
        let acked = tokio::spawn({
            let provider = provider.clone();
            async move { ack(&provider, &token, id).await }
        });
        held.wait().await;
        let beside = looks(&world) - before;
        held.release();
        acked.await.expect("no panic");
        if is_at_hand && beside == 0 {
            let begun = std::time::Instant::now();
            while looks(&world) == before && begun.elapsed() < WOKEN {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if looks(&world) > before {
                return;
            }
        }
    }
    panic!("always looked for beside an ack, or not at all");
}

/// What all of them will ask for is looked for in one call.
#[tokio::test]
async fn those_who_ack_together_come_back_together() {
    let world = World::new().await;
    let provider = &world.provider;
    let all = TagFilter::DefaultOnly;
    let mut tokens: Vec<String> = Vec::new();
    enqueue(provider, 1..=5).await;
    for _ in 0..5 {
        tokens.push(gets(provider, LOCK, &all).await.1);
    }
    let mut got: Vec<Activity> = Vec::new();
    let mut first = 1;
    with_one_look(&world, async || {
        tokens.extend(got.drain(..).map(|(_, token, _)| token));
        enqueue(provider, first + 5..first + 10).await;
        let acks = world.proxy.calls_of(ACTIVITY_ACK);
        join_all((first..).zip(&tokens).map(|(id, token)| ack(provider, token, id))).await;
        assert_eq!(world.proxy.calls_of(ACTIVITY_ACK), acks + 1);
        tokens.clear();
        first += 5;
        got = join_all((0..5).map(|_| gets(provider, LOCK, &all))).await;
    })
    .await;
    let mut ids: Vec<_> = got
        .iter()
        .map(|(item, _, attempt)| (format!("{item:?}"), *attempt))
        .collect();
    ids.sort();
    let mut expected: Vec<_> = (first..first + 5)
        .map(|id| (format!("{:?}", activity("i", id)), 1))
        .collect();
    expected.sort();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn nothing_is_claimed_for_somebody_who_does_not_wait() {
    let world = World::new().await;
    let provider = &world.provider;
    enqueue(provider, 1..=2).await;
    let fetched = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
    let (_, token, _) = fetched.expect("fetch").expect("an activity");
    ack(provider, &token, 1).await;
    assert_eq!(leased(&world).await, 0);
    assert_eq!(world.proxy.calls_of(HANDED_BACK), 0);
}

/// Another process has them soon, before what is behind them, and their attempt is the first.
#[tokio::test]
async fn others_have_what_nobody_comes_back_for() {
    for is_dropped in [false, true] {
        let world = World::new().await;
        let provider = &world.provider;
        let (other, _proxy) = world.another_process().await;
        enqueue(provider, 1..=4).await;
        let (_, token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
        if is_dropped {
            // Its answer finds nobody.
            let mut held = world.proxy.hold_answer_of(ACTIVITY_ACK);
            let mut acking = Box::pin(ack(provider, &token, 1));
            tokio::select! {
                () = &mut acking => panic!("not held"),
                () = held.wait() => {}
            }
            drop(acking);
            held.release();
        } else {
            ack(provider, &token, 1).await;
        }
        // How many depends on how long this worker seems to take.
        eventually("they are handed back", || async {
            (world.proxy.calls_of(HANDED_BACK) > 0 && leased(&world).await == 0).then_some(())
        })
        .await;
        let (item, _, attempt) = gets(&other, LOCK, &TagFilter::DefaultOnly).await;
        assert!([2, 3].map(|id| activity("i", id)).contains(&item), "{item:?}");
        assert_eq!(attempt, 1, "{is_dropped}");
    }
}

/// Each is looked for on the terms of who comes back.
#[tokio::test]
async fn the_next_is_what_its_worker_asked_for() {
    let world = World::new().await;
    let provider = &world.provider;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let (untagged, tagged) = (TagFilter::DefaultOnly, TagFilter::tags(["t", "u"]));
    for (id, tag) in [
        (1, Some("t")),
        (2, None),
        (3, Some("foreign")),
        (4, Some("u")),
        (5, None),
    ] {
        let item = routed_activity("i", id, tag, None);
        provider.enqueue_for_worker(item).await.expect("enqueue");
    }
    let (_, one, _) = gets(provider, minutes(3), &tagged).await;
    let (_, two, _) = gets(provider, minutes(2), &untagged).await;
    let minutes_left = "select coalesce((select ceil(extract(epoch from available_at - clock_timestamp()) / 60)::bigint \
                          from worker_queue where activity_id = $1 and lease is not null), 0)";
    for (token, id, next, lock, tags) in [(&one, 1, 4, 3, &tagged), (&two, 2, 5, 2, &untagged)] {
        ack(provider, token, id).await;
        let (item, _, attempt) = gets(provider, minutes(lock), tags).await;
        let WorkItem::ActivityExecute { id, .. } = item else {
            panic!("{item:?}");
        };
        assert_eq!((id, attempt), (next, 1));
        let next = i64::try_from(next).expect("small");
        assert_eq!(
            world.number(minutes_left, &[&next]).await,
            i64::try_from(lock).expect("small")
        );
    }
    assert_eq!(leased(&world).await, 2);
}

/// Activities of sessions are for owners, who say so when they fetch.
#[tokio::test]
async fn nothing_of_a_session_is_claimed_ahead() {
    let world = World::new().await;
    let provider = &world.provider;
    let mine = SessionFetchConfig {
        owner_id: "me".to_string(),
        lock_timeout: LOCK,
    };
    let fetch = async || {
        let fetch = provider.fetch_work_item(LOCK, PATIENT, Some(&mine), &TagFilter::DefaultOnly);
        let fetched = tokio::time::timeout(SOON, fetch).await;
        fetched.expect("in time").expect("fetch").expect("an activity")
    };
    enqueue(provider, [1]).await;
    let (_, token, _) = fetch().await;
    for id in [2, 3] {
        let item = routed_activity("i", id, None, Some("s"));
        provider.enqueue_for_worker(item).await.expect("enqueue");
    }
    ack(provider, &token, 1).await;
    assert_eq!(leased(&world).await, 0);
    for id in [2, 3] {
        let (item, token, attempt) = fetch().await;
        assert_eq!((item, attempt), (routed_activity("i", id, None, Some("s")), 1));
        ack(provider, &token, id).await;
        assert_eq!(leased(&world).await, 0);
    }
}

/// What the look beside an ack did not find wakes who waits, as ever.
#[tokio::test]
async fn nobody_misses_what_comes_after_the_look_beside_an_ack() {
    let world = World::new().await;
    let provider = &world.provider;
    let (other, _proxy) = world.another_process().await;
    enqueue(provider, [1]).await;
    let (mut item, mut token, _) = gets(provider, LOCK, &TagFilter::DefaultOnly).await;
    for id in 2..30 {
        let mut held = world.proxy.hold_answer_of(ACTIVITY_ACK);
        let mut acking = Box::pin(ack(provider, &token, id - 1));
        tokio::select! {
            () = &mut acking => panic!("not held"),
            () = held.wait() => {}
        }
        let by_another = id % 2 == 0;
        enqueue(if by_another { &other } else { provider }, [id]).await;
        held.release();
        acking.await;
        let woken = tokio::time::timeout(WOKEN, gets(provider, LOCK, &TagFilter::DefaultOnly)).await;
        (item, token, _) = woken.expect("woken");
        assert_eq!(item, activity("i", id));
    }
    assert_eq!(item, activity("i", 29));
}
