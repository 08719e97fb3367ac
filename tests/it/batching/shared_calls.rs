//! Calls that are ready at the same moment, or arrive while one is on the wire, are one call at the server.

use std::collections::HashMap;
use std::sync::Arc;

use duroxide::EventKind;
use duroxide::providers::{Provider, WorkItem};
use futures_util::future::join_all;

use super::{
    ACTIVITIES, ACTIVITY_ACKS, CALLERS, FETCH_TURNS, MESSAGES, SINK, TURN_ACKS, Turn, World, ack_activity, ack_first,
    begin, instances, senders, sorted, together,
};
use crate::fixtures::{self, Ack, LOCK, activity, create, event, named, raised, start, started, turn};

/// Nobody goes ahead of those who are ready as well: neither to be acked nor to fetch.
#[tokio::test]
async fn those_who_are_ready_at_once_share_a_call() {
    let world = World::new().await;
    world.settle().await;
    let names = instances(CALLERS);
    let sent = names
        .iter()
        .map(|name| world.provider.enqueue_for_orchestrator(start(name), None));
    for answer in join_all(sent).await {
        answer.expect("enqueue");
    }
    assert_eq!(world.proxy.calls_of(MESSAGES), 1);

    let fetches_before = world.proxy.calls_of(FETCH_TURNS);
    let fetched = join_all(names.iter().map(|_| turn(&*world.provider, LOCK))).await;
    assert_eq!(world.proxy.calls_of(FETCH_TURNS), fetches_before + 1);

    let acks = fetched.into_iter().map(|(item, token, _)| {
        let turn = Turn {
            instance: item.instance,
            token,
        };
        ack_first(world.provider.clone(), turn)
    });
    for answer in join_all(acks).await {
        answer.expect("ack");
    }
    assert_eq!(world.proxy.calls_of(TURN_ACKS), 1);
    assert_eq!(senders(&world).await, sorted(names));
}

#[tokio::test]
async fn turn_acks_share_a_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let turns = world.turns(&names).await;
    let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
    for answer in together(&world, TURN_ACKS, acks).await {
        answer.expect("ack");
    }
    assert_eq!(world.proxy.calls_of(TURN_ACKS), 2);
    assert_eq!(senders(&world).await, sorted(names));
    assert_eq!(world.number("select count(*) from history", &[]).await, CALLERS as i64);
    let leases = "select count(*) from mailboxes where lease is not null";
    assert_eq!(world.number(leases, &[]).await, 0);
}

#[tokio::test]
async fn activity_acks_share_a_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let activities = world.activities(&names).await;
    let acks = activities
        .into_iter()
        .map(|done| ack_activity(world.provider.clone(), done));
    for answer in together(&world, ACTIVITY_ACKS, acks).await {
        answer.expect("ack");
    }
    assert_eq!(world.proxy.calls_of(ACTIVITY_ACKS), 2);
    assert_eq!(world.number("select count(*) from worker_queue", &[]).await, 0);
    let completions = "select count(distinct instance_id) * 1000 + count(*) from orchestrator_queue";
    assert_eq!(world.number(completions, &[]).await, 16_016);
}

#[tokio::test]
async fn enqueued_messages_share_a_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let sent = names.iter().map(|name| {
        let (provider, item) = (world.provider.clone(), start(name));
        async move { provider.enqueue_for_orchestrator(item, None).await }
    });
    for answer in together(&world, MESSAGES, sent.collect::<Vec<_>>()).await {
        answer.expect("enqueue");
    }
    assert_eq!(world.proxy.calls_of(MESSAGES), 2);
    let mut claimed = Vec::new();
    for _ in &names {
        claimed.push(turn(&*world.provider, LOCK).await.0.instance);
    }
    assert_eq!(sorted(claimed), sorted(names));
}

