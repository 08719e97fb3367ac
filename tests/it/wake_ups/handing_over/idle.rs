//! Instances that are idle when their next message comes: it is all there is to the turn that is handed over.

use std::sync::Arc;

use duroxide::providers::{OrchestrationItem, Provider, WorkItem};
use duroxide_postgres::PostgresProvider;
use tokio::task::JoinHandle;

use super::{ACTIVITY_ACK, PATIENT, SOON, looks};
use crate::batching::{World, begin, together};
use crate::fixtures::{self, Ack, LOCK, NOW, activity, completed, create, raised, work};
use crate::wake_ups::waits_for_a_lock;

const IS_IDLE: &str = "select count(*) from mailboxes where lease is null and available_at = 'infinity'";
const MESSAGES: &str = "select count(*) from orchestrator_queue";

type Turn = (OrchestrationItem, String, u32);

/// A dispatcher that waits: it has looked in vain.
async fn dispatcher(provider: &Arc<PostgresProvider>) -> JoinHandle<Turn> {
    let nothing = provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(nothing.expect("fetch").is_none());
    let provider = Arc::clone(provider);
    let mut fetch = Box::pin(async move {
        let fetched = provider.fetch_orchestration_item(LOCK, PATIENT, None).await;
        fetched.expect("fetch").expect("a turn")
    });
    assert!(begin(fetch.as_mut()).await.is_pending());
    tokio::spawn(fetch)
}

async fn gets(dispatcher: JoinHandle<Turn>) -> Turn {
    let got = tokio::time::timeout(SOON, dispatcher).await;
    got.expect("in time").expect("no panic")
}

/// An idle instance with activities under way: their tokens.
async fn with_activities(world: &World, instance: &str, activities: u64) -> Vec<String> {
    create(&*world.provider, instance).await;
    let mut tokens = Vec::new();
    for id in 1..=activities {
        let sent = world.provider.enqueue_for_worker(activity(instance, id)).await;
        sent.expect("enqueue");
        tokens.push(work(&*world.provider, LOCK).await.1);
    }
    world.settle().await;
    tokens
}

#[tokio::test]
async fn a_turn_is_handed_over_with_its_history_and_just_the_new_message() {
    let world = World::new().await;
    let provider = &world.provider;
    let [token]: [String; 1] = with_activities(&world, "i", 1).await.try_into().expect("one");
    let history = provider.read("i").await.expect("read");
    let mut first_looks = looks(&world);
    let waiting = dispatcher(provider).await;
    first_looks[0] += 1;
    let acked = provider.ack_work_item(&token, Some(completed("i", 1))).await;
    acked.expect("ack");
    let (item, token, attempt) = gets(waiting).await;
    assert_eq!((item.messages, attempt), (vec![completed("i", 1)], 1));
    assert_eq!(
        (&item.orchestration_name, &item.version),
        (&"Test".to_string(), &"1.0.0".to_string())
    );
    assert_eq!(item.history, history);
    fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");

    let waiting = dispatcher(provider).await;
    first_looks[0] += 1;
    let sent = provider.enqueue_for_orchestrator(raised("i", "x"), None).await;
    sent.expect("enqueue");
    let (item, token, attempt) = gets(waiting).await;
    assert_eq!((item.messages, attempt), (vec![raised("i", "x")], 1));
    assert_eq!(item.history, history);
    fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");
    assert_eq!(looks(&world), first_looks, "nobody looked for what was handed over");
    assert_eq!(world.number(MESSAGES, &[]).await, 0);
    assert_eq!(world.number(IS_IDLE, &[]).await, 1);
}

