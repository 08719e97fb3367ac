//! An enqueue is not repeated: of unknown outcome, that would deliver the item twice. The error says so, but only when
//! it is so.

use duroxide::Client;
use duroxide::providers::{Provider, ProviderError};
use duroxide_postgres::PostgresProvider;

use super::{INSTANCE, World};
use crate::fixtures;
use crate::proxy::Mode;

const UNKNOWN: &str = "may or may not have been enqueued";

/// The ways to enqueue.
#[derive(Clone, Copy)]
enum Way {
    Start,
    Message,
    Activity,
}

impl Way {
    async fn enqueue(self, provider: &std::sync::Arc<PostgresProvider>) -> Result<(), ProviderError> {
        match self {
            Self::Start => match Client::new(provider.clone())
                .start_orchestration(INSTANCE, "Test", "{}")
                .await
            {
                Ok(()) => Ok(()),
                Err(duroxide::ClientError::Provider(error)) => Err(error),
                Err(other) => panic!("{other}"),
            },
            Self::Message => {
                let message = fixtures::raised(INSTANCE, "{}");
                provider.enqueue_for_orchestrator(message, None).await
            }
            Self::Activity => provider.enqueue_for_worker(fixtures::activity(INSTANCE, 2)).await,
        }
    }

    fn function(self) -> &'static str {
        match self {
            Self::Start | Self::Message => ".enqueue_for_orchestrator(",
            Self::Activity => ".enqueue_for_worker",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Start | Self::Message => "orchestrator_queue",
            Self::Activity => "worker_queue",
        }
    }
}

async fn lost_answer(way: Way) {
    let world = World::new().await;
    let mut lost = world.proxy.lose_answer_of(way.function(), Mode::Pass);
    let error = way.enqueue(&world.provider).await.expect_err("the answer is lost");
    assert!(lost.has_happened());
    assert!(error.is_retryable(), "{error}");
    assert!(error.message.contains(UNKNOWN), "{error}");
    assert_eq!(world.rows(way.table(), INSTANCE).await, 1);
    assert_eq!(world.proxy.calls_of(way.function()), 1, "not repeated");

    way.enqueue(&world.provider).await.expect("the connection is replaced");
    assert_eq!(world.rows(way.table(), INSTANCE).await, 2);
}

async fn lost_request(way: Way) {
    let world = World::new().await;
    let mut lost = world.proxy.lose_request_of(way.function(), Mode::Pass);
    let error = way.enqueue(&world.provider).await.expect_err("the request is lost");
    assert!(lost.has_happened());
    assert!(error.is_retryable(), "{error}");
    // The client cannot know.
    assert!(error.message.contains(UNKNOWN), "{error}");
    assert_eq!(world.rows(way.table(), INSTANCE).await, 0);
    assert_eq!(world.proxy.calls_of(way.function()), 1, "not repeated");
}

async fn no_connection(way: Way, mode: Mode) {
    let world = World::new().await;
    world.proxy.set(mode).await;
    // Connections in the pool must be known to be gone, or the call would be sent on one of them.
    super::eventually("the pool has noticed", || async {
        let error = world.provider.health_check().await.expect_err("an outage");
        error.to_string().contains("no connection").then_some(())
    })
    .await;
    let error = way.enqueue(&world.provider).await.expect_err("no connection");
    assert!(error.is_retryable(), "{error}");
    assert!(!error.message.contains(UNKNOWN), "{error}");

    world.proxy.set(Mode::Pass).await;
    way.enqueue(&world.provider).await.expect("the outage is over");
    assert_eq!(world.rows(way.table(), INSTANCE).await, 1);
}

/// Cut while the statement is still being prepared: nothing was executed, and the call knows.
async fn lost_preparation(way: Way) {
    let world = World::new().await;
    world.proxy.forbid(way.function());
    let error = way.enqueue(&world.provider).await.expect_err("cut");
    assert!(error.is_retryable(), "{error}");
    assert!(!error.message.contains(UNKNOWN), "{error}");
    assert_eq!(world.rows(way.table(), INSTANCE).await, 0);
}

macro_rules! enqueues {
    ($($name:ident: $way:ident,)+) => {
        $(
            mod $name {
                use super::{Mode, Way};

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn whose_answer_is_lost() {
                    super::lost_answer(Way::$way).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn whose_request_is_lost() {
                    super::lost_request(Way::$way).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn cut_before_it_was_prepared() {
                    super::lost_preparation(Way::$way).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn without_a_connection() {
                    super::no_connection(Way::$way, Mode::Refuse).await;
                    super::no_connection(Way::$way, Mode::AcceptThenClose).await;
                }
            }
        )+
    };
}

enqueues! {
    start: Start,
    message: Message,
    activity: Activity,
}
