//! A provider that is watched from outside: it tells when an orchestration has ended, counts errors that the runtime
//! swallows, and can be stopped.
//!
//! Every candidate is watched alike. The moment at which an orchestration has ended is the moment at which the ack of its
//! last turn returns: from then on it is committed and everybody can see it. Polling for it would be less exact than what
//! is measured, and the system would not be idle.
//!
//! A runtime whose measurement was cut short cannot always be shut down. Once its provider is stopped, its calls never
//! return, so that it disturbs nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, OrchestrationItem, Provider, ProviderAdmin, ProviderError,
    ScheduledActivityIdentifier, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, SystemStats};
use tokio::sync::oneshot;

use crate::load::Errors;

/// What an observer waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The next turn of the instance is committed.
    Turn,
    /// The orchestration has completed.
    End,
}

/// What can be timed, once that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Enqueue,
    Fetch,
    Ack,
    ActivityAck,
    /// An orchestration from its start to its end.
    Whole,
}

/// What is known from watching.
#[derive(Default)]
pub struct Watch {
    stopped: AtomicBool,
    recording: AtomicBool,
    samples: Mutex<HashMap<Call, Vec<u32>>>,
    completed: AtomicU64,
    pub errors: Errors,
    observers: Mutex<HashMap<String, (Moment, oneshot::Sender<Instant>)>>,
}

impl Watch {
    fn observers(&self) -> MutexGuard<'_, HashMap<String, (Moment, oneshot::Sender<Instant>)>> {
        self.observers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Orchestrations that have completed so far.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// From now on calls are timed, or no longer.
    pub fn record(&self, on: bool) {
        self.recording.store(on, Ordering::Relaxed);
    }

    /// Notes how long something took, while that is asked for.
    pub fn sample(&self, call: Call, took: Duration) {
        if self.recording.load(Ordering::Relaxed) {
            let microseconds = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.entry(call).or_default().push(microseconds);
        }
    }

    /// How long each took, in microseconds.
    pub fn samples(&self, call: Call) -> Vec<u32> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.get(&call).cloned().unwrap_or_default()
    }

    /// From now on no call returns.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// When `moment` comes for `instance`. To be asked before it can come.
    pub fn observe(&self, instance: &str, moment: Moment) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.observers().insert(instance.to_string(), (moment, sender));
        receiver
    }

    fn committed(&self, instance: Option<String>, ended: bool) {
        let now = Instant::now();
        if ended {
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
        let Some(instance) = instance else { return };
        let mut observers = self.observers();
        if observers
            .get(&instance)
            .is_some_and(|(moment, _)| *moment == Moment::Turn || ended)
            && let Some((_, observer)) = observers.remove(&instance)
        {
            // Whoever asked may have given up.
            let _ = observer.send(now);
        }
    }
}

/// A provider with a [`Watch`] on it.
pub struct Watched {
    inner: Arc<dyn Provider>,
    watch: Arc<Watch>,
}

impl Watched {
    pub fn new(inner: Arc<dyn Provider>) -> (Arc<Self>, Arc<Watch>) {
        let watch = Arc::new(Watch::default());
        let watched = Self {
            inner,
            watch: watch.clone(),
        };
        (Arc::new(watched), watch)
    }

    async fn gate(&self) {
        if self.watch.stopped.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    async fn timed<T>(
        &self,
        call: Call,
        future: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let clock = Instant::now();
        let result = future.await;
        self.watch.sample(call, clock.elapsed());
        self.note(result)
    }

    fn note<T>(&self, result: Result<T, ProviderError>) -> Result<T, ProviderError> {
        result.inspect_err(|error| self.watch.errors.add(&error.to_string()))
    }
}

#[async_trait]
impl Provider for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn version(&self) -> &str {
        self.inner.version()
    }

    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>, ProviderError> {
        self.gate().await;
        let fetch = self.inner.fetch_orchestration_item(lock_timeout, poll_timeout, filter);
        self.note(fetch.await)
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
        self.gate().await;
        let instance = history_delta.first().map(|event| event.instance_id.clone());
        let ended = metadata.status.as_deref() == Some("Completed");
        let ack = self.inner.ack_orchestration_item(
            lock_token,
            execution_id,
            history_delta,
            worker_items,
            orchestrator_items,
            metadata,
            cancelled_activities,
        );
        self.timed(Call::Ack, ack).await?;
        self.watch.committed(instance, ended);
        Ok(())
    }

    async fn abandon_orchestration_item(
        &self,
        lock_token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.gate().await;
        self.inner
            .abandon_orchestration_item(lock_token, delay, ignore_attempt)
            .await
    }

    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        self.gate().await;
        self.note(self.inner.read(instance).await)
    }

    async fn read_with_execution(&self, instance: &str, execution_id: u64) -> Result<Vec<Event>, ProviderError> {
        self.gate().await;
        self.inner.read_with_execution(instance, execution_id).await
    }

    async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        new_events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        self.gate().await;
        self.inner
            .append_with_execution(instance, execution_id, new_events)
            .await
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        self.gate().await;
        self.note(self.inner.enqueue_for_worker(item).await)
    }

    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<(WorkItem, String, u32)>, ProviderError> {
        self.gate().await;
        let fetch = self
            .inner
            .fetch_work_item(lock_timeout, poll_timeout, session, tag_filter);
        self.note(fetch.await)
    }

    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        self.gate().await;
        self.timed(Call::ActivityAck, self.inner.ack_work_item(token, completion))
            .await
    }

    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        self.gate().await;
        self.inner.renew_work_item_lock(token, extend_for).await
    }

    async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        self.gate().await;
        let renewal = self.inner.renew_session_lock(owner_ids, extend_for, idle_timeout);
        self.note(renewal.await)
    }

    async fn cleanup_orphaned_sessions(&self, idle_timeout: Duration) -> Result<usize, ProviderError> {
        self.gate().await;
        self.note(self.inner.cleanup_orphaned_sessions(idle_timeout).await)
    }

    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.gate().await;
        self.inner.abandon_work_item(token, delay, ignore_attempt).await
    }

    async fn renew_orchestration_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        self.gate().await;
        self.inner.renew_orchestration_item_lock(token, extend_for).await
    }

    async fn enqueue_for_orchestrator(&self, item: WorkItem, delay: Option<Duration>) -> Result<(), ProviderError> {
        self.gate().await;
        self.timed(Call::Enqueue, self.inner.enqueue_for_orchestrator(item, delay))
            .await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        self.inner.as_management_capability()
    }

    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        self.gate().await;
        self.inner.get_custom_status(instance, last_seen_version).await
    }

    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        self.gate().await;
        self.inner.get_kv_value(instance, key).await
    }

    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        self.gate().await;
        self.inner.get_kv_all_values(instance).await
    }

    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        self.gate().await;
        self.inner.get_instance_stats(instance).await
    }
}
