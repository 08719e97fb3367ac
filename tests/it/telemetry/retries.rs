//! Calls made again inside the provider are counted by what made it worth it.

use duroxide::providers::{Provider, ProviderAdmin};

use super::metrics::PATIENT;
use super::recorder::Recorded;
use crate::batching::{CALLERS, MESSAGES, TURN_ACKS, World, ack_first, begin, instances, together};
use crate::fixtures::{Ack, LOCK, ack, create, named, raised, start, started, turn};
use crate::proxy::Mode;

const TRIES: u32 = 6;

fn retries(recorded: &Recorded, function: &str, reason: &str) -> f64 {
    recorded.sum("retries_total", &[("function", function), ("reason", reason)])
}

/// One of those that share a call makes it fail: each of them goes alone.
#[test]
fn who_failed_in_company_goes_alone() {
    Recorded::run(
        async |recorded| {
            let world = World::with(|builder| builder.long_poll(false)).await;
            world
                .admin
                .batch_execute("alter table orchestrator_queue add check (work_item not like '%unwelcome%')")
                .await
                .expect("check");
            let sent = (0..CALLERS).map(|position| {
                let (provider, data) = (world.provider.clone(), if position == 7 { "unwelcome" } else { "x" });
                async move { provider.enqueue_for_orchestrator(raised("i", data), None).await }
            });
            let answers = together(&world, MESSAGES, sent.collect::<Vec<_>>()).await;
            assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
            assert_eq!(
                retries(&recorded, "enqueue_for_orchestrator", "company"),
                CALLERS as f64 - 1.0
            );
            world
                .execute("delete from orchestrator_queue where instance_id = 'i'", &[])
                .await;

            // Those that a lease is about, too.
            let turns = world.turns(&instances(CALLERS)).await;
            world
                .execute(
                    "insert into history (instance_id, execution_id, event_id, event_data) values ($1, 1, 1, 'first')",
                    &[&turns[7].instance],
                )
                .await;
            let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
            let answers = together(&world, TURN_ACKS, acks).await;
            assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
            assert_eq!(
                retries(&recorded, "ack_orchestration_item", "company"),
                CALLERS as f64 - 1.0
            );
            assert_eq!(recorded.sum("retries_total", &[]), 2.0 * (CALLERS as f64 - 1.0));
        },
        |_| {},
    );
}

#[test]
fn statements_of_functions_that_were_deployed_anew_are_prepared_again() {
    Recorded::run(
        async |recorded| {
            let world = World::with(|builder| builder.long_poll(false).pool_size(1)).await;
            world.provider.list_children("i").await.expect("prepared");
            world
                .admin
                .batch_execute(
                    "drop function list_children(text); \
                     create function list_children(p_instance_id text) returns table (children text[], added integer) \
                     language sql as $$ select array['child'], 1 $$",
                )
                .await
                .expect("another result type");
            for _ in 0..2 {
                let children = world.provider.list_children("i").await.expect("prepared again");
                assert_eq!(children, ["child"]);
                assert_eq!(retries(&recorded, "list_children", "stale_statement"), 1.0);
            }
            assert_eq!(recorded.sum("retries_total", &[]), 1.0);
        },
        |_| {},
    );
}

/// Reading the history of one instance fails: the others need not wait for that.
#[test]
fn what_cannot_be_read_is_read_with_care() {
    Recorded::run(
        async |recorded| {
            let world = World::with(|builder| builder.long_poll(false).history_cache(0)).await;
            let p = &*world.provider;
            create(p, "bad").await;
            world
                .admin
                .batch_execute(
                    "alter table history rename to readable; \
                     create view history as select r.instance_id, r.execution_id, r.event_id, r.ack_id, \
                            case r.instance_id when 'bad' then (1 / (r.event_id - r.event_id))::text else r.event_data end \
                            as event_data \
                       from readable as r",
                )
                .await
                .expect("damage");
            p.enqueue_for_orchestrator(raised("bad", "x"), None)
                .await
                .expect("enqueue");
            p.enqueue_for_orchestrator(start("good"), None).await.expect("enqueue");
            let (item, _, _) = turn(p, LOCK).await;
            assert_eq!(item.instance, "bad");
            let error = item.history_error.expect("reported");
            assert!(error.contains("division by zero"), "{error}");
            assert_eq!(retries(&recorded, "fetch_orchestration_item", "care"), 1.0);
            let (item, _, _) = turn(p, LOCK).await;
            assert_eq!(item.instance, "good");
            assert_eq!(recorded.sum("retries_total", &[]), 1.0);
        },
        |_| {},
    );
}

/// The connection ends under an ack that sends a message, and the look behind it. A machine that stalls at the wrong moment has
/// no look there, but not each time.
#[test]
fn a_look_behind_a_call_that_lost_its_connection_is_made_again() {
    Recorded::run(
        async |recorded| {
            let world = World::new().await;
            let p = &*world.provider;
            for attempt in 0..TRIES {
                let [sender, found] = ["sender", "found"].map(|name| format!("{name}{attempt}"));
                let sent = p.enqueue_for_orchestrator(start(&sender), None).await;
                sent.expect("enqueue");
                let (_, token, _) = turn(p, LOCK).await;
                world.settle().await;
                let mut fetch = Box::pin(p.fetch_orchestration_item(LOCK, PATIENT, None));
                assert!(begin(fetch.as_mut()).await.is_pending());
                let mut cut = world.proxy.lose_request_of(TURN_ACKS, Mode::Pass);
                let sends = Ack {
                    events: vec![started(&sender)],
                    messages: vec![start(&found)],
                    metadata: named(),
                    ..Ack::default()
                };
                let (fetched, acked) = tokio::join!(fetch, ack(p, &token, sends));
                acked.expect("ack");
                assert!(cut.has_happened());
                let (item, _, _) = fetched.expect("fetch").expect("a turn");
                assert_eq!(item.instance, found);
                if retries(&recorded, "fetch_orchestration_item", "behind") > 0.0 {
                    return;
                }
            }
            panic!("there never was a look behind it");
        },
        |_| {},
    );
}
