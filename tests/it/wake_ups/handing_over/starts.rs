//! A start that somebody waits for: its mailbox is born leased, with the start in it.

mod unacked;

use std::sync::Arc;

use duroxide::providers::{OrchestrationItem, Provider, ProviderAdmin, WorkItem};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use crate::batching::{FETCH_TURNS, MESSAGES, World, begin};
use crate::fixtures::{LOCK, NOW, scheduled, start, started, turn};
use crate::support::eventually;
use crate::wake_ups::{PATIENT, waits_for_a_lock};

/// Whether an instance is leased and has its start in its mailbox, and nowhere else.
const LEASED_START: &str = "select count(*) from mailboxes as m where m.instance_id = $1 and m.lease is not null and m.start_item is not null \
     and not exists (select from orchestrator_queue as q where q.instance_id = m.instance_id and q.kind = 's')";

/// The starts and other messages of an instance, wherever they are.
const MESSAGES_OF: &str = "select (select count(*) from orchestrator_queue as q where q.instance_id = $1) \
     + (select count(m.start_item) from mailboxes as m where m.instance_id = $1)";

/// A dispatcher that waits: it has looked in vain.
async fn waits_for_a_turn(world: &World) -> JoinHandle<Turn> {
    let provider = Arc::clone(&world.provider);
    let nothing = provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(nothing.expect("fetch").is_none());
    let mut fetch = Box::pin(async move {
        let fetched = provider.fetch_orchestration_item(LOCK, PATIENT, None).await;
        fetched.expect("fetch").expect("a turn")
    });
    assert!(begin(fetch.as_mut()).await.is_pending());
    tokio::spawn(fetch)
}

type Turn = (OrchestrationItem, String, u32);

/// The first turn of a new instance that was handed over: its start is in its mailbox. Where the call takes its time on a busy machine, who
/// waits looks for it instead; then it is tried again.
async fn handed(world: &World, start: &WorkItem, instance: &str) -> Turn {
    for _ in 0..20 {
        world.settle().await;
        let waiting = waits_for_a_turn(world).await;
        let sent = world.provider.enqueue_for_orchestrator(start.clone(), None).await;
        sent.expect("enqueue");
        let turn = waiting.await.expect("no panic");
        if world.number(LEASED_START, &[&instance]).await == 1 {
            return turn;
        }
        let again = [instance.to_string()];
        let deleted = world.provider.delete_instances_atomic(&again, true).await;
        deleted.expect("delete");
    }
    panic!("{instance} is never handed over");
}

/// What the mailbox of an instance says, without what differs each time.
async fn mailbox(world: &World, instance: &str) -> String {
    let mailbox = "select concat_ws(' ', m.lease is null, m.available_at - clock_timestamp() > interval '1 s', \
                          case when m.start_item is null \
                               then m.claimed_ids = array(select q.id from orchestrator_queue as q where q.instance_id = m.instance_id) \
                               else cardinality(m.claimed_ids) = 1 end, \
                          case when m.start_item is null \
                               then m.claimed_until = (select max(q.visible_at) from orchestrator_queue as q \
                                                        where q.instance_id = m.instance_id) \
                               else m.claimed_until < clock_timestamp() end, \
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
    let (handed, _, _) = handed(&world, &start("handed"), "handed").await;
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
        assert_eq!(world.number(MESSAGES_OF, &[&instance]).await, 2);
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
    assert_eq!(waiting.await.expect("no panic").0.history, past);
}

/// These start in one call.
async fn starts_together(world: &World, instances: &[&str]) {
    let calls = world.proxy.calls_of(MESSAGES);
    let starts = instances.iter().map(|instance| async {
        let sent = world.provider.enqueue_for_orchestrator(start(instance), None).await;
        sent.expect("enqueue");
    });
    join_all(starts).await;
    assert!(world.proxy.calls_of(MESSAGES) - calls <= 2, "not together");
}

