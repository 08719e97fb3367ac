//! What an ack adds is in memory only if it was committed, and from the moment it was.

use std::pin::pin;
use std::time::Duration;

use duroxide::providers::Provider;

use super::{INSTANCE, ack, assert_sees_what_is_stored, claim, create_cached, next, stored, take_turn};
use crate::batching::{World, begin};
use crate::fixtures::{LOCK, raised, turn};
use crate::proxy::Mode;

const ACK: &str = ".ack_orchestration_item";

#[tokio::test]
async fn an_ack_whose_answer_is_lost_is_in_memory_once() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let (item, token) = claim(near, INSTANCE).await;
    let mut lost = world.proxy.lose_answer_of(ACK, Mode::Pass);
    let event = next(INSTANCE, &item.history, "whose answer is lost");
    ack(near, &token, vec![event]).await.expect("the retry");
    assert!(lost.has_happened());
    assert_eq!(stored(near, INSTANCE).await.len(), 5);
    assert_sees_what_is_stored(near, INSTANCE).await;
}

/// Somebody else has taken the instance over.
#[tokio::test]
async fn an_ack_that_fails_leaves_nothing_in_memory() {
    for other_acks in [false, true] {
        let world = World::new().await;
        let (near, far) = (&*world.provider, &*world.schema.provider().await);
        create_cached(near, INSTANCE).await;
        let (item, token) = claim(near, INSTANCE).await;
        let expire = "update mailboxes set available_at = clock_timestamp()";
        world.execute(expire, &[]).await;
        let (_, others, _) = turn(far, LOCK).await;
        if other_acks {
            let event = next(INSTANCE, &item.history, "right");
            ack(far, &others, vec![event]).await.expect("ack");
        }
        let event = next(INSTANCE, &item.history, "wrong");
        let error = ack(near, &token, vec![event]).await.expect_err("taken over");
        assert!(error.message.contains("DX001"), "{error}");
        if !other_acks {
            far.abandon_orchestration_item(&others, None, false)
                .await
                .expect("abandon");
        }
        let all = stored(far, INSTANCE).await;
        assert!(!format!("{all:?}").contains("wrong"));
        assert_eq!(near.read(INSTANCE).await.expect("read"), all);
        assert_sees_what_is_stored(near, INSTANCE).await;
    }
}

/// The event id exists: permanent, and nothing of the ack is in memory.
#[tokio::test]
async fn an_ack_with_an_event_that_exists_leaves_nothing_in_memory() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let (item, token) = claim(near, INSTANCE).await;
    let event = next(INSTANCE, &item.history, "right");
    near.append_with_execution(INSTANCE, 1, vec![event])
        .await
        .expect("append");
    let event = next(INSTANCE, &item.history, "wrong");
    let error = ack(near, &token, vec![event]).await.expect_err("it exists");
    assert!(error.message.contains("23505"), "{error}");
    near.abandon_orchestration_item(&token, None, true)
        .await
        .expect("abandon");
    assert_sees_what_is_stored(near, INSTANCE).await;
}

/// A message was waiting, so that the next turn is there before the answer to the ack of the one before is.
#[tokio::test]
async fn the_next_turn_does_not_wait_for_the_answer_to_the_ack_before() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let (item, token) = claim(near, INSTANCE).await;
    near.enqueue_for_orchestrator(raised(INSTANCE, "waiting"), None)
        .await
        .expect("enqueue");
    let mut held = world.proxy.hold_answer_of(ACK);
    let provider = world.provider.clone();
    let event = next(INSTANCE, &item.history, "committed, not answered");
    let first = tokio::spawn(async move { ack(&*provider, &token, vec![event]).await });
    held.wait().await;

    let all = stored(near, INSTANCE).await;
    assert_eq!(all.len(), 5);
    // Read before, during and after the next turn.
    assert_eq!(near.read(INSTANCE).await.expect("read"), all);
    let (item, token, attempt) = turn(near, LOCK).await;
    assert_eq!((&item.history, attempt), (&all, 1));
    assert_eq!(near.read(INSTANCE).await.expect("read"), all);
    let event = next(INSTANCE, &all, "overtaking");
    // The line is busy with the first: it goes alone after a moment.
    ack(near, &token, vec![event]).await.expect("ack");
    assert_eq!(near.read(INSTANCE).await.expect("read"), stored(near, INSTANCE).await);
    held.release();
    first.await.expect("no panic").expect("ack");
    assert_sees_what_is_stored(near, INSTANCE).await;
}