#[tokio::test]
async fn enqueued_activities_share_a_call() {
    let world = World::new().await;
    let sent = (0..CALLERS as u64).map(|id| {
        let provider = world.provider.clone();
        async move { provider.enqueue_for_worker(activity("i", id)).await }
    });
    for answer in together(&world, ACTIVITIES, sent.collect::<Vec<_>>()).await {
        answer.expect("enqueue");
    }
    assert_eq!(world.proxy.calls_of(ACTIVITIES), 2);
    let mut claimed = Vec::new();
    for _ in 0..CALLERS {
        match fixtures::work(&*world.provider, LOCK).await.0 {
            WorkItem::ActivityExecute { id, .. } => claimed.push(id),
            other => panic!("{other:?}"),
        }
    }
    claimed.sort_unstable();
    assert_eq!(claimed, (0..CALLERS as u64).collect::<Vec<_>>());
}

/// Each reader gets the history of its own instance, also where there is none.
#[tokio::test]
async fn reads_share_a_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    for name in &names[1..] {
        create(&*world.provider, name).await;
    }
    let read = |name: &String| {
        let (provider, name) = (world.provider.clone(), name.clone());
        async move { provider.read(&name).await }
    };
    // Twice: what is in memory and what is not must come to the same.
    for _ in 0..2 {
        let reader = world.schema.provider().await;
        let before = world.proxy.calls_of(".read(");
        let answers = together(&world, ".read(", names.iter().map(read).collect::<Vec<_>>()).await;
        assert_eq!(world.proxy.calls_of(".read(") - before, 2);
        for (name, answer) in names.iter().zip(answers) {
            let stored = reader.read_with_execution(name, 1).await.expect("read");
            assert_eq!(answer.expect("read"), stored, "{name}");
            assert_eq!(stored.is_empty(), *name == names[0]);
        }
    }
}

/// Each gets the status of its own instance, if that is newer than what it has seen.
#[tokio::test]
async fn custom_statuses_share_a_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    for name in &names {
        create(&*world.provider, name).await;
        let set = EventKind::CustomStatusUpdated {
            status: Some(format!("status of {name}")),
        };
        let message = raised(name, "go on");
        world
            .provider
            .enqueue_for_orchestrator(message, None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(&*world.provider, LOCK).await;
        let ack = Ack {
            events: vec![event(name, 2, set)],
            ..Ack::default()
        };
        fixtures::ack(&*world.provider, &token, ack).await.expect("ack");
    }
    // Every other one has seen it already.
    let status = |(position, name): (usize, &String)| {
        let (provider, name) = (world.provider.clone(), name.clone());
        async move { provider.get_custom_status(&name, position as u64 % 2).await }
    };
    let calls: Vec<_> = names.iter().enumerate().map(status).collect();
    let answers = together(&world, ".get_custom_status(", calls).await;
    assert_eq!(world.proxy.calls_of(".get_custom_status("), 2);
    for (position, (name, answer)) in names.iter().zip(answers).enumerate() {
        let expected = (position % 2 == 0).then(|| (Some(format!("status of {name}")), 1));
        assert_eq!(answer.expect("status"), expected, "{name}");
    }
}

