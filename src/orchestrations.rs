//! Orchestration turns: `sql/orchestrations`.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, ProviderError, ScheduledActivityIdentifier, WorkItem,
};
use duroxide::{Event, EventKind};
use tokio_postgres::Row;
use tracing::warn;
use uuid::Uuid;

use crate::call::LeaseCall;
use crate::encode;
use crate::error::CallError;
use crate::history::Events;
use crate::kv::KvChanges;
use crate::poll::{Granted, Look};
use crate::provider::Inner;
use crate::token::TurnToken;
use crate::turn::{Fetched, Turn, decode_fetched};
use crate::wake::Queue;
use crate::work_item::{Activities, Messages};

/// The version range of a filter; none if it allows nothing. Only the first range counts: the framework
/// has defined no more yet, and its validations insist.
fn version_range(filter: Option<&DispatcherCapabilityFilter>) -> Option<(i64, i64)> {
    match filter {
        None => Some((0, i64::MAX)),
        Some(filter) => filter
            .supported_duroxide_versions
            .first()
            .map(|range| (encode::version(&range.min), encode::version(&range.max))),
    }
}

impl Inner {
    pub(crate) async fn fetch_orchestration_item(
        self: &Arc<Self>,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<Turn>, ProviderError> {
        let range = version_range(filter);
        self.poll(Queue::Orchestrator, poll_timeout, |inner| async move {
            match range {
                Some(range) => inner.look_for_turn(lock_timeout, range).await,
                None => Ok(Look::Nothing(None)),
            }
        })
        .await
    }

    async fn look_for_turn(
        self: &Arc<Self>,
        lock_timeout: Duration,
        (min_version, max_version): (i64, i64),
    ) -> Result<Look<Turn>, ProviderError> {
        const OPERATION: &str = "fetch_orchestration_item";
        let rows = self
            .caller
            .call(
                OPERATION,
                &[&encode::milliseconds(lock_timeout), &min_version, &max_version, &1_i32],
            )
            .await
            .map_err(|error| error.to_provider_error(OPERATION))?;
        for row in rows {
            match decode_fetched(&row).map_err(|error| CallError::from(error).to_provider_error(OPERATION))? {
                Fetched::Turn { lease, turn } => {
                    self.leases.extended(lease, lock_timeout);
                    let token = turn.1.clone();
                    return Ok(Look::Granted(Granted::new(self, Queue::Orchestrator, token, *turn)));
                }
                Fetched::Dropped { instance_id, count } => warn!(
                    instance = instance_id,
                    count, "dropped queue messages for an instance that was never started"
                ),
                Fetched::Nothing { next } => return Ok(Look::Nothing(next)),
            }
        }
        Ok(Look::Nothing(None))
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn ack_orchestration_item(
        &self,
        token: &str,
        execution_id: u64,
        history_delta: &[Event],
        worker_items: &[WorkItem],
        orchestrator_items: &[WorkItem],
        metadata: &ExecutionMetadata,
        cancelled_activities: &[ScheduledActivityIdentifier],
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "ack_orchestration_item";
        let token = turn_token(OPERATION, token)?;
        let events = Events::encode(OPERATION, history_delta)?;
        let kv = KvChanges::encode(OPERATION, history_delta)?;
        let mut activities = Activities::default();
        for item in worker_items {
            activities.push(OPERATION, item)?;
        }
        let mut messages = Messages::default();
        for item in orchestrator_items {
            messages.push(OPERATION, item)?;
        }
        let mut cancelled = (Vec::new(), Vec::new(), Vec::new());
        for activity in cancelled_activities {
            cancelled
                .0
                .push(encode::key(OPERATION, "instance id", &activity.instance)?);
            cancelled
                .1
                .push(encode::id(OPERATION, "execution id", activity.execution_id)?);
            cancelled
                .2
                .push(encode::id(OPERATION, "activity id", activity.activity_id)?);
        }
        let text = |field, value: &Option<String>| match value {
            Some(value) => encode::name(OPERATION, field, value).map(|value| Some(value.to_string())),
            None => Ok(None),
        };
        let name = text("orchestration name", &metadata.orchestration_name)?;
        let version = text("orchestration version", &metadata.orchestration_version)?;
        let status = text("status", &metadata.status)?;
        let parent = match &metadata.parent_instance_id {
            Some(parent) => Some(encode::key(OPERATION, "parent instance id", parent)?),
            None => None,
        };
        let custom_status = history_delta.iter().rev().find_map(|event| match &event.kind {
            EventKind::CustomStatusUpdated { status } => Some(status.as_deref().map(encode::text)),
            _ => None,
        });
        let bytes = [&events.data, &activities.items, &messages.items]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum();
        let answer = self
            .caller
            .call_within_lease(
                OPERATION,
                &[
                    &token.instance_id,
                    &token.lease,
                    &Uuid::new_v4(),
                    &encode::id(OPERATION, "execution id", execution_id)?,
                    &events.ids,
                    &events.data,
                    &status,
                    &metadata.output.as_deref().map(encode::text),
                    &name,
                    &version,
                    &parent,
                    &metadata.pinned_duroxide_version.as_ref().map(encode::version),
                    &custom_status.is_some(),
                    &custom_status.flatten(),
                    &kv.clears,
                    &kv.keys,
                    &kv.values,
                    &kv.updated_at_ms,
                    &activities.instance_ids,
                    &activities.execution_ids,
                    &activities.activity_ids,
                    &activities.tags,
                    &activities.sessions,
                    &activities.items,
                    &cancelled.0,
                    &cancelled.1,
                    &cancelled.2,
                    &messages.instance_ids,
                    &messages.kinds,
                    &messages.visible_at_ms,
                    &messages.items,
                ],
                LeaseCall {
                    bytes,
                    ..self.lease_call(token.lease, None)
                },
            )
            .await;
        let rows = self.lease_ended(OPERATION, token.lease, answer, history_delta.is_empty())?;
        // An ack that turns out to have committed before says nothing: better one look too many.
        let due_ms = if rows.is_empty() { Some(0) } else { first_column(&rows) };
        if due_ms.is_some() {
            self.waker.enqueued(Queue::Orchestrator);
        }
        if !worker_items.is_empty() {
            self.waker.enqueued(Queue::Worker);
        }
        Ok(())
    }

    /// `pause`: how long the instance rests unless another message comes for it.
    pub(crate) async fn abandon_orchestration_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
        pause: Option<Duration>,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "abandon_orchestration_item";
        let token = turn_token(OPERATION, token)?;
        let answer = self
            .caller
            .call_within_lease(
                OPERATION,
                &[
                    &token.instance_id,
                    &token.lease,
                    &delay.map(encode::milliseconds),
                    &ignore_attempt,
                    &pause.map(encode::milliseconds),
                ],
                self.lease_call(token.lease, None),
            )
            .await;
        self.lease_ended(OPERATION, token.lease, answer, true)?;
        self.waker.enqueued(Queue::Orchestrator);
        Ok(())
    }

    pub(crate) async fn renew_orchestration_item_lock(
        &self,
        token: &str,
        extend_for: Duration,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "renew_orchestration_item_lock";
        let token = turn_token(OPERATION, token)?;
        let answer = self
            .caller
            .call_within_lease(
                OPERATION,
                &[&token.instance_id, &token.lease, &encode::milliseconds(extend_for)],
                self.lease_call(token.lease, Some(extend_for)),
            )
            .await;
        answer.result.map_err(|error| error.to_provider_error(OPERATION))?;
        self.leases.extended(token.lease, extend_for);
        Ok(())
    }

    pub(crate) async fn enqueue_for_orchestrator(
        &self,
        item: &WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "enqueue_for_orchestrator";
        let mut messages = Messages::default();
        messages.push(OPERATION, item)?;
        if delay.is_some() {
            // The caller's delay decides, also for a timer.
            messages.visible_at_ms = vec![None];
        }
        self.caller
            .call(
                OPERATION,
                &[
                    &messages.instance_ids,
                    &messages.kinds,
                    &messages.items,
                    &messages.visible_at_ms,
                    &vec![delay.map(encode::milliseconds)],
                ],
            )
            .await
            .map_err(|error| enqueue_error(OPERATION, &error))?;
        self.waker.enqueued(Queue::Orchestrator);
        Ok(())
    }
}

/// An enqueue is not repeated inside the provider: with its outcome unknown, that could deliver it twice.
pub(crate) fn enqueue_error(operation: &str, error: &CallError) -> ProviderError {
    let mut provider_error = error.to_provider_error(operation);
    if error.is_ambiguous() {
        provider_error
            .message
            .push_str("; the item may or may not have been enqueued");
    }
    provider_error
}

fn turn_token(operation: &str, token: &str) -> Result<TurnToken, ProviderError> {
    TurnToken::parse(token)
        .ok_or_else(|| ProviderError::permanent(operation, "Invalid lock token: not a token of an orchestration turn"))
}

fn first_column(rows: &[Row]) -> Option<i64> {
    rows.first().and_then(|row| row.try_get(0).ok().flatten())
}
