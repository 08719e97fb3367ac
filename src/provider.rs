//! The provider, and its [`Provider`] implementation: a delegating line a method.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, OrchestrationItem, Provider, ProviderAdmin, ProviderError,
    ScheduledActivityIdentifier, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, SystemStats};

use crate::config::Builder;
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::telemetry::operation;
use crate::{token, work_item};

/// A duroxide storage provider on PostgreSQL.
///
/// Cheap to clone: clones share one connection pool. Create it with [`connect`](Self::connect) or
/// [`builder`](Self::builder), and hand it to the runtime and to clients in an [`Arc`].
///
/// ```no_run
/// use std::sync::Arc;
/// use duroxide::Client;
/// use duroxide::runtime::Runtime;
/// use duroxide::runtime::registry::{ActivityRegistry, OrchestrationRegistry};
/// use duroxide_postgres::PostgresProvider;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = Arc::new(PostgresProvider::connect("postgres://localhost/app").await?);
/// let runtime = Runtime::start_with_store(
///     provider.clone(),
///     ActivityRegistry::builder().build(),
///     OrchestrationRegistry::builder().build(),
/// )
/// .await;
/// let client = Client::new(provider.clone());
/// # drop(client);
/// runtime.shutdown(None).await;
/// provider.close();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresProvider {
    pub(crate) inner: Arc<Inner>,
}

impl PostgresProvider {
    /// Connects with the defaults: schema `duroxide`, deployed or upgraded if need be, and long polling.
    ///
    /// `url` is what libpq understands: `postgres://user@host/database?…` or `host=… user=…`. What it leaves open
    /// comes from the environment: `PGHOST`, `PGPASSWORD`, `PGSSLMODE`…
    ///
    /// # Errors
    ///
    /// When the connection string makes no sense or names files that cannot be used, the server cannot be reached or is older than PostgreSQL 14, the
    /// schema cannot be deployed, or it was deployed by a release that no longer serves this one.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Settings for a provider; see [`Builder`].
    pub fn builder(url: &str) -> Builder {
        Builder::from_url(url)
    }

    /// The schema this provider works in.
    pub fn schema(&self) -> &str {
        self.inner.schema.as_str()
    }

    /// Checks that the server answers and the schema is there: one round trip.
    ///
    /// # Errors
    ///
    /// When it does not, or is not.
    pub async fn health_check(&self) -> Result<(), Error> {
        match self.inner.caller.call("get_deployment", &[]).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::new(
                if error.sql_state().is_none() {
                    ErrorKind::Connect
                } else {
                    ErrorKind::Database
                },
                error.to_string(),
            )),
        }
    }

    /// Closes the provider and its connections. Calls under way finish; later ones fail, and waiting fetches return empty.
    /// What was leased for a fetch that had yet to come is given back first, in the background.
    ///
    /// Shut the runtime down first. Dropping the last clone does the same. What other processes are still to be told
    /// by then is sent in the background, if the server can be reached; otherwise they find it by themselves, within a minute if they are idle.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl fmt::Debug for PostgresProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresProvider")
            .field("schema", &self.schema())
            .field("long_poll", &self.inner.long_poll)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Provider for PostgresProvider {
    fn name(&self) -> &str {
        env!("CARGO_PKG_NAME")
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>, ProviderError> {
        operation("fetch_orchestration_item", None)
            .run(self.inner.fetch_orchestration_item(lock_timeout, poll_timeout, filter))
            .await
    }

    async fn ack_orchestration_item(
        &self,
        lock_token: &str,
        execution_id: u64,
        history_delta: Vec<Event>,
        worker_items: Vec<WorkItem>,
        orchestrator_items: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled_activities: Vec<ScheduledActivityIdentifier>,
    ) -> Result<(), ProviderError> {
        operation("ack_orchestration_item", token::instance(lock_token))
            .writes(history_delta.len() + worker_items.len() + orchestrator_items.len())
            .run(self.inner.ack_orchestration_item(
                lock_token,
                execution_id,
                history_delta,
                worker_items,
                &orchestrator_items,
                &metadata,
                &cancelled_activities,
            ))
            .await
    }

    async fn abandon_orchestration_item(
        &self,
        lock_token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        operation("abandon_orchestration_item", token::instance(lock_token))
            .run(
                self.inner
                    .abandon_orchestration_item(lock_token, delay, ignore_attempt, None),
            )
            .await
    }

    async fn renew_orchestration_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        operation("renew_orchestration_item_lock", token::instance(token))
            .run(self.inner.renew_orchestration_item_lock(token, extend_for))
            .await
    }

    async fn enqueue_for_orchestrator(&self, item: WorkItem, delay: Option<Duration>) -> Result<(), ProviderError> {
        operation("enqueue_for_orchestrator", work_item::instance(&item))
            .run(self.inner.enqueue_for_orchestrator(&item, delay))
            .await
    }

    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        operation("read", Some(instance)).run(self.inner.read(instance)).await
    }

    async fn read_with_execution(&self, instance: &str, execution_id: u64) -> Result<Vec<Event>, ProviderError> {
        operation("read_with_execution", Some(instance))
            .run(self.inner.read_with_execution(instance, execution_id))
            .await
    }

    async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        new_events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        operation("append_with_execution", Some(instance))
            .writes(new_events.len())
            .run(self.inner.append_with_execution(instance, execution_id, &new_events))
            .await
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        let operation = operation("enqueue_for_worker", work_item::instance(&item));
        operation.run(self.inner.enqueue_for_worker(item)).await
    }

    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<(WorkItem, String, u32)>, ProviderError> {
        operation("fetch_work_item", None)
            .run(
                self.inner
                    .fetch_work_item(lock_timeout, poll_timeout, session, tag_filter),
            )
            .await
    }

    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        operation("ack_work_item", token::instance(token))
            .run(self.inner.ack_work_item(token, completion.as_ref()))
            .await
    }

    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        operation("renew_work_item_lock", token::instance(token))
            .run(self.inner.renew_work_item_lock(token, extend_for))
            .await
    }

    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        operation("abandon_work_item", token::instance(token))
            .run(self.inner.abandon_work_item(token, delay, ignore_attempt, None))
            .await
    }

    async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        operation("renew_session_lock", None)
            .run(self.inner.renew_session_lock(owner_ids, extend_for, idle_timeout))
            .await
    }

    async fn cleanup_orphaned_sessions(&self, _idle_timeout: Duration) -> Result<usize, ProviderError> {
        operation("cleanup_orphaned_sessions", None)
            .run(self.inner.cleanup_orphaned_sessions())
            .await
    }

    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        operation("get_custom_status", Some(instance))
            .run(self.inner.get_custom_status(instance, last_seen_version))
            .await
    }

    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        operation("get_kv_value", Some(instance))
            .run(self.inner.get_kv_value(instance, key))
            .await
    }

    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        operation("get_kv_all_values", Some(instance))
            .run(self.inner.get_kv_all_values(instance))
            .await
    }

    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        operation("get_instance_stats", Some(instance))
            .run(self.inner.get_instance_stats(instance))
            .await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        Some(self)
    }
}
