//! Fetches that wait get work soon after somebody else made it, whatever became of the connection that tells them.

mod coming_back;
mod crash;
mod following;
mod habits;
mod handing_over;
mod polling;
mod resting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use duroxide::providers::{Provider, ProviderError, TagFilter, WorkItem};
use duroxide_postgres::{Builder, PostgresProvider};
use tokio::task::JoinHandle;
use tokio_postgres::{Config, NoTls};

use crate::batching::{World, begin};
use crate::fixtures::{LOCK, activity, start};
use crate::proxy::Mode;
use crate::support::{TestSchema, eventually};

const PATIENT: Duration = Duration::from_secs(60);
/// Less than the shortest fallback poll of a process that listens: whoever is so quick was woken.
const WOKEN: Duration = Duration::from_secs(2);
/// Twice the fallback poll of a process that cannot listen, and what a slow machine needs.
const POLLED: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(10);

/// The two queues somebody can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Turns,
    Activities,
}

const BOTH: [Queue; 2] = [Queue::Turns, Queue::Activities];

impl Queue {
    async fn enqueue(self, provider: &PostgresProvider, instance: &str) {
        let sent = match self {
            Self::Turns => provider.enqueue_for_orchestrator(start(instance), None).await,
            Self::Activities => provider.enqueue_for_worker(activity(instance, 1)).await,
        };
        sent.expect("enqueue");
    }

    fn table(self) -> &'static str {
        match self {
            Self::Turns => "mailboxes",
            Self::Activities => "worker_queue",
        }
    }

    async fn is_leased(self, world: &World, instance: &str) -> bool {
        let table = self.table();
        let leased = format!("select count(*) from {table} where instance_id = $1 and lease is not null");
        world.number(&leased, &[&instance]).await > 0
    }

    /// The instance of what was fetched, and the attempt.
    async fn fetch(
        self,
        provider: &PostgresProvider,
        lock: Duration,
        wait: Duration,
    ) -> Result<Option<(String, u32)>, ProviderError> {
        Ok(match self {
            Self::Turns => {
                let fetched = provider.fetch_orchestration_item(lock, wait, None).await?;
                fetched.map(|(item, _, attempt)| (item.instance, attempt))
            }
            Self::Activities => {
                let fetched = provider
                    .fetch_work_item(lock, wait, None, &TagFilter::DefaultOnly)
                    .await?;
                fetched.map(|(item, _, attempt)| match item {
                    WorkItem::ActivityExecute { instance, .. } => (instance, attempt),
                    other => panic!("{other:?}"),
                })
            }
        })
    }
}

/// Somebody who waits for work.
struct Waiting {
    fetch: JoinHandle<Result<Option<(String, u32)>, ProviderError>>,
}

impl Waiting {
    /// Returns when a look has brought nothing, and the fetch has gone to sleep.
    async fn begin(provider: &Arc<PostgresProvider>, queue: Queue) -> Self {
        let nothing = queue.fetch(provider, LOCK, Duration::ZERO).await.expect("fetch");
        assert_eq!(nothing, None);
        let provider = Arc::clone(provider);
        let mut fetch = Box::pin(async move { queue.fetch(&provider, LOCK, PATIENT).await });
        assert!(begin(fetch.as_mut()).await.is_pending());
        Self {
            fetch: tokio::spawn(fetch),
        }
    }

    /// Asks again whenever the trouble that it meets may pass.
    async fn through_trouble(provider: &Arc<PostgresProvider>, queue: Queue) -> Self {
        let Self { mut fetch } = Self::begin(provider, queue).await;
        let provider = Arc::clone(provider);
        let fetch = tokio::spawn(async move {
            loop {
                match fetch.await.expect("no panic") {
                    Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(20)).await,
                    fetched => return fetched,
                }
                let provider = Arc::clone(&provider);
                fetch = tokio::spawn(async move { queue.fetch(&provider, LOCK, PATIENT).await });
            }
        });
        Self { fetch }
    }

    /// What it gets, which must not take longer than this.
    async fn gets(self, within: Duration) -> (String, u32) {
        let fetched = tokio::time::timeout(within, self.fetch).await;
        fetched
            .expect("in time")
            .expect("no panic")
            .expect("fetch")
            .expect("work")
    }
}

