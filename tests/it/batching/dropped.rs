//! Callers that go away: nobody beside them notices, and the line goes on.

use std::future::Future;
use std::pin::Pin;

use duroxide::providers::{Provider, ProviderError};

use super::{ACTIVITY_ACKS, MESSAGES, TURN_ACKS, World, ack_activity, ack_first, begin, instances, senders, sorted};
use crate::fixtures::{LOCK, start, turn};

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

/// A caller carries out its call itself. Should it begin one and then do something else, the others do not wait for it.
#[tokio::test]
async fn a_caller_that_stops_halfway_keeps_nobody_waiting() {
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
    assert_eq!(turn(&*world.provider, LOCK).await.0.instance, "halfway");
    assert_eq!(turn(&*world.provider, LOCK).await.0.instance, "other");
    halfway.await.expect("enqueue");
    let before = world.proxy.calls_of(MESSAGES);
    enqueue("next").await.expect("enqueue");
    assert_eq!(world.proxy.calls_of(MESSAGES), before + 1);
}
