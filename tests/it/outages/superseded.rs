//! The retry of an ack succeeds only for what that very call has committed. If somebody else's ack with the same token
//! came first, it fails, and nothing of it is committed.

use duroxide::providers::{Provider, ProviderError, WorkItem};
use duroxide_postgres::PostgresProvider;

use super::{ACTIVITY, INSTANCE, LEASE, Locker, OTHER, World};
use crate::fixtures::{self, Ack};

/// Who acks in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    TheSameProcess,
    /// Tokens do not leave the process they were granted to, but who knows.
    AnotherProcess,
}

/// Acks, kills the backend before its commit, and lets another ack with the same token commit before the first one is
/// retried. Returns what became of the first.
async fn overtake(
    world: &World,
    by: By,
    (function, table): (&str, &str),
    ack: impl AsyncFn(&PostgresProvider, &str) -> Result<(), ProviderError>,
) -> Result<(), ProviderError> {
    let other = match by {
        By::TheSameProcess => (*world.provider).clone(),
        By::AnotherProcess => world.schema.builder().connect().await.expect("provider"),
    };
    let called = format!(".{function}(");
    let locker = Locker::lock(world, table, INSTANCE).await;
    let overtaking = async {
        let waiter = locker.waiter(world, &[]).await;
        let mut retry = world.proxy.hold_request_of(&called);
        world.terminate(waiter).await;
        retry.wait().await;
        locker.unlock().await;
        ack(&other, "second").await.expect("the second call");
        retry.release();
    };
    tokio::join!(ack(&world.provider, "first"), overtaking).0
}

fn assert_lease_lost(result: Result<(), ProviderError>) {
    let error = result.expect_err("the lease is gone");
    assert!(!error.is_retryable(), "{error}");
    assert!(error.message.contains("DX001"), "{error}");
}

/// The ack of a first turn that says who made it.
async fn ack_turn(provider: &PostgresProvider, token: &str, by: &str) -> Result<(), ProviderError> {
    let ack = Ack {
        events: vec![fixtures::started(INSTANCE)],
        messages: vec![fixtures::raised(OTHER, by)],
        metadata: fixtures::named(),
        ..Ack::default()
    };
    fixtures::ack(provider, token, ack).await
}

async fn ack_late_turn(provider: &PostgresProvider, token: &str, by: &str) -> Result<(), ProviderError> {
    let ack = Ack {
        messages: vec![fixtures::raised(OTHER, by)],
        ..Ack::default()
    };
    fixtures::ack(provider, token, ack).await
}

async fn ack_activity(provider: &PostgresProvider, token: &str, by: &str) -> Result<(), ProviderError> {
    let completion = WorkItem::ActivityCompleted {
        instance: INSTANCE.to_string(),
        execution_id: 1,
        id: ACTIVITY,
        result: by.to_string(),
    };
    provider.ack_work_item(token, Some(completion)).await
}

/// The messages of an instance that name the first or the second call.
async fn messages(world: &World, instance: &str) -> (i64, i64) {
    let count = async |by: &str| {
        world
            .number(
                "select count(*) from orchestrator_queue where instance_id = $1 and work_item like '%' || $2 || '%'",
                &[&instance, &by],
            )
            .await
    };
    (count("first").await, count("second").await)
}

async fn turn(by: By) {
    let world = World::new().await;
    let token = world.turn(INSTANCE, LEASE).await;
    let result = overtake(
        &world,
        by,
        ("ack_orchestration_item", "mailboxes"),
        async |provider, by| ack_turn(provider, &token, by).await,
    )
    .await;
    assert_lease_lost(result);
    assert_eq!(messages(&world, OTHER).await, (0, 1));
    assert_eq!(world.rows("history", INSTANCE).await, 1);
}

async fn turn_without_events(by: By) {
    let world = World::new().await;
    let token = world.late_turn(INSTANCE, LEASE).await;
    let result = overtake(
        &world,
        by,
        ("ack_orchestration_item", "mailboxes"),
        async |provider, by| ack_late_turn(provider, &token, by).await,
    )
    .await;
    if by == By::TheSameProcess {
        // Without events, no row tells another process's ack from the first attempt.
        assert_lease_lost(result);
    }
    assert_eq!(messages(&world, OTHER).await, (0, 1));
}

async fn activity(by: By) {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    let result = overtake(&world, by, ("ack_work_item", "worker_queue"), async |provider, by| {
        ack_activity(provider, &token, by).await
    })
    .await;
    if by == By::TheSameProcess {
        // No row is left that tells another process's ack from the first attempt.
        assert_lease_lost(result);
    }
    assert_eq!(messages(&world, INSTANCE).await, (0, 1));
}

macro_rules! superseded {
    ($($name:ident,)+) => {
        $(
            mod $name {
                use super::By;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn by_the_same_process() {
                    super::$name(By::TheSameProcess).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn by_another_process() {
                    super::$name(By::AnotherProcess).await;
                }
            }
        )+
    };
}

superseded! {
    turn,
    turn_without_events,
    activity,
}

/// Without any outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ack_with_the_same_token_fails() {
    let world = World::new().await;
    let token = world.turn(INSTANCE, LEASE).await;
    ack_turn(&world.provider, &token, "first").await.expect("ack");
    // The very same content: another call all the same.
    assert_lease_lost(ack_turn(&world.provider, &token, "first").await);
    assert_eq!(messages(&world, OTHER).await, (1, 0));

    let token = world.activity("with an activity", LEASE).await;
    world.provider.ack_work_item(&token, None).await.expect("ack");
    assert_lease_lost(world.provider.ack_work_item(&token, None).await);
}

/// The first attempt dies before its commit, and the lease ends before the second: nothing was done, and nothing else is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activity_ack_that_is_repeated_too_late_fails() {
    let world = World::new().await;
    let token = world.activity(INSTANCE, LEASE).await;
    let locker = Locker::lock(&world, "worker_queue", INSTANCE).await;
    let meanwhile = async {
        let waiter = locker.waiter(&world, &[]).await;
        let mut retry = world.proxy.hold_request_of(".ack_work_item(");
        world.terminate(waiter).await;
        retry.wait().await;
        locker.unlock().await;
        let expired = "with expired as (update worker_queue set available_at = clock_timestamp() where instance_id = $1 \
                       returning id) select count(*) from expired";
        assert_eq!(world.number(expired, &[&INSTANCE]).await, 1);
        retry.release();
    };
    let (result, ()) = tokio::join!(ack_activity(&world.provider, &token, "first"), meanwhile);
    assert_lease_lost(result);
    assert_eq!(messages(&world, INSTANCE).await, (0, 0));
}
