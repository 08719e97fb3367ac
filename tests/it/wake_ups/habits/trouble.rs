//! What is handed over to somebody who has yet to ask is nobody's loss when something goes wrong.

use duroxide::providers::ProviderError;

use super::super::waits_for_a_lock;
use super::*;
use crate::proxy::Mode;

const ENQUEUE: &str = ".enqueue_for_";

async fn enqueue(queue: Queue, provider: &PostgresProvider, instance: &str) -> Result<(), ProviderError> {
    match queue {
        Queue::Turns => provider.enqueue_for_orchestrator(fixtures::start(instance), None).await,
        Queue::Activities => provider.enqueue_for_worker(fixtures::activity(instance, 1)).await,
    }
}

/// It may be leased, and nobody knows the lease: it is given back.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_enqueued_by_a_call_without_an_answer_can_be_had() {
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        eventually("leased by a call whose answer is lost", || async {
            let instance = Uuid::new_v4().to_string();
            queue.forms_a_habit(&world, &format!("before-{instance}")).await;
            let handed_back = world.proxy.calls_of(HANDED_BACK);
            let mut lost = world.proxy.lose_answer_of(ENQUEUE, Mode::Pass);
            let error = enqueue(queue, &world.provider, &instance)
                .await
                .expect_err("nobody knows");
            assert!(lost.has_happened());
            assert!(
                error.is_retryable() && error.message.contains("may or may not"),
                "{error}"
            );
            let fetch = queue.fetch(&world.provider, LOCK, PATIENT);
            let fetched = tokio::time::timeout(SOON, fetch).await;
            let fetched = fetched.expect("long before its lease ends").expect("fetch");
            assert_eq!(fetched, Some((instance, 1)));
            // Otherwise the habit was over, and there was nothing to give back.
            (world.proxy.calls_of(HANDED_BACK) > handed_back).then_some(())
        })
        .await;
    }
}

/// Its caller goes away while the call is on the wire, and never asks.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_caller_enqueued_can_be_had() {
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        let mut held = world.proxy.hold_answer_of(ENQUEUE);
        let mut enqueue = Box::pin(queue.enqueue(&world.provider, "i"));
        tokio::select! {
            () = &mut enqueue => panic!("not held"),
            () = held.wait() => {}
        }
        drop(enqueue);
        held.release();
        let fetched = tokio::time::timeout(SOON, queue.fetch(&world.provider, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some(("i".to_string(), 1)));
    }
}

/// A runtime that shuts down drops the fetches that wait: nobody will ask.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_leased_for_a_runtime_that_shuts_down() {
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        let mut waiting = Box::pin(queue.fetch(&world.provider, LOCK, PATIENT));
        assert!(begin(waiting.as_mut()).await.is_pending());
        drop(waiting);
        queue.enqueue(&world.provider, "i").await;
        assert!(!queue.is_leased(&world, "i").await);
    }
}

/// The enqueue takes so long that somebody else should have what it brings.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_is_given_back() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        let held = world.proxy.hold_answer_of(ENQUEUE);
        let provider = Arc::clone(&world.provider);
        let enqueue = tokio::spawn(async move { queue.enqueue(&provider, "i").await });
        tokio::time::sleep(Duration::from_millis(1200)).await;
        held.release();
        enqueue.await.expect("no panic");
        let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some(("i".to_string(), 1)));
    }
}

/// Nobody will ask any more: others have it, and need not wait for the end of a lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_closed_keeps_nothing() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        let instance = queue.hands_over(&world).await;
        world.provider.close();
        let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some((instance, 1)));
        eventually("it is closed", || async {
            let fetched = queue.fetch(&world.provider, LOCK, NOW).await;
            (fetched.ok() == Some(None)).then_some(())
        })
        .await;
    }
}

/// One runtime ends while another goes on with the same provider: what that one keeps is seen to.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_ends_takes_nobody_along() {
    for queue in BOTH {
        let world = Arc::new(World::new().await);
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        let there = Arc::clone(&world);
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let instance = queue.hands_over(&there).await;
                eventually("it is handed back", || async {
                    (!queue.is_leased(&there, &instance).await).then_some(())
                })
                .await;
                instance
            })
        });
        let ended = tokio::task::spawn_blocking(|| ended.join()).await.expect("no panic");
        for instance in [Some(ended.expect("no panic")), None] {
            let instance = match instance {
                Some(instance) => instance,
                None => queue.hands_over(&world).await,
            };
            let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
            assert_eq!(fetched.expect("in time").expect("fetch"), Some((instance, 1)));
        }
    }
}

/// It is leased for somebody who will not ask when its answer comes: there is nobody to give it back to but others.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_the_wire_when_a_provider_closes_can_be_had() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        let mut held = world.proxy.hold_answer_of(ENQUEUE);
        let provider = Arc::clone(&world.provider);
        let enqueue = tokio::spawn(async move { enqueue(queue, &provider, "i").await });
        held.wait().await;
        world.provider.close();
        held.release();
        let _ = enqueue.await.expect("no panic");
        let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some(("i".to_string(), 1)));
    }
}

/// That is how a runtime ends: it drops its fetches, and whoever started it closes the provider.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_fetch_was_about_to_get_when_its_provider_closes_can_be_had() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        queue.enqueue(&other, "i").await;
        let mut held = world.proxy.hold_answer_of(queue.fetch_call());
        let provider = Arc::clone(&world.provider);
        let fetch = tokio::spawn(async move { queue.fetch(&provider, LOCK, PATIENT).await });
        held.wait().await;
        assert!(queue.is_leased(&world, "i").await);
        fetch.abort();
        assert!(fetch.await.expect_err("it was dropped").is_cancelled());
        world.provider.close();
        held.release();
        let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some(("i".to_string(), 1)));
    }
}

/// The connection ends while the call commits: it is given back when it has.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_after_its_answer_was_lost_can_be_had() {
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        let late = format!(
            "create function late() returns trigger language plpgsql as \
                 $$ begin perform pg_advisory_xact_lock(hashtext(tg_table_schema)); return null; end $$; \
             create constraint trigger late after insert on {} deferrable initially deferred \
                 for each row when (new.instance_id = 'late') execute function late()",
            queue.table()
        );
        world.admin.batch_execute(&late).await.expect("a trigger");
        let blocker = world.schema.client().await;
        let lock = "select pg_advisory_lock(hashtext(current_schema()))";
        blocker.execute(lock, &[]).await.expect("a lock");
        queue.forms_a_habit(&world, "before").await;
        let provider = Arc::clone(&world.provider);
        let handed_back = world.proxy.calls_of(HANDED_BACK);
        let enqueue = tokio::spawn(async move { enqueue(queue, &provider, "late").await });
        waits_for_a_lock(&world).await;
        world.proxy.cut();
        let error = enqueue.await.expect("no panic").expect_err("nobody knows");
        assert!(error.message.contains("may or may not"), "{error}");
        // Whoever gives it back has already tried.
        eventually("it was tried", || async {
            (world.proxy.calls_of(HANDED_BACK) > handed_back).then_some(())
        })
        .await;
        drop(blocker);
        let fetched = tokio::time::timeout(SOON, queue.fetch(&world.provider, LOCK, PATIENT)).await;
        assert_eq!(
            fetched.expect("long before its lease ends").expect("fetch"),
            Some(("late".to_string(), 1))
        );
    }
}