/// Those who wait together are many, and the messages of each stay in the order it sent them.
#[tokio::test]
async fn messages_of_one_caller_stay_in_order() {
    const EACH: usize = 20;
    let world = World::new().await;
    create(&*world.provider, SINK).await;
    let callers = (0..CALLERS).map(|caller| {
        let provider = Arc::clone(&world.provider);
        tokio::spawn(async move {
            for number in 0..EACH {
                let message = raised(SINK, &format!("{caller} {number}"));
                provider.enqueue_for_orchestrator(message, None).await.expect("enqueue");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("no panic");
    }
    let calls = world.proxy.calls_of(MESSAGES);
    assert!(calls < CALLERS * EACH / 2, "{calls} calls: hardly any were shared");
    let (item, _, _) = turn(&*world.provider, LOCK).await;
    assert_eq!(item.messages.len(), CALLERS * EACH);
    let mut next: HashMap<String, usize> = HashMap::new();
    for message in item.messages {
        let WorkItem::ExternalRaised { data, .. } = message else {
            panic!("{message:?}");
        };
        let (caller, number) = data.split_once(' ').expect("two numbers");
        let expected = next.entry(caller.to_string()).or_default();
        assert_eq!(number.parse(), Ok(*expected), "caller {caller}");
        *expected += 1;
    }
}

/// More targets in one call than the server's lock table is asked to hold marks for.
#[tokio::test]
async fn turns_that_send_to_very_many_instances_share_a_call() {
    const EACH: usize = 24;
    let world = World::new().await;
    let turns = world.turns(&instances(CALLERS)).await;
    let acks = turns.into_iter().map(|turn| {
        let provider = world.provider.clone();
        let targets = (0..EACH).map(|number| start(&format!("{number} of {}", turn.instance)));
        // And to each other.
        let neighbours = instances(CALLERS).into_iter().filter(|name| *name != turn.instance);
        let first = Ack {
            events: vec![started(&turn.instance)],
            messages: targets.chain(neighbours.map(|name| raised(&name, "x"))).collect(),
            metadata: named(),
            ..Ack::default()
        };
        async move { fixtures::ack(&*provider, &turn.token, first).await }
    });
    for answer in together(&world, TURN_ACKS, acks.collect::<Vec<_>>()).await {
        answer.expect("ack");
    }
    assert_eq!(world.proxy.calls_of(TURN_ACKS), 2);
    let mut messages = 0;
    for _ in 0..CALLERS * (EACH + 1) {
        messages += turn(&*world.provider, LOCK).await.0.messages.len();
    }
    assert_eq!(messages, CALLERS * (EACH + CALLERS - 1));
}

/// Whoever was just answered and calls again at once goes with those who waited meanwhile, instead of taking turns with them.
#[tokio::test]
async fn who_comes_back_at_once_goes_with_those_who_waited() {
    let world = World::new().await;
    let enqueue = |names: &'static [&'static str]| {
        let provider = world.provider.clone();
        async move {
            for name in names {
                let sent = provider.enqueue_for_orchestrator(start(name), None).await;
                sent.expect("enqueue");
            }
        }
    };
    let before = world.proxy.calls_of(MESSAGES);
    let mut held = world.proxy.hold_answer_of(MESSAGES);
    let busy = tokio::spawn(enqueue(&["first", "again"]));
    held.wait().await;
    let mut waiting = Box::pin(enqueue(&["waiting"]));
    assert!(begin(waiting.as_mut()).await.is_pending(), "the line is free");
    held.release();
    waiting.await;
    busy.await.expect("no panic");
    assert_eq!(world.proxy.calls_of(MESSAGES), before + 2);
}

/// Few who find a call of the step before on the wire wait for whom it sets free, and share the next call with them.
#[tokio::test]
async fn few_wait_for_those_of_the_step_before() {
    let world = World::new().await;
    // They do not wait long: on a slow machine it may take several attempts.
    for attempt in 0..100 {
        let done = world.activities(&instances(1)).await.remove(0);
        let before = world.proxy.calls_of(ACTIVITIES);
        let mut held = world.proxy.hold_answer_of(ACTIVITY_ACKS);
        let provider = world.provider.clone();
        let circle = tokio::spawn(async move {
            ack_activity(provider.clone(), done).await.expect("ack");
            provider.enqueue_for_worker(activity("circle", attempt)).await
        });
        held.wait().await;
        let enqueue = world.provider.enqueue_for_worker(activity("other", attempt));
        let mut enqueue = std::pin::pin!(enqueue);
        assert!(begin(enqueue.as_mut()).await.is_pending());
        held.release();
        enqueue.await.expect("enqueue");
        circle.await.expect("no panic").expect("enqueue");
        let calls = world.proxy.calls_of(ACTIVITIES) - before;
        for _ in 0..2 {
            let (_, token, _) = fixtures::work(&*world.provider, LOCK).await;
            world.provider.ack_work_item(&token, None).await.expect("ack");
        }
        if calls == 1 {
            return;
        }
    }
    panic!("they never shared a call");
}

/// Nor do they wait for one that is stuck.
#[tokio::test]
async fn nobody_waits_for_a_step_that_is_stuck() {
    let world = World::new().await;
    let done = world.activities(&instances(1)).await.remove(0);
    let mut held = world.proxy.hold_answer_of(ACTIVITY_ACKS);
    let stuck = tokio::spawn(ack_activity(world.provider.clone(), done));
    held.wait().await;
    let enqueued = world.provider.enqueue_for_worker(activity("other", 1)).await;
    enqueued.expect("enqueue");
    assert!(!stuck.is_finished());
    held.release();
    stuck.await.expect("no panic").expect("ack");
}
