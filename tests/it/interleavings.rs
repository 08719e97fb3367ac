//! Races, forced: a second connection holds a lock, the call under test is seen waiting for it, then the lock goes.

mod activities;
mod deletion;
mod turns;
mod wake_ups;

use std::future::Future;
use std::sync::Arc;

use duroxide::providers::ProviderError;
use duroxide_postgres::PostgresProvider;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::support::{TestSchema, eventually};

const MAILBOX: &str = "select from mailboxes where instance_id = $1 for update";

const WORKER_ROWS: &str = "select from worker_queue where instance_id = $1 for update";

/// A schema, a provider, and a connection that can hold locks.
struct Stage {
    schema: TestSchema,
    provider: Arc<PostgresProvider>,
    holder: Client,
    observer: Client,
}

impl Stage {
    async fn new() -> Self {
        let schema = TestSchema::new();
        Self {
            provider: schema.provider().await,
            holder: schema.client().await,
            observer: schema.client().await,
            schema,
        }
    }

    async fn hold(&self, query: &str, instance: &str) {
        self.holder.batch_execute("begin").await.expect("begin");
        self.holder.query(query, &[&instance]).await.expect("hold");
    }

    async fn let_go(&self) {
        self.holder.batch_execute("commit").await.expect("let go");
    }

    /// Starts a call and returns once the server shows `waiters` backends of this schema waiting for a lock.
    async fn waiting<T: Send + 'static>(
        &self,
        waiters: i64,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let call = tokio::spawn(call);
        let pattern = format!("%{}%", self.schema.name);
        loop {
            let count: i64 = self
                .observer
                .query_one(
                    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like $1",
                    &[&pattern],
                )
                .await
                .expect("activity")
                .get(0);
            if count >= waiters {
                return call;
            }
            assert!(!call.is_finished(), "the call did not wait");
            tokio::task::yield_now().await;
        }
    }

    fn provider(&self) -> Arc<PostgresProvider> {
        Arc::clone(&self.provider)
    }

    /// Makes a lease expire, as if its time had passed, in the holder's transaction.
    async fn expire_turn(&self, instance: &str) {
        self.holder
            .execute(
                "update mailboxes set available_at = clock_timestamp() where instance_id = $1",
                &[&instance],
            )
            .await
            .expect("expire");
    }

    async fn expire_activity(&self, instance: &str) {
        self.holder
            .execute(
                "update worker_queue set available_at = clock_timestamp() where instance_id = $1",
                &[&instance],
            )
            .await
            .expect("expire");
    }

    /// Waits until a query says so.
    async fn until(&self, query: &str) {
        eventually(query, || async {
            let row = self.observer.query_one(query, &[]).await.expect("a condition");
            row.get::<_, bool>(0).then_some(())
        })
        .await;
    }

    async fn count(&self, query: &str) -> i64 {
        self.observer.query_one(query, &[]).await.expect("count").get(0)
    }
}

fn assert_lost(result: Result<(), ProviderError>) {
    let error = result.expect_err("the lease is lost");
    assert!(!error.is_retryable(), "{error}");
    assert!(error.message.contains("DX001"), "{error}");
}
