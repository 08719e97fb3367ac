//! A start that was handed over is in its mailbox while its first turn lasts. Should that not end with an ack, the start is what it would be
//! had it been fetched from the queue.

use std::time::Duration;

use duroxide::providers::{OrchestrationItem, Provider, ProviderAdmin, WorkItem};

use super::{LEASED_START, Turn, starts_together, waits_for_a_turn};
use crate::batching::{TURN_ACKS, World, together};
use crate::fixtures::{Ack, LOCK, ack, named, raised, start, started, turn};
use crate::proxy::Mode;
use crate::support::eventually;
use crate::wake_ups::{PATIENT, Queue, SOON, Waiting};

/// The first turn of a new instance, whose start is in its mailbox.
async fn handed(world: &World, instance: &str) -> Turn {
    super::handed(world, &start(instance), instance).await
}

/// The same from the queue.
async fn fetched(world: &World, instance: &str) -> Turn {
    let (other, _proxy) = world.another_process().await;
    let sent = other.enqueue_for_orchestrator(start(instance), None).await;
    sent.expect("enqueue");
    let turn = turn(&*world.provider, LOCK).await;
    assert_eq!(world.number(LEASED_START, &[&instance]).await, 0);
    turn
}

/// All that is stored of an instance that has not begun, but for ids and times.
async fn stored(world: &World, instance: &str) -> Vec<String> {
    let rows = "select concat_ws(' ', 'message', q.kind, q.visible_at > clock_timestamp(), q.attempt_count, replace(q.work_item, $1, 'i')) \
                  from (select * from orchestrator_queue where instance_id = $1 order by id) as q \
                union all \
                select concat_ws(' ', 'mailbox', m.lease is null, m.claimed_ids is null, m.claimed_until is null, m.start_item is null, \
                                 m.available_at > clock_timestamp(), m.pinned_version) \
                  from mailboxes as m where m.instance_id = $1";
    let rows = world.admin.query(rows, &[&instance]).await.expect("rows");
    rows.iter().map(|row| row.get(0)).collect()
}

/// What ends a first turn.
fn first(instance: &str) -> Ack {
    Ack {
        events: vec![started(instance)],
        metadata: named(),
        ..Ack::default()
    }
}

async fn raise(world: &World, instance: &str) {
    let message = world
        .provider
        .enqueue_for_orchestrator(raised(instance, "x"), None)
        .await;
    message.expect("enqueue");
}

async fn expire(world: &World, instance: &str) {
    let expires = "update mailboxes set available_at = clock_timestamp() where instance_id = $1";
    world.execute(expires, &[&instance]).await;
}

fn start_and_raised(instance: &str) -> String {
    format!("{:?}", [start(instance), raised(instance, "x")])
}

fn messages(item: &OrchestrationItem) -> String {
    format!("{:?}", item.messages)
}

#[tokio::test]
async fn an_abandoned_one_is_delivered_again_before_what_came_later() {
    const HOUR: Duration = Duration::from_secs(3600);
    for (delay, ignore_attempt, attempt) in [
        (None, true, 1),
        (None, false, 2),
        (Some(HOUR), true, 1),
        (Some(HOUR), false, 2),
    ] {
        let world = World::new().await;
        let turns = [fetched(&world, "fetched").await, handed(&world, "handed").await];
        for (item, token, _) in &turns {
            raise(&world, &item.instance).await;
            let abandoned = world
                .provider
                .abandon_orchestration_item(token, delay, ignore_attempt)
                .await;
            abandoned.expect("abandon");
        }
        assert_eq!(stored(&world, "handed").await, stored(&world, "fetched").await);
        if delay.is_some() {
            let due =
                "update orchestrator_queue set visible_at = clock_timestamp() where attempt_count = $1 and kind = 's'";
            world.execute(due, &[&(attempt - 1)]).await;
            world
                .execute("update mailboxes set available_at = clock_timestamp()", &[])
                .await;
        }
        for _ in turns {
            let (item, _, again) = turn(&*world.provider, LOCK).await;
            assert_eq!(
                (messages(&item), again),
                (start_and_raised(&item.instance), attempt as u32)
            );
        }
    }
}

