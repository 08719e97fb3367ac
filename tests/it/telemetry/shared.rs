//! What is done for several operations at once follows from each, and is nobody's child.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, TagFilter};
use futures_util::future::join_all;

use super::capture::{BATCH, CALL, Capture, LOOK, OPERATION};
use crate::batching::{World, begin};
use crate::fixtures::{LOCK, activity, start};

const PATIENT: Duration = Duration::from_secs(60);

/// One enqueue that goes alone, and three that find a place in the next call. Who waits too long for that, on a machine that
/// stalls, goes alone as well: then none of the batches has three.
async fn enqueue_together(world: &World) {
    let p = &world.provider;
    let mut held = world.proxy.hold_answer_of(".enqueue_for_orchestrator(");
    let first = {
        let p = Arc::clone(p);
        tokio::spawn(async move { p.enqueue_for_orchestrator(start("first"), None).await })
    };
    held.wait().await;
    let mut others = Box::pin(join_all(
        ["a", "b", "c"].map(|instance| p.enqueue_for_orchestrator(start(instance), None)),
    ));
    assert!(begin(others.as_mut()).await.is_pending());
    held.release();
    for sent in others.await {
        sent.expect("enqueue");
    }
    first.await.expect("task").expect("enqueue");
}

#[test]
fn a_batch_follows_from_the_operations_it_carries() {
    Capture::run(async |capture| {
        let world = World::with(|builder| builder.long_poll(false)).await;
        let together = async {
            loop {
                enqueue_together(&world).await;
                let mut batches = capture.spans(BATCH).into_iter();
                if let Some(together) = batches.find(|batch| batch.number("items") == Some(3)) {
                    return together;
                }
            }
        };
        let together = tokio::time::timeout(PATIENT, together).await.expect("in time");
        let alone = &capture.spans(BATCH)[0];
        assert_eq!(alone.number("items"), Some(1));
        assert!(alone.parent.is_some() && alone.follows.is_empty());
        assert_eq!(together.parent, None);
        let operations = capture.spans(OPERATION);
        let followed: Vec<_> = together
            .follows
            .iter()
            .map(|index| {
                operations
                    .iter()
                    .find(|span| span.index == *index)
                    .expect("an operation")
            })
            .map(|operation| operation.get("instance").expect("an instance"))
            .collect();
        assert_eq!(followed, ["a", "b", "c"]);
        let calls = capture.spans(CALL);
        let below = calls.iter().filter(|call| call.parent == Some(together.index));
        assert_eq!(below.count(), 1);
    });
}

#[test]
fn a_look_follows_from_the_fetches_it_is_for() {
    Capture::run(async |capture| {
        let world = World::new().await;
        world.settle().await;
        let p = &world.provider;
        // The first has looked in vain; the second waits with it.
        let mut fetches = Box::pin(join_all(
            [0, 1].map(|_| p.fetch_work_item(LOCK, PATIENT, None, &TagFilter::DefaultOnly)),
        ));
        assert!(begin(fetches.as_mut()).await.is_pending());
        let before = capture.spans(LOOK).len();
        let other = world.schema.provider().await;
        let enqueue = async {
            for instance in ["a", "b"] {
                other.enqueue_for_worker(activity(instance, 1)).await.expect("enqueue");
            }
        };
        let (fetched, ()) = tokio::join!(fetches, enqueue);
        for activity in fetched {
            activity.expect("fetch").expect("an activity");
        }
        let looks = &capture.spans(LOOK)[before..];
        let shared = looks.iter().find(|look| look.number("callers") == Some(2));
        let shared = shared.unwrap_or_else(|| panic!("{looks:?}"));
        assert_eq!((shared.parent, shared.follows.len()), (None, 2));
        let operations = capture.spans(OPERATION);
        for index in &shared.follows {
            let operation = operations
                .iter()
                .find(|span| span.index == *index)
                .expect("an operation");
            assert_eq!(operation.get("operation"), Some("fetch_work_item"));
        }
        // It went out because another process said so.
        assert_eq!(shared.get("reason"), Some("notified"), "{shared:?}");
    });
}
