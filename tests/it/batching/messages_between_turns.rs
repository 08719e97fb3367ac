//! Turns that end together and send each other messages, from two processes at once: no deadlock, nothing lost, nothing
//! delivered twice, and every turn has the whole history of its instance.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{Provider, WorkItem};
use duroxide_postgres::PostgresProvider;

use super::instances;
use crate::fixtures::{Ack, LOCK, ack, child_start, event, named, raised, start, started};
use crate::support::in_own_database;

const TASKS: usize = 16;
const INSTANCES: usize = 12;
/// Messages that wander from instance to instance, and how far.
const WANDERERS: usize = 32;
const STEPS: usize = 100;
const POLL: Duration = Duration::from_millis(500);

/// What the turns have seen.
#[derive(Default)]
struct Seen {
    /// How often each message was part of a turn that was acked.
    messages: HashMap<String, usize>,
    events: HashMap<String, usize>,
    /// Instances that were created on the way, and how many of them told their parent.
    children: usize,
    returned: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_send_each_other_messages_do_not_deadlock() {
    let deadlocks = in_own_database(|url| async move { wander(&url).await }).await;
    assert_eq!(deadlocks, 0);
}

async fn wander(url: &str) {
    let mut providers = Vec::new();
    for _ in 0..2 {
        let builder = PostgresProvider::builder(url).schema("between").pool_size(TASKS);
        providers.push(Arc::new(builder.connect().await.expect("provider")));
    }
    for name in instances(INSTANCES) {
        providers[0]
            .enqueue_for_orchestrator(start(&name), None)
            .await
            .expect("enqueue");
    }
    for wanderer in 0..WANDERERS {
        let message = raised(&format!("i{}", wanderer % INSTANCES), &format!("{wanderer} 0"));
        providers[0]
            .enqueue_for_orchestrator(message, None)
            .await
            .expect("enqueue");
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (provider, seen) = (Arc::clone(&providers[task % 2]), Arc::clone(&seen));
            tokio::spawn(async move { while take_turn(&provider, &seen).await {} })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let seen = std::mem::take(&mut *seen.lock().expect("seen"));
    let once = (0..WANDERERS).flat_map(|wanderer| (0..=STEPS).map(move |step| (format!("{wanderer} {step}"), 1)));
    assert_eq!(seen.messages, once.collect(), "each message once");
    let children = WANDERERS * STEPS / 10;
    assert_eq!((seen.children, seen.returned), (children, children));
    for (instance, events) in &seen.events {
        let stored = providers[0].read_with_execution(instance, 1).await.expect("read");
        assert_eq!(stored.len(), *events, "{instance}");
    }
    for provider in providers {
        provider.close();
    }
}

/// Takes a turn and sends its messages one step further. False when there was nothing to do for a while.
async fn take_turn(provider: &PostgresProvider, seen: &Mutex<Seen>) -> bool {
    let fetched = provider
        .fetch_orchestration_item(LOCK, POLL, None)
        .await
        .expect("fetch");
    let Some((item, token, attempt)) = fetched else {
        return false;
    };
    assert_eq!((attempt, &item.history_error), (1, &None));
    let ids: Vec<u64> = item.history.iter().map(|event| event.event_id()).collect();
    let next = ids.len() as u64 + 1;
    assert_eq!(ids, (1..next).collect::<Vec<_>>(), "the history of {}", item.instance);

    let mut turn = Ack {
        metadata: named(),
        ..Ack::default()
    };
    let mut children = 0;
    if ids.is_empty() {
        turn.events.push(started(&item.instance));
    } else {
        let name = "turn".to_string();
        let data = format!("{next}");
        turn.events
            .push(event(&item.instance, next, EventKind::ExternalEvent { name, data }));
    }
    let own = item
        .instance
        .strip_prefix('i')
        .map_or(0, |number| number.parse().expect("a number"));
    for message in &item.messages {
        if let Some(parent) = parent_of(message) {
            turn.metadata.parent_instance_id = Some(parent.clone());
            turn.messages.push(WorkItem::SubOrchCompleted {
                parent_instance: parent,
                parent_execution_id: 1,
                parent_id: 2,
                result: item.instance.clone(),
            });
        }
        let WorkItem::ExternalRaised { data, .. } = message else {
            continue;
        };
        let (wanderer, step) = data.split_once(' ').expect("two numbers");
        let (wanderer, step): (usize, usize) = (wanderer.parse().expect("number"), step.parse().expect("number"));
        if step < STEPS {
            // Up, down and far away, so that the turns of one call send to each other in every order.
            let target = (own + 1 + (wanderer * 7 + step * 5) % (INSTANCES - 1)) % INSTANCES;
            turn.messages
                .push(raised(&format!("i{target}"), &format!("{wanderer} {}", step + 1)));
        }
        if step % 10 == 9 {
            let child = format!("child {wanderer} {step}");
            turn.messages.push(child_start(&child, Some(&item.instance)));
            children += 1;
        }
    }
    ack(provider, &token, turn).await.expect("ack");
    let mut seen = seen.lock().expect("seen");
    for message in item.messages {
        match message {
            WorkItem::ExternalRaised { data, .. } => *seen.messages.entry(data).or_default() += 1,
            WorkItem::SubOrchCompleted { .. } => seen.returned += 1,
            _ => {}
        }
    }
    *seen.events.entry(item.instance).or_default() += 1;
    seen.children += children;
    true
}

fn parent_of(message: &WorkItem) -> Option<String> {
    match message {
        WorkItem::StartOrchestration { parent_instance, .. } => parent_instance.clone(),
        _ => None,
    }
}
