//! A short outage costs nothing: no activity is cancelled, no instance fails, nothing is committed twice.

mod end_to_end;
mod enqueued;
mod fetched;
mod killed;
mod lasting;
mod listener;
mod superseded;

use std::sync::Arc;
use std::time::Duration;

use duroxide_postgres::{Builder, PostgresProvider};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::fixtures::{self, Ack};
use crate::proxy::Proxy;
use crate::support::{TestSchema, eventually};

/// Longer than any outage here.
const LEASE: Duration = Duration::from_secs(15);
/// For what comes at once on an idle machine.
const SOON: Duration = Duration::from_secs(10);
const INSTANCE: &str = "instance";
const OTHER: &str = "other";
/// The activity that [`World::activity`] schedules.
const ACTIVITY: u64 = 2;

/// A provider behind a proxy, and a connection that goes around it.
struct World {
    provider: Arc<PostgresProvider>,
    admin: Client,
    proxy: Proxy,
    schema: TestSchema,
}

impl World {
    async fn new() -> Self {
        let schema = TestSchema::new();
        let proxy = Proxy::start(&schema.url);
        let provider = Arc::new(through(&proxy, &schema).connect().await.expect("provider"));
        Self {
            provider,
            admin: schema.client().await,
            proxy,
            schema,
        }
    }

    /// Claims the first turn of a new instance.
    async fn turn(&self, instance: &str, lease: Duration) -> String {
        use duroxide::providers::Provider;
        self.provider
            .enqueue_for_orchestrator(fixtures::start(instance), None)
            .await
            .expect("enqueue");
        let (item, token, attempt) = fixtures::turn(&*self.provider, lease).await;
        assert_eq!((item.instance.as_str(), attempt), (instance, 1));
        token
    }

    /// Claims the only activity of a new instance.
    async fn activity(&self, instance: &str, lease: Duration) -> String {
        let token = self.turn(instance, LEASE).await;
        let first = Ack {
            events: vec![fixtures::started(instance), fixtures::scheduled(instance, ACTIVITY)],
            activities: vec![fixtures::activity(instance, ACTIVITY)],
            metadata: fixtures::named(),
            ..Ack::default()
        };
        fixtures::ack(&*self.provider, &token, first).await.expect("ack");
        let (_, token, attempt) = fixtures::work(&*self.provider, lease).await;
        assert_eq!(attempt, 1);
        token
    }

    /// Claims a turn for a late message to an instance that has completed.
    async fn late_turn(&self, instance: &str, lease: Duration) -> String {
        use duroxide::providers::Provider;
        let token = self.turn(instance, lease).await;
        let only = Ack {
            events: vec![fixtures::started(instance)],
            metadata: fixtures::ending("Completed"),
            ..Ack::default()
        };
        fixtures::ack(&*self.provider, &token, only).await.expect("ack");
        self.provider
            .enqueue_for_orchestrator(fixtures::raised(instance, "late"), None)
            .await
            .expect("enqueue");
        let (item, token, _) = fixtures::turn(&*self.provider, lease).await;
        assert_eq!(item.instance, instance);
        token
    }

    /// The one number a query returns.
    async fn number(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> i64 {
        self.admin.query_one(query, parameters).await.expect(query).get(0)
    }

    /// How many rows of a table belong to an instance.
    async fn rows(&self, table: &str, instance: &str) -> i64 {
        self.number(
            &format!("select count(*) from {table} where instance_id = $1"),
            &[&instance],
        )
        .await
    }

    /// How long the lease on the only row of a table that has one will last, by the clock that decides: the
    /// database's. None if nobody holds it.
    async fn lease_left(&self, table: &str) -> Option<Duration> {
        let row = self
            .admin
            .query_opt(
                &format!(
                    "select extract(epoch from available_at - clock_timestamp())::float8 from {table} \
                      where lease is not null and available_at > clock_timestamp()"
                ),
                &[],
            )
            .await
            .expect("lease");
        row.map(|row| Duration::from_secs_f64(row.get::<_, f64>(0).max(0.0)))
    }

    /// The backends that wait for a lock of one of these.
    async fn waiting_for(&self, processes: &[i32]) -> Vec<i32> {
        self.admin
            .query(
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and pg_blocking_pids(pid) && $1",
                &[&processes],
            )
            .await
            .expect("pg_stat_activity")
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    /// Kills every backend of the provider behind the proxy.
    async fn terminate_all(&self) {
        self.admin
            .execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1",
                &[&self.schema.name],
            )
            .await
            .expect("pg_terminate_backend");
    }

    async fn terminate(&self, process: i32) {
        self.admin
            .execute("select pg_terminate_backend($1)", &[&process])
            .await
            .expect("pg_terminate_backend");
    }
}

/// A provider that connects through a proxy, under the name of its schema.
fn through(proxy: &Proxy, schema: &TestSchema) -> Builder {
    let mut config = proxy.config();
    config.application_name(&schema.name);
    Builder::from_config(config).schema(&schema.name).pool_size(8)
}

/// Somebody who holds the lease rows of an instance.
struct Locker {
    client: Client,
    process: i32,
}

impl Locker {
    async fn lock(world: &World, table: &str, instance: &str) -> Self {
        let client = world.schema.client().await;
        client.batch_execute("begin").await.expect("begin");
        let lock = format!("select pg_backend_pid() from {table} where instance_id = $1 for update");
        let process = client.query_one(&lock, &[&instance]).await.expect("lock").get(0);
        Self { client, process }
    }

    /// A backend that waits for the lock, or for somebody known who waits for it.
    async fn waiter(&self, world: &World, known: &[i32]) -> i32 {
        let blockers = [&[self.process], known].concat();
        eventually("a backend waits for the lock", || async {
            let waiting = world.waiting_for(&blockers).await;
            waiting.into_iter().find(|process| !known.contains(process))
        })
        .await
    }

    async fn unlock(self) {
        self.client.batch_execute("rollback").await.expect("rollback");
    }
}