/// The same, but nobody reads and the turn is acked after the first answer has come.
#[tokio::test]
async fn an_answer_that_arrives_during_the_next_turn_changes_nothing() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let (item, token) = claim(near, INSTANCE).await;
    near.enqueue_for_orchestrator(raised(INSTANCE, "waiting"), None)
        .await
        .expect("enqueue");
    let mut held = world.proxy.hold_answer_of(ACK);
    let provider = world.provider.clone();
    let event = next(INSTANCE, &item.history, "committed, not answered");
    let first = tokio::spawn(async move { ack(&*provider, &token, vec![event]).await });
    held.wait().await;
    let all = stored(near, INSTANCE).await;
    let (item, token, _) = turn(near, LOCK).await;
    assert_eq!(item.history, all);
    held.release();
    first.await.expect("no panic").expect("ack");
    let event = next(INSTANCE, &all, "after");
    ack(near, &token, vec![event]).await.expect("ack");
    assert_sees_what_is_stored(near, INSTANCE).await;
}

/// The caller goes away while its ack is on the wire, committed or never sent.
#[tokio::test]
async fn a_dropped_ack_leaves_the_truth_behind() {
    for committed in [true, false] {
        let world = World::new().await;
        let near = &*world.provider;
        create_cached(near, INSTANCE).await;
        let (item, token) = claim(near, INSTANCE).await;
        let mut held = match committed {
            true => world.proxy.hold_answer_of(ACK),
            false => world.proxy.hold_request_of(ACK),
        };
        let event = next(INSTANCE, &item.history, "dropped");
        {
            let mut dropped = pin!(ack(near, &token, vec![event]));
            assert!(begin(dropped.as_mut()).await.is_pending());
            tokio::select! {
                _ = dropped => panic!("held back"),
                () = held.wait() => {}
            }
        }
        // Its connection has been closed: what was not sent by then never is.
        drop(held);
        if !committed {
            near.abandon_orchestration_item(&token, None, true)
                .await
                .expect("abandon");
        }
        let all = stored(near, INSTANCE).await;
        assert_eq!(all.len(), if committed { 5 } else { 4 });
        assert_sees_what_is_stored(near, INSTANCE).await;
        // Another turn that adds the same ids, but other events.
        take_turn(near, INSTANCE, "another").await;
        assert_sees_what_is_stored(near, INSTANCE).await;
    }
}

/// A process that lost the answer of its fetch is said to have what it never got.
#[tokio::test]
async fn a_history_whose_fetch_was_lost_is_read_again() {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create_cached(far, INSTANCE).await;
    far.enqueue_for_orchestrator(raised(INSTANCE, "go on"), None)
        .await
        .expect("enqueue");
    let mut lost = world.proxy.lose_answer_of(".fetch_orchestration_item(", Mode::Pass);
    let fetched = near.fetch_orchestration_item(LOCK, Duration::ZERO, None).await;
    assert!(fetched.expect_err("lost").is_retryable() && lost.has_happened());
    let given_up = "update mailboxes set available_at = clock_timestamp()";
    world.execute(given_up, &[]).await;
    let (item, token, attempt) = turn(near, LOCK).await;
    assert_eq!((&item.history, attempt), (&stored(far, INSTANCE).await, 2));
    near.abandon_orchestration_item(&token, None, true)
        .await
        .expect("abandon");
    assert_sees_what_is_stored(near, INSTANCE).await;
}
