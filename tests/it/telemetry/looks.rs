//! What is counted and measured of fetches that wait, and of what is shared.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};
use futures_util::future::join_all;

use super::metrics::{PATIENT, eventually};
use super::recorder::Recorded;
use crate::batching::{World, begin};
use crate::fixtures::{Ack, LOCK, NOW, ack, activity, named, start, started, turn};

/// A machine that stalls at the wrong moment finds work another way, but not each time.
const TRIES: u32 = 6;

/// How many looks found something because of one of these.
fn found(recorded: &Recorded, reasons: &[&str]) -> f64 {
    let found = |reason: &&str| {
        let labels = [("outcome", "found"), ("reason", *reason)];
        recorded.sum("looks_total", &labels)
    };
    reasons.iter().map(found).sum()
}

/// Has something fetched until it is found because of one of these.
async fn until_found(recorded: &Recorded, reasons: &[&str], fetch: impl AsyncFn(u32)) {
    for attempt in 0..TRIES {
        let before = found(recorded, reasons);
        fetch(attempt).await;
        if found(recorded, reasons) > before {
            return;
        }
    }
    panic!("never because of {reasons:?}");
}

#[test]
fn wake_ups_are_counted_by_what_caused_them() {
    Recorded::run(
        async |recorded| {
            let world = World::new().await;
            let p = &*world.provider;
            p.enqueue_for_orchestrator(start("asked"), None).await.expect("enqueue");
            turn(p, LOCK).await;
            assert_eq!(found(&recorded, &["asked"]), 1.0);
            let asked = [("queue", "orchestrator"), ("reason", "asked"), ("outcome", "nothing")];
            let before = recorded.sum("looks_total", &asked);
            let fetched = p.fetch_orchestration_item(LOCK, NOW, None).await;
            assert!(fetched.expect("fetch").is_none());
            assert_eq!(recorded.sum("looks_total", &asked), before + 1.0);

            // Somebody waits while this process sends a message: it is handed over, or the look goes out behind the call, or after it.
            until_found(&recorded, &["behind", "enqueued"], async |attempt| {
                let sender = format!("sender{attempt}");
                let sent = p.enqueue_for_orchestrator(start(&sender), None).await;
                sent.expect("enqueue");
                let (_, token, _) = turn(p, LOCK).await;
                world.settle().await;
                let mut fetch = Box::pin(p.fetch_orchestration_item(LOCK, PATIENT, None));
                assert!(begin(fetch.as_mut()).await.is_pending());
                let sends = Ack {
                    events: vec![started(&sender)],
                    messages: vec![start(&format!("sent{attempt}"))],
                    metadata: named(),
                    ..Ack::default()
                };
                let (fetched, sent) = tokio::join!(fetch, ack(p, &token, sends));
                sent.expect("ack");
                fetched.expect("fetch").expect("a turn");
            })
            .await;
            until_found(&recorded, &["handed"], async |attempt| {
                world.settle().await;
                let mut fetch = Box::pin(p.fetch_orchestration_item(LOCK, PATIENT, None));
                assert!(begin(fetch.as_mut()).await.is_pending());
                let enqueue = p.enqueue_for_orchestrator(start(&format!("here{attempt}")), None);
                let (fetched, sent) = tokio::join!(fetch, enqueue);
                sent.expect("enqueue");
                fetched.expect("fetch").expect("a turn");
            })
            .await;

            // A worker acks, and comes back.
            until_found(&recorded, &["next"], async |attempt| {
                for id in [1, 2] {
                    let activity = activity(&format!("next{attempt}"), id);
                    p.enqueue_for_worker(activity).await.expect("enqueue");
                }
                for _ in [1, 2] {
                    let fetched = p.fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly).await;
                    let (_, token, _) = fetched.expect("fetch").expect("an activity");
                    p.ack_work_item(&token, None).await.expect("ack");
                }
            })
            .await;

            // The time that the database gave: of a delayed message, and of the end of a lease.
            let later = |attempt| Duration::from_millis(300) * 2_u32.pow(attempt);
            until_found(&recorded, &["due"], async |attempt| {
                let delayed = p.enqueue_for_orchestrator(start(&format!("later{attempt}")), Some(later(attempt)));
                delayed.await.expect("enqueue");
                let fetched = p.fetch_orchestration_item(LOCK, PATIENT, None).await.expect("fetch");
                assert_eq!(fetched.expect("a turn").0.instance, format!("later{attempt}"));
            })
            .await;
            until_found(&recorded, &["due"], async |attempt| {
                let instance = format!("leased{attempt}");
                p.enqueue_for_orchestrator(start(&instance), None)
                    .await
                    .expect("enqueue");
                turn(p, later(attempt)).await;
                let fetched = p.fetch_orchestration_item(LOCK, PATIENT, None).await.expect("fetch");
                assert_eq!(fetched.expect("a turn").0.instance, instance);
            })
            .await;

            // Another process enqueues.
            let other = world.schema.provider().await;
            let connected = [("event", "connected")];
            eventually("both listen", || {
                recorded.sum("listener_events_total", &connected) >= 2.0
            })
            .await;
            until_found(&recorded, &["notified"], async |attempt| {
                world.settle().await;
                let mut fetch = Box::pin(p.fetch_orchestration_item(LOCK, PATIENT, None));
                assert!(begin(fetch.as_mut()).await.is_pending());
                let enqueue = other.enqueue_for_orchestrator(start(&format!("there{attempt}")), None);
                let (fetched, sent) = tokio::join!(fetch, enqueue);
                sent.expect("enqueue");
                fetched.expect("fetch").expect("a turn");
            })
            .await;
        },
        |_| {},
    );
}