/// Some of many starts are waited for: those are leased, the others are there to be found.
#[tokio::test]
async fn of_many_starts_as_many_are_handed_over_as_are_waited_for() {
    eventually("two are handed over before who waits gets impatient", || async {
        let world = World::new().await;
        let provider = &world.provider;
        starts_together(&world, &["fetched"]).await;
        turn(&**provider, LOCK).await;
        world.settle().await;
        let waiting = [waits_for_a_turn(&world).await, waits_for_a_turn(&world).await];
        let looks = world.proxy.calls_of(FETCH_TURNS);
        starts_together(&world, &["c", "a", "b"]).await;
        let mut items = Vec::new();
        for waiting in waiting {
            items.push(waiting.await.expect("no panic").0);
        }
        if world.proxy.calls_of(FETCH_TURNS) > looks {
            return None;
        }
        for item in &items {
            assert_eq!(format!("{:?}", item.messages), format!("{:?}", [start(&item.instance)]));
            assert_eq!(world.number(LEASED_START, &[&item.instance]).await, 1);
            assert_eq!(
                mailbox(&world, &item.instance).await,
                mailbox(&world, "fetched").await,
                "{}",
                item.instance
            );
        }
        let mut handed: Vec<_> = items.iter().map(|item| item.instance.as_str()).collect();
        handed.sort();
        assert_eq!(handed, ["a", "b"], "in the order of their ids");
        assert_eq!(turn(&**provider, LOCK).await.0.instance, "c");
        for instance in ["a", "b", "c", "fetched"] {
            assert_eq!(world.number(MESSAGES_OF, &[&instance]).await, 1, "{instance}");
        }
        Some(())
    })
    .await;
}

/// Somebody else makes one of the mailboxes at the same time, after nobody had it: the call is made again without leases.
#[tokio::test]
async fn a_start_that_meets_another_is_there_once() {
    // Alone, and with another in the same call.
    for starts in [vec!["b"], vec!["b", "a"]] {
        let world = World::new().await;
        world.settle().await;
        let mut waiting = Vec::new();
        for _ in &starts {
            waiting.push(waits_for_a_turn(&world).await);
        }
        let mut blocker = world.schema.client().await;
        let transaction = blocker.transaction().await.expect("begin");
        let made =
            "insert into mailboxes (instance_id, available_at) values ('b', clock_timestamp() + interval '1 hour')";
        transaction.execute(made, &[]).await.expect("insert");
        let calls = world.proxy.calls_of(MESSAGES);
        let provider = Arc::clone(&world.provider);
        let enqueuing = tokio::spawn(async move {
            let enqueue = (starts.into_iter()).map(|instance| provider.enqueue_for_orchestrator(start(instance), None));
            join_all(enqueue).await
        });
        waits_for_a_lock(&world).await;
        transaction.commit().await.expect("commit");
        for sent in enqueuing.await.expect("no panic") {
            sent.expect("enqueue");
        }
        assert_eq!(
            world.proxy.calls_of(MESSAGES),
            calls + 2,
            "once with leases, and once without"
        );
        let mut got = Vec::new();
        for waiting in waiting {
            got.push(waiting.await.expect("no panic").0.instance);
        }
        got.sort();
        assert_eq!(got, ["a", "b"][2 - got.len()..]);
        let messages = "select count(*) from orchestrator_queue";
        assert_eq!(world.number(messages, &[]).await, got.len() as i64);
    }
}

/// Instances that exist, or have a past, are claimed as ever, also among new ones.
#[tokio::test]
async fn new_ones_and_others_start_together() {
    let world = World::new().await;
    let provider = &world.provider;
    let past = vec![started("b"), scheduled("b", 2)];
    let appended = provider.append_with_execution("b", 1, past.clone()).await;
    appended.expect("append");
    let waiting = [waits_for_a_turn(&world).await, waits_for_a_turn(&world).await];
    starts_together(&world, &["b", "a"]).await;
    for waiting in waiting {
        let (item, _, _) = waiting.await.expect("no panic");
        assert_eq!(item.history, if item.instance == "b" { past.clone() } else { vec![] });
    }
}
