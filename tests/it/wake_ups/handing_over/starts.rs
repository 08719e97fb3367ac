//! A start that somebody waits for: its mailbox is born leased.

use std::sync::Arc;

use duroxide::providers::{OrchestrationItem, Provider};
use tokio::task::JoinHandle;

use crate::batching::{World, begin};
use crate::fixtures::{LOCK, NOW, scheduled, start, started, turn};
use crate::wake_ups::PATIENT;

/// A dispatcher that waits: it has looked in vain.
async fn waits_for_a_turn(world: &World) -> JoinHandle<OrchestrationItem> {
    let provider = Arc::clone(&world.provider);
    let nothing = provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(nothing.expect("fetch").is_none());
    let mut fetch = Box::pin(async move {
        let fetched = provider.fetch_orchestration_item(LOCK, PATIENT, None).await;
        fetched.expect("fetch").expect("a turn").0
    });
    assert!(begin(fetch.as_mut()).await.is_pending());
    tokio::spawn(fetch)
}

/// What the mailbox of an instance says, without what differs each time.
async fn mailbox(world: &World, instance: &str) -> String {
    let mailbox = "select concat_ws(' ', m.lease is null, m.available_at - clock_timestamp() > interval '1 s', \
                          m.claimed_ids = array(select q.id from orchestrator_queue as q where q.instance_id = m.instance_id), \
                          m.claimed_until = (select max(q.visible_at) from orchestrator_queue as q \
                                              where q.instance_id = m.instance_id), \
                          m.pinned_version, m.cached_by is null, m.cached_execution_id, m.cached_event_id) \
                     from mailboxes as m where m.instance_id = $1";
    let row = world.admin.query_one(mailbox, &[&instance]).await;
    row.expect("a mailbox").get(0)
}

/// Handed over or fetched, a start is the same.
#[tokio::test]
async fn a_start_is_the_same_whoever_brings_it() {
    let world = World::new().await;
    let provider = &world.provider;
    let enqueue = async |instance| {
        let sent = provider.enqueue_for_orchestrator(start(instance), None).await;
        sent.expect("enqueue");
    };
    enqueue("fetched").await;
    let (fetched, _, _) = turn(&**provider, LOCK).await;
    let waiting = waits_for_a_turn(&world).await;
    enqueue("handed").await;
    let handed = waiting.await.expect("no panic");
    assert_eq!(mailbox(&world, "handed").await, mailbox(&world, "fetched").await);
    let known = |item: &OrchestrationItem| {
        let messages = format!("{:?}", item.messages).replace(&item.instance, "i");
        (
            (item.orchestration_name.clone(), item.version.clone()),
            (item.execution_id, item.history.len(), item.kv_snapshot.len()),
            messages,
        )
    };
    assert_eq!(known(&handed), known(&fetched));

    // Again, for those that exist.
    for instance in ["handed", "fetched"] {
        enqueue(instance).await;
        let messages = "select count(*) from orchestrator_queue where instance_id = $1";
        assert_eq!(world.number(messages, &[&instance]).await, 2);
    }
}

#[tokio::test]
async fn a_start_of_something_that_has_a_past_brings_it_along() {
    let world = World::new().await;
    let provider = &world.provider;
    let past = vec![started("i"), scheduled("i", 2)];
    let appended = provider.append_with_execution("i", 1, past.clone()).await;
    appended.expect("append");
    let waiting = waits_for_a_turn(&world).await;
    let sent = provider.enqueue_for_orchestrator(start("i"), None).await;
    sent.expect("enqueue");
    assert_eq!(waiting.await.expect("no panic").history, past);
}