#[test]
fn polls_of_those_who_cannot_listen_are_counted() {
    Recorded::run(
        async |recorded| {
            let world = World::new().await;
            let builder = duroxide_postgres::Builder::from_config(world.proxy.config());
            let builder = builder.schema(&world.schema.name).transaction_pooler(true);
            let deaf = builder.connect().await.expect("provider");
            until_found(&recorded, &["fallback"], async |attempt| {
                let before = recorded.sum("looks_total", &[("outcome", "nothing")]);
                let fetch = deaf.fetch_orchestration_item(LOCK, PATIENT, None);
                let enqueue = async {
                    eventually("it has looked in vain", || {
                        recorded.sum("looks_total", &[("outcome", "nothing")]) > before
                    })
                    .await;
                    let instance = format!("i{attempt}");
                    let sent = world.provider.enqueue_for_orchestrator(start(&instance), None).await;
                    sent.expect("enqueue");
                };
                let (fetched, ()) = tokio::join!(fetch, enqueue);
                fetched.expect("fetch").expect("a turn");
            })
            .await;
        },
        |_| {},
    );
}

#[test]
fn shared_looks_and_batches_are_measured() {
    Recorded::run(
        async |recorded| {
            let world = World::new().await;
            let p = &world.provider;
            let shared = || {
                let batches = recorded.values("batch_items", &[("operation", "enqueue_for_orchestrator")]);
                let looks = recorded.values("look_callers", &[("queue", "orchestrator")]);
                batches.contains(&3.0) && looks.contains(&3.0)
            };
            for attempt in 0..TRIES {
                world.settle().await;
                let fetches = (0..4).map(|_| p.fetch_orchestration_item(LOCK, PATIENT, None));
                let mut fetches = Box::pin(join_all(fetches));
                assert!(begin(fetches.as_mut()).await.is_pending());
                let mut held = world.proxy.hold_answer_of(".enqueue_for_orchestrator(");
                let first = {
                    let (p, instance) = (Arc::clone(p), format!("first{attempt}"));
                    tokio::spawn(async move { p.enqueue_for_orchestrator(start(&instance), None).await })
                };
                held.wait().await;
                let others = (0..3).map(|number| {
                    let instance = format!("other{attempt}.{number}");
                    async move { p.enqueue_for_orchestrator(start(&instance), None).await }
                });
                let mut others = Box::pin(join_all(others));
                assert!(begin(others.as_mut()).await.is_pending());
                held.release();
                let (fetched, sent) = tokio::join!(fetches, others);
                for turn in fetched {
                    turn.expect("fetch").expect("a turn");
                }
                for sent in sent {
                    sent.expect("enqueue");
                }
                first.await.expect("task").expect("enqueue");
                if shared() {
                    return;
                }
            }
            panic!("nothing was shared");
        },
        |_| {},
    );
}