#[tokio::test]
async fn an_expired_one_is_taken_over_with_what_came_later() {
    let world = World::new().await;
    let turns = [fetched(&world, "fetched").await, handed(&world, "handed").await];
    let (other, _proxy) = world.another_process().await;
    for (item, token, _) in turns {
        raise(&world, &item.instance).await;
        expire(&world, &item.instance).await;
        let (again, new_token, attempt) = turn(&*other, LOCK).await;
        assert_eq!((messages(&again), attempt), (start_and_raised(&item.instance), 2));
        ack(&*world.provider, &token, first(&item.instance))
            .await
            .expect_err("lost");
        ack(&*other, &new_token, first(&item.instance)).await.expect("ack");
    }
    assert_eq!(world.number("select count(*) from orchestrator_queue", &[]).await, 0);
}

/// One alone, and several in one call.
#[tokio::test]
async fn an_ack_leaves_what_came_later_only() {
    eventually("all are handed over before who waits gets impatient", || async {
        let world = World::new().await;
        world.settle().await;
        let mut waiting = Vec::new();
        for _ in 0..4 {
            waiting.push(waits_for_a_turn(&world).await);
        }
        starts_together(&world, &["a", "b", "c", "d"]).await;
        let mut turns = Vec::new();
        for waiting in waiting {
            let (item, token, _) = waiting.await.expect("no panic");
            turns.push((item.instance, token));
        }
        let in_mailboxes = "select count(start_item) from mailboxes";
        if world.number(in_mailboxes, &[]).await < 4 {
            return None;
        }
        for (instance, _) in &turns {
            raise(&world, instance).await;
        }
        let acks = turns.into_iter().map(|(instance, token)| {
            let provider = world.provider.clone();
            async move { ack(&*provider, &token, first(&instance)).await }
        });
        let calls = world.proxy.calls_of(TURN_ACKS);
        for acked in together(&world, TURN_ACKS, acks).await {
            acked.expect("ack");
        }
        assert_eq!(world.proxy.calls_of(TURN_ACKS), calls + 2);
        assert_eq!(world.number(in_mailboxes, &[]).await, 0);
        for _ in 0..4 {
            let (item, _, attempt) = turn(&*world.provider, LOCK).await;
            let expected = format!("{:?}", [raised(&item.instance, "x")]);
            assert_eq!((messages(&item), attempt), (expected, 1));
        }
        Some(())
    })
    .await;
}

/// Whether somebody has it or its lease has ended.
#[tokio::test]
async fn it_is_counted_as_any_other() {
    let world = World::new().await;
    fetched(&world, "fetched").await;
    handed(&world, "handed").await;
    for (waiting, leased) in [(0, 2), (2, 0)] {
        let depths = world.provider.get_queue_depths().await.expect("depths");
        assert_eq!(depths.orchestrator_queue, waiting);
        let health = "select concat_ws(' ', total, ready, leased, scheduled, oldest_ready_at <= clock_timestamp()) \
                        from queue_health where queue = 'orchestrator'";
        let health: String = world.admin.query_one(health, &[]).await.expect("health").get(0);
        let oldest = if waiting > 0 { " t" } else { "" };
        assert_eq!(health, format!("2 {waiting} {leased} 0{oldest}"));
        for instance in ["fetched", "handed"] {
            let queued = "select messages from get_queued_messages($1) where start_waits_ms >= 0";
            assert_eq!(world.number(queued, &[&instance]).await, 1, "{instance}");
            expire(&world, instance).await;
        }
    }
}

