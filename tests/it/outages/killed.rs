//! The backend of a call that ends or extends a lease is killed before its commit, killed after it, or loses its client
//! while it works: the call succeeds, and has had its effect once.

use std::future::Future;
use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{Provider, ProviderError};

use super::{ACTIVITY, INSTANCE, LEASE, Locker, OTHER, World};
use crate::fixtures::{self, Ack};
use crate::proxy::Mode;

#[derive(Debug, Clone, Copy)]
enum Kill {
    /// While it waits for its first lock.
    BeforeCommit,
    AfterCommit,
    /// The client goes away, the backend works on and commits; so does that of the retry.
    Orphaned,
}

/// Makes a call of a function that locks rows of a table, and kills its backend.
async fn call_and_kill(
    world: &World,
    kill: Kill,
    (function, table): (&str, &str),
    call: impl Future<Output = Result<(), ProviderError>>,
) {
    let called = format!(".{function}(");
    let before = world.proxy.calls_of(&called);
    let result = match kill {
        Kill::AfterCommit => {
            let mut lost = world.proxy.lose_answer_of(&called, Mode::Pass);
            let result = call.await;
            assert!(lost.has_happened());
            result
        }
        Kill::BeforeCommit | Kill::Orphaned => {
            let locker = Locker::lock(world, table, INSTANCE).await;
            let killing = async {
                let first = locker.waiter(world, &[]).await;
                match kill {
                    Kill::Orphaned => world.proxy.cut(),
                    _ => world.terminate(first).await,
                }
                locker.waiter(world, &[first]).await;
                locker.unlock().await;
            };
            tokio::join!(call, killing).0
        }
    };
    result.expect(function);
    assert_eq!(world.proxy.calls_of(&called) - before, 2, "the call and its retry");
}