/// Those of one instance that end in one call are one turn.
#[tokio::test]
async fn what_ends_together_is_handed_over_together() {
    let world = World::new().await;
    let provider = &world.provider;
    create(&**provider, "other").await;
    provider
        .enqueue_for_worker(activity("other", 1))
        .await
        .expect("enqueue");
    let (_, first, _) = work(&**provider, LOCK).await;
    let tokens = with_activities(&world, "i", 2).await;
    let waiting = dispatcher(provider).await;
    // The first one is for nobody, and only keeps the line busy.
    let acks = [
        (first, None),
        (tokens[0].clone(), Some(1)),
        (tokens[1].clone(), Some(2)),
    ];
    let acks = acks.map(|(token, id)| {
        let provider = Arc::clone(provider);
        async move { provider.ack_work_item(&token, id.map(|id| completed("i", id))).await }
    });
    for acked in together(&world, ACTIVITY_ACK, acks).await {
        acked.expect("ack");
    }
    let (item, token, _) = gets(waiting).await;
    assert_eq!(item.messages, [completed("i", 1), completed("i", 2)]);
    fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");
    assert_eq!(world.number(MESSAGES, &[]).await, 0);
}

/// Nothing changes for an instance when an activity ends whose lock has expired.
#[tokio::test]
async fn what_ends_too_late_hands_nothing_over() {
    let world = World::new().await;
    let provider = &world.provider;
    let [token]: [String; 1] = with_activities(&world, "i", 1).await.try_into().expect("one");
    let waiting = dispatcher(provider).await;
    world
        .execute("update worker_queue set available_at = clock_timestamp()", &[])
        .await;
    let before = world.proxy.calls_of(ACTIVITY_ACK);
    let late = provider.ack_work_item(&token, Some(completed("i", 1))).await;
    assert!(late.expect_err("late").message.contains("DX001"));
    assert_eq!(world.proxy.calls_of(ACTIVITY_ACK), before + 1, "once is enough to know");
    assert_eq!(world.number(IS_IDLE, &[]).await, 1);
    assert_eq!(world.number(MESSAGES, &[]).await, 0);
    let sent = provider.enqueue_for_orchestrator(raised("i", "x"), None).await;
    sent.expect("enqueue");
    assert_eq!(gets(waiting).await.0.messages, [raised("i", "x")]);
}

/// The instance gets another message at that very moment: neither is lost, nor delivered twice.
#[tokio::test]
async fn what_comes_at_the_same_time_is_not_lost() {
    for ends in [true, false] {
        let world = World::new().await;
        let provider = &world.provider;
        let [token]: [String; 1] = with_activities(&world, "i", 1).await.try_into().expect("one");
        let waiting = dispatcher(provider).await;
        let mut holder = world.schema.client().await;
        let in_flight = holder.transaction().await.expect("begin");
        let message = serde_json::to_string(&raised("i", "in flight")).expect("JSON");
        let sent = in_flight
            .query("select enqueue_for_orchestrator('i', 'm', $1, null, null)", &[&message])
            .await;
        sent.expect("in flight");
        let (sender, own) = (Arc::clone(provider), own_message(ends));
        let sent = tokio::spawn(async move {
            match ends {
                true => sender.ack_work_item(&token, Some(own)).await,
                false => sender.enqueue_for_orchestrator(own, None).await,
            }
        });
        waits_for_a_lock(&world).await;
        in_flight.commit().await.expect("commit");
        sent.await.expect("no panic").expect("sent");
        let (item, token, _) = gets(waiting).await;
        let mut messages = item.messages;
        fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");
        if let Some((item, token, _)) = provider.fetch_orchestration_item(LOCK, NOW, None).await.expect("fetch") {
            messages.extend(item.messages);
            fixtures::ack(&**provider, &token, Ack::default()).await.expect("ack");
        }
        messages.sort_by_key(|message| format!("{message:?}"));
        assert_eq!(messages, [own_message(ends), raised("i", "in flight")], "{ends}");
        assert_eq!(world.number(IS_IDLE, &[]).await, 1);
    }
}

fn own_message(ends: bool) -> WorkItem {
    if ends {
        completed("i", 1)
    } else {
        raised("i", "at the same time")
    }
}