#[tokio::test]
async fn it_can_be_deleted() {
    let world = World::new().await;
    for (item, token, _) in [fetched(&world, "fetched").await, handed(&world, "handed").await] {
        let deleted = world
            .provider
            .delete_instances_atomic(std::slice::from_ref(&item.instance), true)
            .await;
        assert_eq!(deleted.expect("deleted").queue_messages_deleted, 1, "{}", item.instance);
        ack(&*world.provider, &token, first(&item.instance))
            .await
            .expect_err("gone");
        assert_eq!(stored(&world, &item.instance).await, Vec::<String>::new());
    }
}

/// What stops it from moving into the queue is reported, and it stays where it is until it can.
#[tokio::test]
async fn one_that_cannot_move_is_reported_and_not_lost() {
    let world = World::new().await;
    let (item, _, _) = handed(&world, "i").await;
    let forbidden = "create function forbidden() returns trigger language plpgsql as $$ begin raise exception 'no room'; end $$; \
                     create trigger forbidden before insert on orchestrator_queue for each row when (new.kind = 's') \
                     execute function forbidden()";
    world.admin.batch_execute(forbidden).await.expect("a trigger");
    raise(&world, "i").await;
    for expected in [2, 3] {
        expire(&world, "i").await;
        let (broken, _, attempt) = turn(&*world.provider, LOCK).await;
        let error = broken.history_error.expect("reported");
        assert!(error.contains("no room"), "{error}");
        assert_eq!(attempt, expected, "it is poisoned in the end");
        let depths = world.provider.get_queue_depths().await.expect("depths");
        assert_eq!(depths.orchestrator_queue, 1, "what was raised");
        let health = "select max_attempts::bigint from queue_health where queue = 'orchestrator'";
        assert_eq!(world.number(health, &[]).await, i64::from(expected) - 1);
        assert_eq!(world.number(LEASED_START, &[&"i"]).await, 1);
    }
    let allowed = "drop trigger forbidden on orchestrator_queue";
    world.admin.batch_execute(allowed).await.expect("no trigger");
    expire(&world, "i").await;
    let (again, _, attempt) = turn(&*world.provider, LOCK).await;
    assert_eq!((messages(&again), attempt), (start_and_raised(&item.instance), 4));
}

/// The call has committed, but nobody hears of it.
#[tokio::test]
async fn one_whose_answer_is_lost_can_be_had_at_once() {
    let world = World::new().await;
    world.settle().await;
    let dispatcher = Waiting::begin(&world.provider, Queue::Turns).await;
    let mut lost = world.proxy.lose_answer_of(".enqueue_for_orchestrator(", Mode::Pass);
    let sent = world.provider.enqueue_for_orchestrator(start("i"), None).await;
    assert!(sent.expect_err("lost").message.contains("may or may not"));
    assert!(lost.has_happened());
    assert_eq!(dispatcher.gets(SOON).await, ("i".to_string(), 1));
    let messages = "select count(*) from orchestrator_queue where kind = 's'";
    assert_eq!(world.number(messages, &[]).await, 1);
}

/// Larger than a row can be.
#[tokio::test]
async fn a_large_one_is_no_exception() {
    let world = World::new().await;
    let WorkItem::StartOrchestration {
        instance,
        orchestration,
        version,
        ..
    } = start("i")
    else {
        panic!("not a start");
    };
    let large = WorkItem::StartOrchestration {
        instance,
        orchestration,
        version,
        input: (0..300_000).map(|number| number.to_string()).collect(),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    };
    let (item, token, _) = super::handed(&world, &large, "i").await;
    let renewed = world.provider.renew_orchestration_item_lock(&token, LOCK).await;
    renewed.expect("renew");
    let abandoned = world.provider.abandon_orchestration_item(&token, None, true).await;
    abandoned.expect("abandon");
    let fetched = world.provider.fetch_orchestration_item(LOCK, PATIENT, None).await;
    let (again, _, _) = fetched.expect("fetch").expect("a turn");
    assert_eq!(messages(&again), format!("{:?}", [large]));
    assert_eq!(messages(&item), messages(&again));
}
