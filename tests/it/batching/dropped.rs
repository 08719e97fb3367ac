//! Callers that go away: nobody beside them notices, and the line goes on.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use duroxide::providers::{Provider, ProviderError};

use super::{
    ACTIVITY_ACKS, FETCH_TURNS, MESSAGES, TURN_ACKS, World, ack_activity, ack_first, begin, instances, senders, sorted,
};
use crate::fixtures::{self, Ack, LOCK, named, start, turn};

const ABANDON: &str = ".abandon_orchestration_item(";

type Call = Pin<Box<dyn Future<Output = Result<(), ProviderError>> + Send>>;

/// Begins all calls while the answer to the first is held back, drops some of them (which may be the first), and
/// expects the others to succeed.
async fn drop_some(world: &World, function: &str, calls: Vec<Call>, dropped: &[usize]) {
    let mut held = world.proxy.hold_answer_of(function);
    let mut calls: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    let first = calls[0].as_mut().expect("a call");
    tokio::select! {
        _ = first => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    for call in calls[1..].iter_mut().flatten() {
        assert!(begin(call.as_mut()).await.is_pending(), "the line is free");
    }
    for position in dropped {
        calls[*position] = None;
    }
    held.release();
    for call in calls.into_iter().flatten() {
        call.await.expect("a neighbour");
    }
}

#[tokio::test]
async fn turn_acks_dropped_on_the_wire_and_in_the_line_take_nobody_with_them() {
    let world = World::new().await;
    let names = instances(6);
    let turns = world.turns(&names).await;
    let calls = turns
        .into_iter()
        .map(|turn| -> Call { Box::pin(ack_first(world.provider.clone(), turn)) });
    drop_some(&world, TURN_ACKS, calls.collect(), &[0, 3]).await;
    // The first had been carried out; the other had found its place in the line.
    assert_eq!(senders(&world).await, sorted(names));

    // The line is not stuck.
    let more = world.turns(&["more".to_string()]).await;
    let before = world.proxy.calls_of(TURN_ACKS);
    ack_first(world.provider.clone(), more[0].clone()).await.expect("ack");
    assert_eq!(world.proxy.calls_of(TURN_ACKS), before + 1);
}

#[tokio::test]
async fn activity_acks_dropped_on_the_wire_and_in_the_line_take_nobody_with_them() {
    let world = World::new().await;
    let activities = world.activities(&instances(6)).await;
    let calls = activities
        .into_iter()
        .map(|done| -> Call { Box::pin(ack_activity(world.provider.clone(), done)) });
    drop_some(&world, ACTIVITY_ACKS, calls.collect(), &[0, 3]).await;
    let each_once = "select count(distinct instance_id) * 1000 + count(*) from orchestrator_queue";
    assert_eq!(world.number(each_once, &[]).await, 6_006);
    let more = world.activities(&["more".to_string()]).await;
    ack_activity(world.provider.clone(), more[0].clone())
        .await
        .expect("ack");
}

#[tokio::test]
async fn enqueues_dropped_on_the_wire_and_in_the_line_take_nobody_with_them() {
    let world = World::new().await;
    let names = instances(6);
    let calls = names.iter().map(|name| -> Call {
        let (provider, item) = (world.provider.clone(), start(name));
        Box::pin(async move { provider.enqueue_for_orchestrator(item, None).await })
    });
    drop_some(&world, MESSAGES, calls.collect(), &[0, 3]).await;
    let mut arrived = Vec::new();
    for _ in &names {
        arrived.push(turn(&*world.provider, LOCK).await.0.instance);
    }
    assert_eq!(sorted(arrived), sorted(names));
    world.turns(&["more".to_string()]).await;
}

/// Everybody goes away, with calls on the wire and in the line: the next caller finds the line in order.
#[tokio::test]
async fn a_line_that_everybody_left_serves_the_next_caller() {
    let world = World::new().await;
    let turns = world.turns(&instances(6)).await;
    let calls = turns
        .into_iter()
        .map(|turn| -> Call { Box::pin(ack_first(world.provider.clone(), turn)) });
    drop_some(&world, TURN_ACKS, calls.collect(), &[0, 1, 2, 3, 4, 5]).await;
    let last = world.turns(&["last".to_string()]).await;
    ack_first(world.provider.clone(), last[0].clone()).await.expect("ack");
}

/// A caller carries out its call itself. Should it begin one and then do something else, the others do not depend on it: one
/// of them waits for a while, then the line goes on.
#[tokio::test]
async fn a_caller_that_stops_halfway_does_not_stop_the_line() {
    let world = World::new().await;
    let enqueue = |name: &str| -> Call {
        let (provider, item) = (world.provider.clone(), start(name));
        Box::pin(async move { provider.enqueue_for_orchestrator(item, None).await })
    };
    let mut held = world.proxy.hold_answer_of(MESSAGES);
    let mut halfway = enqueue("halfway");
    tokio::select! {
        _ = &mut halfway => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    held.release();
    enqueue("other").await.expect("enqueue");

    // One goes out at once and alone, and those that come meanwhile share the next call.
    let before = world.proxy.calls_of(MESSAGES);
    let mut held = world.proxy.hold_answer_of(MESSAGES);
    let mut next = enqueue("next");
    tokio::select! {
        _ = &mut next => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    let mut shared = [enqueue("shared-1"), enqueue("shared-2")];
    for call in &mut shared {
        assert!(begin(call.as_mut()).await.is_pending());
    }
    held.release();
    next.await.expect("enqueue");
    for call in shared {
        call.await.expect("enqueue");
    }
    assert_eq!(world.proxy.calls_of(MESSAGES), before + 2);

    halfway.await.expect("enqueue");
    let mut arrived = Vec::new();
    for _ in 0..5 {
        arrived.push(turn(&*world.provider, LOCK).await.0.instance);
    }
    assert_eq!(sorted(arrived), ["halfway", "next", "other", "shared-1", "shared-2"]);
}

/// Who may go out lets others come along. Should it go away meanwhile, or stop, they go without it.
#[tokio::test]
async fn a_caller_that_others_are_to_go_with_takes_nobody_with_it() {
    let world = World::new().await;
    let enqueue = |name: &str| -> Call {
        let (provider, item) = (world.provider.clone(), start(name));
        Box::pin(async move { provider.enqueue_for_orchestrator(item, None).await })
    };
    for leaves in [true, false] {
        let mut first = enqueue("first");
        assert!(begin(first.as_mut()).await.is_pending());
        let mut second = enqueue("second");
        assert!(begin(second.as_mut()).await.is_pending());
        let stopped = (!leaves).then_some(first);
        second.await.expect("enqueue");
        if let Some(first) = stopped {
            first.await.expect("enqueue");
        }
        let mut arrived = Vec::new();
        for _ in 0..2 {
            arrived.push(turn(&*world.provider, LOCK).await);
        }
        let names = arrived.iter().map(|(item, ..)| item.instance.clone());
        assert_eq!(sorted(names.collect()), ["first", "second"]);
        for (_, token, _) in arrived {
            let end = Ack {
                metadata: named(),
                ..Ack::default()
            };
            fixtures::ack(&*world.provider, &token, end).await.expect("ack");
        }
    }
}

/// A look for several fetches depends on none of them.
#[tokio::test]
async fn a_fetch_that_stops_halfway_keeps_nobody_waiting() {
    let world = World::new().await;
    let later = Some(Duration::from_secs(2));
    for name in ["a", "b"] {
        let sent = world.provider.enqueue_for_orchestrator(start(name), later).await;
        sent.expect("enqueue");
    }
    let fetch = || {
        Box::pin(
            world
                .provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(60), None),
        )
    };
    let (mut first, mut second) = (fetch(), fetch());
    // Both learn when to look again. Then only the first is there, and looks for both.
    let both = futures_util::future::join(&mut first, &mut second);
    assert!(tokio::time::timeout(Duration::from_millis(500), both).await.is_err());
    let mut held = world.proxy.hold_answer_of(FETCH_TURNS);
    tokio::select! {
        _ = &mut first => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    held.release();
    // From now on only the second.
    second.await.expect("fetch").expect("a turn");
    first.await.expect("fetch").expect("a turn");
}

/// Who goes away while a look for it is on the wire leaves the instance that it brings resting: it might come back, and
/// go away, again and again.
#[tokio::test]
async fn what_was_claimed_for_a_fetch_that_went_away_rests() {
    let world = World::new().await;
    world.settle().await;
    let sent = world.provider.enqueue_for_orchestrator(start("i"), None).await;
    sent.expect("enqueue");
    let mut held = world.proxy.hold_answer_of(FETCH_TURNS);
    let mut fetch = Box::pin(world.provider.fetch_orchestration_item(LOCK, Duration::ZERO, None));
    tokio::select! {
        _ = &mut fetch => panic!("the answer is held back"),
        () = held.wait() => {}
    }
    drop(fetch);
    // Due again when it has rested.
    let abandons = world.proxy.calls_of(ABANDON);
    held.release();
    while world.proxy.calls_of(ABANDON) == abandons {
        tokio::task::yield_now().await;
    }
    let rests = "select count(*) from mailboxes \
                  where lease is null and available_at > (select max(visible_at) from orchestrator_queue)";
    while world
        .number("select count(*) from mailboxes where lease is null", &[])
        .await
        == 0
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.number(rests, &[]).await, 1);
}