/// The backend that listens for the provider behind the proxy.
async fn listener(world: &World) -> Option<i32> {
    let backend = "select pid from pg_stat_activity where application_name = $1 and query like 'select pg\\_%'";
    let row = world.admin.query_opt(backend, &[&world.schema.name]).await;
    row.expect("pg_stat_activity").map(|row| row.get(0))
}

/// Returns when a call of the provider is held up.
async fn waits_for_a_lock(world: &World) {
    eventually("a call waits for a lock", || async {
        let waits = "select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'";
        (world.number(waits, &[&world.schema.name]).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_another_process_enqueues_wakes_who_waits() {
    for queue in BOTH {
        let world = World::new().await;
        let other = world.schema.provider().await;
        world.settle().await;
        for instance in ["first", "second", "third"] {
            let waiting = Waiting::begin(&world.provider, queue).await;
            queue.enqueue(&other, instance).await;
            assert_eq!(waiting.gets(WOKEN).await, (instance.to_string(), 1), "{queue:?}");
        }
    }
}

#[tokio::test]
async fn what_nobody_here_has_time_for_wakes_who_waits_elsewhere() {
    let world = World::new().await;
    let busy = world.schema.provider().await;
    world.settle().await;
    busy.enqueue_for_orchestrator(start("first"), None)
        .await
        .expect("enqueue");
    let first = Queue::Turns.fetch(&busy, LOCK, PATIENT).await.expect("fetch");
    assert_eq!(first, Some(("first".to_string(), 1)));
    for instance in ["second", "third", "fourth"] {
        let waiting = Waiting::begin(&world.provider, Queue::Turns).await;
        Queue::Turns.enqueue(&busy, instance).await;
        assert_eq!(waiting.gets(WOKEN).await, (instance.to_string(), 1));
    }
}

/// The connection for LISTEN is killed, and cannot be had again for a while.
#[tokio::test]
async fn work_arrives_without_a_listener_and_the_listener_comes_back() {
    for queue in BOTH {
        let world = World::new().await;
        let other = world.schema.provider().await;
        world.settle().await;
        let first = eventually("somebody listens", || listener(&world)).await;
        let waiting = Waiting::begin(&world.provider, queue).await;
        world.proxy.forbid("listen ");
        world
            .admin
            .execute("select pg_terminate_backend($1)", &[&first])
            .await
            .expect("terminate");
        eventually("nobody listens", || async {
            listener(&world).await.is_none().then_some(())
        })
        .await;
        queue.enqueue(&other, "polled for").await;
        assert_eq!(waiting.gets(POLLED).await, ("polled for".to_string(), 1), "{queue:?}");

        world.proxy.allow_all();
        let second = eventually("somebody listens again", || listener(&world)).await;
        assert_ne!(second, first);
        world.settle().await;
        let waiting = Waiting::begin(&world.provider, queue).await;
        queue.enqueue(&other, "told").await;
        assert_eq!(waiting.gets(WOKEN).await, ("told".to_string(), 1), "{queue:?}");
    }
}

/// A provider on a pool that it was given, as behind a pooler: there is no LISTEN.
async fn without_listener(schema: &TestSchema) -> Arc<PostgresProvider> {
    let mut config: Config = schema.url.parse().expect("DATABASE_URL");
    config.application_name(&schema.name);
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(4)
        .build()
        .expect("pool");
    let builder = Builder::from_pool(pool).schema(&schema.name);
    Arc::new(builder.connect().await.expect("provider"))
}

#[tokio::test]
async fn work_arrives_at_a_process_that_cannot_listen() {
    let schema = TestSchema::new();
    let (deaf, other) = (without_listener(&schema).await, schema.provider().await);
    for queue in BOTH {
        for instance in ["first", "second"] {
            let waiting = Waiting::begin(&deaf, queue).await;
            queue.enqueue(&other, instance).await;
            assert_eq!(waiting.gets(POLLED).await, (instance.to_string(), 1), "{queue:?}");
        }
    }
    let listening = "select count(*) from pg_stat_activity where application_name = $1 and query ilike '%listen%'";
    let client = schema.client().await;
    let listening: i64 = client
        .query_one(listening, &[&schema.name])
        .await
        .expect("activity")
        .get(0);
    assert_eq!(listening, 0);
}

/// Both schemas are in one database, and channels are database-wide.
#[tokio::test]
async fn work_in_one_schema_wakes_nobody_in_another() {
    let (world, neighbour) = (World::new().await, World::new().await);
    let other = world.schema.provider().await;
    neighbour.settle().await;
    world.settle().await;
    let not_for_them = BOTH.map(|queue| {
        let provider = neighbour.provider.clone();
        tokio::spawn(async move { queue.fetch(&provider, LOCK, PATIENT).await })
    });
    let before = neighbour.proxy.calls_of("");
    for round in 0..20 {
        for queue in BOTH {
            let waiting = Waiting::begin(&world.provider, queue).await;
            queue.enqueue(&other, &format!("round {round}")).await;
            waiting.gets(WOKEN).await;
        }
    }
    // Each of the two may have polled by itself, if this took long.
    let statements = neighbour.proxy.calls_of("") - before;
    assert!(statements <= 2 * 2, "{statements} statements");
    for fetch in not_for_them {
        assert!(!fetch.is_finished());
        fetch.abort();
    }
}

/// A process that died tells nobody that its lease has ended.
#[tokio::test]
async fn the_end_of_a_dead_lease_wakes_who_waits() {
    const LEASE: Duration = Duration::from_secs(1);
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        let dies = world.schema.provider().await;
        queue.enqueue(&dies, "orphan").await;
        let claimed = Instant::now();
        let fetched = queue.fetch(&dies, LEASE, Duration::ZERO).await.expect("fetch");
        assert_eq!(fetched, Some(("orphan".to_string(), 1)));
        dies.close();
        drop(dies);
        let waiting = Waiting::begin(&world.provider, queue).await;
        assert_eq!(waiting.gets(WOKEN).await, ("orphan".to_string(), 2), "{queue:?}");
        assert!(claimed.elapsed() >= LEASE);
    }
}

/// Who waits through a restart may be told of it, asks again, and gets what came afterwards.
async fn after_a_restart(queue: Queue, restart: impl AsyncFn(&World)) {
    let world = World::new().await;
    world.settle().await;
    let waiting = Waiting::through_trouble(&world.provider, queue).await;
    let before = listener(&world).await;
    restart(&world).await;
    eventually("somebody listens again", || async {
        listener(&world).await.filter(|process| Some(*process) != before)
    })
    .await;
    let other = world.schema.provider().await;
    queue.enqueue(&other, "after").await;
    assert_eq!(waiting.gets(WOKEN).await, ("after".to_string(), 1), "{queue:?}");
}

#[tokio::test]
async fn who_waits_survives_the_death_of_all_backends() {
    for queue in BOTH {
        after_a_restart(queue, async |world| {
            let all = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
            world.execute(all, &[&world.schema.name]).await;
        })
        .await;
    }
}

#[tokio::test]
async fn who_waits_survives_a_server_that_is_down_for_a_while() {
    for queue in BOTH {
        after_a_restart(queue, async |world| {
            world.proxy.set(Mode::Refuse).await;
            eventually("the outage is noticed", || async {
                world.provider.health_check().await.err()
            })
            .await;
            world.proxy.set(Mode::Pass).await;
        })
        .await;
    }
}