macro_rules! killed {
    ($($name:ident,)+) => {
        $(
            mod $name {
                use super::Kill;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn before_its_commit() {
                    super::$name(Kill::BeforeCommit).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn after_its_commit() {
                    super::$name(Kill::AfterCommit).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn orphaned() {
                    super::$name(Kill::Orphaned).await;
                }
            }
        )+
    };
}

killed! {
    ack_of_a_turn,
    ack_of_a_turn_without_events,
    ack_of_an_activity,
    renewal_of_a_turn,
    renewal_of_an_activity,
    abandonment_of_a_turn,
    abandonment_of_an_activity,
}

async fn ack_of_a_turn(kill: Kill) {
    let world = World::new().await;
    let token = world.turn(INSTANCE, LEASE).await;
    let status = EventKind::CustomStatusUpdated {
        status: Some("busy".to_string()),
    };
    let ack = Ack {
        events: vec![
            fixtures::started(INSTANCE),
            fixtures::scheduled(INSTANCE, 2),
            fixtures::event(INSTANCE, 3, status),
        ],
        activities: vec![fixtures::activity(INSTANCE, 2)],
        messages: vec![fixtures::child_start(OTHER, Some(INSTANCE))],
        metadata: fixtures::named(),
        ..Ack::default()
    };
    let call = fixtures::ack(&*world.provider, &token, ack);
    call_and_kill(&world, kill, ("ack_orchestration_item", "mailboxes"), call).await;

    assert_eq!(world.rows("history", INSTANCE).await, 3);
    assert_eq!(world.rows("executions", INSTANCE).await, 1);
    assert_eq!(world.rows("worker_queue", INSTANCE).await, 1);
    assert_eq!(
        world.rows("orchestrator_queue", INSTANCE).await,
        0,
        "the start is consumed"
    );
    assert_eq!(world.rows("orchestrator_queue", OTHER).await, 1);
    assert_eq!(
        world.number("select custom_status_version from instances", &[]).await,
        1
    );
    assert_eq!(world.lease_left("mailboxes").await, None);
    let (child, _, attempt) = fixtures::turn(&*world.provider, LEASE).await;
    assert_eq!((child.instance.as_str(), attempt), (OTHER, 1));
}

/// What the runtime does with a message for an instance that has ended.
async fn ack_of_a_turn_without_events(kill: Kill) {
    let world = World::new().await;
    let token = world.late_turn(INSTANCE, LEASE).await;
    let ack = Ack {
        messages: vec![fixtures::raised(OTHER, "from a turn without events")],
        ..Ack::default()
    };
    let call = fixtures::ack(&*world.provider, &token, ack);
    call_and_kill(&world, kill, ("ack_orchestration_item", "mailboxes"), call).await;

    assert_eq!(world.rows("history", INSTANCE).await, 1);
    assert_eq!(world.rows("orchestrator_queue", INSTANCE).await, 0);
    assert_eq!(world.rows("orchestrator_queue", OTHER).await, 1);
    assert_eq!(world.lease_left("mailboxes").await, None);
}

async fn ack_of_an_activity(kill: Kill) {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    let call = world
        .provider
        .ack_work_item(&token, Some(fixtures::completed(INSTANCE, ACTIVITY)));
    call_and_kill(&world, kill, ("ack_work_item", "worker_queue"), call).await;

    assert_eq!(world.rows("worker_queue", INSTANCE).await, 0);
    assert_eq!(world.rows("orchestrator_queue", INSTANCE).await, 1);
    let (turn, _, attempt) = fixtures::turn(&*world.provider, LEASE).await;
    assert_eq!((turn.messages.len(), attempt), (1, 1));
}

async fn renewal_of_a_turn(kill: Kill) {
    let world = World::new().await;
    let token = world.turn(INSTANCE, LEASE).await;
    let call = world.provider.renew_orchestration_item_lock(&token, 4 * LEASE);
    call_and_kill(&world, kill, ("renew_orchestration_item_lock", "mailboxes"), call).await;

    assert!(world.lease_left("mailboxes").await > Some(3 * LEASE));
    let ack = Ack {
        events: vec![fixtures::started(INSTANCE)],
        metadata: fixtures::named(),
        ..Ack::default()
    };
    fixtures::ack(&*world.provider, &token, ack)
        .await
        .expect("the token still holds");
    assert_eq!(world.rows("history", INSTANCE).await, 1);
}

async fn renewal_of_an_activity(kill: Kill) {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    let call = world.provider.renew_work_item_lock(&token, 4 * LEASE);
    call_and_kill(&world, kill, ("renew_work_item_lock", "worker_queue"), call).await;

    assert!(world.lease_left("worker_queue").await > Some(3 * LEASE));
    assert_eq!(
        world
            .number("select attempt_count::bigint from worker_queue", &[])
            .await,
        1
    );
    world
        .provider
        .ack_work_item(&token, Some(fixtures::completed(INSTANCE, ACTIVITY)))
        .await
        .expect("the token still holds");
}

async fn abandonment_of_a_turn(kill: Kill) {
    let world = World::new().await;
    let token = world.turn(INSTANCE, LEASE).await;
    let call = world.provider.abandon_orchestration_item(&token, None, false);
    call_and_kill(&world, kill, ("abandon_orchestration_item", "mailboxes"), call).await;

    assert_eq!(world.lease_left("mailboxes").await, None);
    let (_, _, attempt) = fixtures::turn(&*world.provider, LEASE).await;
    assert_eq!(attempt, 2, "counted once");
}

async fn abandonment_of_an_activity(kill: Kill) {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    // So that a second effect would show in the count.
    world
        .admin
        .execute("update worker_queue set attempt_count = 5", &[])
        .await
        .expect("update");
    let call = world.provider.abandon_work_item(&token, None, true);
    call_and_kill(&world, kill, ("abandon_work_item", "worker_queue"), call).await;

    assert_eq!(world.lease_left("worker_queue").await, None);
    let (_, _, attempt) = fixtures::work(&*world.provider, LEASE).await;
    assert_eq!(attempt, 5, "taken back once");
}

/// Cut from its client, a backend may commit long after: its renewal must not outlive the activity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_commits_late_revives_nothing() {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    let mut held = world.proxy.hold_request_of(".renew_work_item_lock(");
    let renewal = {
        let (provider, token) = (world.provider.clone(), token.clone());
        tokio::spawn(async move { provider.renew_work_item_lock(&token, 4 * LEASE).await })
    };
    held.wait().await;
    world
        .provider
        .ack_work_item(&token, Some(fixtures::completed(INSTANCE, ACTIVITY)))
        .await
        .expect("ack");
    held.release();
    let error = tokio::time::timeout(Duration::from_secs(10), renewal)
        .await
        .expect("an answer at once")
        .expect("no panic")
        .expect_err("there is nothing to renew");
    assert!(!error.is_retryable(), "{error}");
    assert_eq!(world.rows("worker_queue", INSTANCE).await, 0);
    assert_eq!(world.rows("orchestrator_queue", INSTANCE).await, 1);
}
