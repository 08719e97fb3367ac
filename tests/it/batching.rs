//! Calls that share a round trip: each gets its own answer, its own error and its own terms, and nobody's fate is
//! decided by a neighbour.

mod alone_or_together;
mod bad_neighbours;
mod cuts;
mod dropped;
mod messages_between_turns;
mod shared_calls;
mod shared_fetches;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use duroxide::providers::{Provider, ProviderError, TagFilter, WorkItem};
use duroxide_postgres::{Builder, PostgresProvider};
use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::fixtures::{self, Ack, LOCK, activity, named, raised, start, started};
use crate::proxy::Proxy;
use crate::support::TestSchema;

pub const FETCH_TURNS: &str = ".fetch_orchestration_item(";
pub const FETCH_ACTIVITIES: &str = ".fetch_work_item(";
// The function for one and the one for many.
pub const TURN_ACKS: &str = ".ack_orchestration_item";
const ACTIVITY_ACKS: &str = ".ack_work_item";
pub const MESSAGES: &str = ".enqueue_for_orchestrator";
const ACTIVITIES: &str = ".enqueue_for_worker";
/// One call that goes alone and fifteen that share the next one.
pub const CALLERS: usize = 16;
/// Where the turns of these tests send a message, so that a second commit would show.
const SINK: &str = "sink";

/// A provider behind a proxy, and a connection that goes around it.
pub struct World {
    pub provider: Arc<PostgresProvider>,
    pub admin: Client,
    pub proxy: Proxy,
    pub schema: TestSchema,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub async fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let schema = TestSchema::new();
        let proxy = Proxy::start(&schema.url);
        let mut config = proxy.config();
        config.application_name(&schema.name);
        let builder = Builder::from_config(config).schema(&schema.name).pool_size(8);
        let provider = Arc::new(settings(builder).connect().await.expect("provider"));
        Self {
            provider,
            admin: schema.client().await,
            proxy,
            schema,
        }
    }

    /// Another process on the same schema, and what it asks of the server.
    pub async fn another_process(&self) -> (Arc<PostgresProvider>, Proxy) {
        let proxy = Proxy::start(&self.schema.url);
        let builder = Builder::from_config(proxy.config()).schema(&self.schema.name);
        (Arc::new(builder.connect().await.expect("provider")), proxy)
    }

    /// The one number a query returns.
    pub async fn number(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> i64 {
        self.admin.query_one(query, parameters).await.expect(query).get(0)
    }

    pub async fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) {
        let rows = self.admin.execute(statement, parameters).await.expect(statement);
        assert!(rows > 0, "nothing to do for: {statement}");
    }

    /// Returns when a fetch that waits is left in peace: the listener, when it comes up, makes everybody look once.
    pub async fn settle(&self) {
        let looks = || self.proxy.calls_of(FETCH_TURNS) + self.proxy.calls_of(FETCH_ACTIVITIES);
        loop {
            let before = looks();
            let wait = Duration::from_millis(300);
            let (turn, work) = tokio::join!(
                self.provider.fetch_orchestration_item(LOCK, wait, None),
                self.provider.fetch_work_item(LOCK, wait, None, &TagFilter::DefaultOnly)
            );
            assert!(turn.expect("fetch").is_none() && work.expect("fetch").is_none());
            if looks() == before {
                return;
            }
        }
    }

    /// Claims the first turns of new instances.
    pub async fn turns(&self, instances: &[String]) -> Vec<Turn> {
        for instance in instances {
            let sent = self.provider.enqueue_for_orchestrator(start(instance), None).await;
            sent.expect("enqueue");
        }
        let mut turns = Vec::new();
        for _ in instances {
            let (item, token, attempt) = fixtures::turn(&*self.provider, LOCK).await;
            assert_eq!(attempt, 1);
            turns.push(Turn {
                instance: item.instance,
                token,
            });
        }
        turns
    }

    /// Claims activities of different instances.
    async fn activities(&self, instances: &[String]) -> Vec<Turn> {
        for instance in instances {
            let sent = self.provider.enqueue_for_worker(activity(instance, 1)).await;
            sent.expect("enqueue");
        }
        let mut activities = Vec::new();
        for _ in instances {
            let (item, token, _) = fixtures::work(&*self.provider, LOCK).await;
            let WorkItem::ActivityExecute { instance, .. } = item else {
                panic!("not an activity: {item:?}");
            };
            activities.push(Turn { instance, token });
        }
        activities
    }
}

/// Something that is leased: a turn or an activity.
#[derive(Clone)]
pub struct Turn {
    pub instance: String,
    token: String,
}

pub fn instances(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("i{number}")).collect()
}

/// Acks the first turn of an instance: an event, and a message to the sink.
pub async fn ack_first(provider: Arc<PostgresProvider>, turn: Turn) -> Result<(), ProviderError> {
    let first = Ack {
        events: vec![started(&turn.instance)],
        messages: vec![raised(SINK, &turn.instance)],
        metadata: named(),
        ..Ack::default()
    };
    fixtures::ack(&*provider, &turn.token, first).await
}

/// Acks an activity with its completion.
async fn ack_activity(provider: Arc<PostgresProvider>, activity: Turn) -> Result<(), ProviderError> {
    let completion = fixtures::completed(&activity.instance, 1);
    provider.ack_work_item(&activity.token, Some(completion)).await
}

/// Lets a future run until it has to wait.
pub async fn begin<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Makes the first call alone, holds back its answer until all others have begun, and returns the answers: the others
/// had to find a place in the next call. `meanwhile` runs when all have begun.
async fn together_after<T>(
    world: &World,
    function: &str,
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
    meanwhile: impl AsyncFnOnce(),
) -> Vec<T>
where
    T: Send + 'static,
{
    let mut calls = calls.into_iter();
    let mut held = world.proxy.hold_answer_of(function);
    let first = tokio::spawn(calls.next().expect("a call"));
    held.wait().await;
    let mut others = Box::pin(join_all(calls));
    assert!(begin(others.as_mut()).await.is_pending(), "the line is free");
    meanwhile().await;
    held.release();
    let mut answers = others.await;
    answers.insert(0, first.await.expect("no panic"));
    answers
}

pub async fn together<T: Send + 'static>(
    world: &World,
    function: &str,
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    together_after(world, function, calls, async || {}).await
}

/// What each instance sent to the sink, by instance: every message there must be the only one of its sender.
async fn senders(world: &World) -> Vec<String> {
    let rows = world
        .admin
        .query(
            "select (work_item::jsonb #>> '{ExternalRaised,data}') from orchestrator_queue where instance_id = $1 order by 1",
            &[&SINK],
        )
        .await
        .expect("messages");
    rows.iter().map(|row| row.get(0)).collect()
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

fn assert_permanent(result: &Result<(), ProviderError>, state: &str) {
    let error = result.as_ref().expect_err("it cannot succeed");
    assert!(!error.is_retryable() && error.message.contains(state), "{error}");
}
