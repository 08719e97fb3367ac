//! Instances as management sees them: `sql/instances`.

use std::sync::Arc;

use duroxide::providers::{
    DeleteInstanceResult, InstanceFilter, InstanceInfo, InstanceTree, QueueDepths, SystemMetrics,
};
use duroxide::{Event, EventKind, SystemStats};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;

use crate::ahead::{self, Ahead};
use crate::batch;
use crate::encode;
use crate::error::{CallError, Failure};
use crate::inner::Inner;

/// How many instances a bulk operation takes when its filter does not say, and how many roots one transaction deletes at
/// most: each takes a lock of the server's lock table.
pub(crate) const BULK_LIMIT: i64 = 1000;

/// A custom status and its version.
pub(crate) type CustomStatus = (Option<String>, u64);

/// A start that nobody has taken yet, or whose first turn is under way.
#[cfg(feature = "cli")]
pub(crate) struct QueuedStart {
    /// It, and those that wait with it.
    pub(crate) messages: i64,
    /// Since it is due; negative if it is not yet.
    pub(crate) waits_ms: i64,
}

/// What came along with a history; none if it was too large for that.
pub(crate) fn status_along(row: &Row) -> Result<Option<Option<CustomStatus>>, tokio_postgres::Error> {
    let version: Option<i64> = row.try_get("custom_status_version")?;
    match version {
        Some(..0) => Ok(None),
        _ => custom_status(row).map(Some),
    }
}

/// Of a row that has it, if its instance exists.
fn custom_status(row: &Row) -> Result<Option<CustomStatus>, tokio_postgres::Error> {
    let status: Option<String> = row.try_get("custom_status")?;
    let version: Option<i64> = row.try_get("custom_status_version")?;
    Ok(version.map(|version| (status.map(encode::from_text), encode::from_id(version))))
}

/// A custom status to read.
pub(crate) struct StatusRequest {
    instance_id: String,
    last_seen_version: i64,
}

impl batch::Request for StatusRequest {
    fn bytes(&self) -> usize {
        self.instance_id.len()
    }
}

impl Inner {
    pub(crate) async fn list_instances(&self, status: Option<&str>) -> Result<Vec<String>, Failure> {
        const OPERATION: &str = "list_instances";
        let row = self.one_row(OPERATION, &[&status]).await?;
        row.try_get(0).map_err(|error| self.decoding(OPERATION, error))
    }

    pub(crate) async fn list_children(&self, instance: &str) -> Result<Vec<String>, Failure> {
        Ok(self.value("list_children", instance, &[]).await?.unwrap_or_default())
    }

    pub(crate) async fn get_parent_id(&self, instance: &str) -> Result<Option<String>, Failure> {
        self.value("get_parent_id", instance, &[]).await
    }

    pub(crate) async fn get_instance_tree(&self, instance: &str) -> Result<InstanceTree, Failure> {
        const OPERATION: &str = "get_instance_tree";
        let root = vec![encode::key(OPERATION, "instance id", instance)?];
        let row = self.one_row(OPERATION, &[&root]).await?;
        Ok(InstanceTree {
            root_id: instance.to_string(),
            all_ids: row.try_get(0).map_err(|error| self.decoding(OPERATION, error))?,
        })
    }

    pub(crate) async fn get_instance_info(&self, instance: &str) -> Result<InstanceInfo, Failure> {
        const OPERATION: &str = "get_instance_info";
        let rows = self.rows(OPERATION, instance, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(Failure::permanent(
                OPERATION,
                format!("Instance {instance:?} not found"),
            ));
        };
        let decode = || {
            Ok(InstanceInfo {
                instance_id: instance.to_string(),
                orchestration_name: row.try_get("orchestration_name")?,
                orchestration_version: row.try_get("orchestration_version")?,
                current_execution_id: encode::from_id(row.try_get("current_execution_id")?),
                status: row
                    .try_get::<_, Option<String>>("status")?
                    .unwrap_or_else(|| "Unknown".to_string()),
                output: row.try_get::<_, Option<String>>("output")?.map(encode::from_text),
                created_at: encode::from_id(row.try_get("created_at_ms")?),
                updated_at: encode::from_id(row.try_get("updated_at_ms")?),
                parent_instance_id: row.try_get("parent_instance_id")?,
            })
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }

    /// What waits in the queue of an instance, if one of it starts it.
    #[cfg(feature = "cli")]
    pub(crate) async fn get_queued_messages(&self, instance: &str) -> Result<Option<QueuedStart>, Failure> {
        const OPERATION: &str = "get_queued_messages";
        let rows = self.rows(OPERATION, instance, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let decode = || {
            let waits: Option<i64> = row.try_get("start_waits_ms")?;
            let messages = row.try_get("messages")?;
            Ok(waits.map(|waits_ms| QueuedStart { messages, waits_ms }))
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }

    pub(crate) async fn get_custom_status(
        self: &Arc<Self>,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<CustomStatus>, Failure> {
        const OPERATION: &str = "get_custom_status";
        self.polled.asks_for_status(instance);
        if let Some(Ahead::CustomStatus(status)) = ahead::take(self.node, instance) {
            return Ok(status.filter(|(_, version)| *version > last_seen_version));
        }
        let request = Arc::new(StatusRequest {
            instance_id: encode::key(OPERATION, "instance id", instance)?.to_string(),
            last_seen_version: encode::saturated_id(last_seen_version),
        });
        let status = self.statuses.ask(self, request).await;
        status.map_err(|error| error.to_failure(OPERATION))
    }

    /// Many statuses in one call.
    pub(crate) fn send_status_requests(
        self: Arc<Self>,
        requests: Vec<Arc<StatusRequest>>,
    ) -> BoxFuture<'static, Vec<Result<Option<CustomStatus>, CallError>>> {
        async move {
            let instance_ids: Vec<&str> = requests.iter().map(|request| request.instance_id.as_str()).collect();
            let versions: Vec<i64> = requests.iter().map(|request| request.last_seen_version).collect();
            let sent = self.caller.call("get_custom_status", &[&instance_ids, &versions]).await;
            let statuses = sent.and_then(|rows| {
                let statuses = rows.iter().map(custom_status);
                Ok(statuses.collect::<Result<Vec<_>, _>>()?)
            });
            batch::answers(statuses, requests.len())
        }
        .boxed()
    }

    pub(crate) async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, Failure> {
        const OPERATION: &str = "get_instance_stats";
        let rows = self.rows(OPERATION, instance, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let decode = || {
            let first_event: Option<String> = row.try_get("first_event")?;
            let stats = SystemStats {
                history_event_count: encode::from_id(row.try_get("history_event_count")?),
                history_size_bytes: encode::from_id(row.try_get("history_size_bytes")?),
                queue_pending_count: 0,
                kv_user_key_count: encode::from_id(row.try_get("kv_user_key_count")?),
                kv_total_value_bytes: encode::from_id(row.try_get("kv_total_value_bytes")?),
            };
            Ok((first_event, stats))
        };
        let (first_event, mut stats) = decode().map_err(|error| self.decoding(OPERATION, error))?;
        if let Some(text) = first_event {
            stats.queue_pending_count = carried_forward(&text).map_err(|error| {
                Failure::permanent(
                    OPERATION,
                    format!(
                        "instance {instance:?}: event 1 of the history cannot be read: {}",
                        encode::unreadable(&error)
                    ),
                )
            })?;
        }
        Ok(Some(stats))
    }

    pub(crate) async fn get_system_metrics(&self) -> Result<SystemMetrics, Failure> {
        const OPERATION: &str = "get_system_metrics";
        let row = self.one_row(OPERATION, &[]).await?;
        let decode = || {
            Ok(SystemMetrics {
                total_instances: encode::from_id(row.try_get("total_instances")?),
                total_executions: encode::from_id(row.try_get("total_executions")?),
                running_instances: encode::from_id(row.try_get("running_instances")?),
                completed_instances: encode::from_id(row.try_get("completed_instances")?),
                failed_instances: encode::from_id(row.try_get("failed_instances")?),
                total_events: encode::from_id(row.try_get("total_events")?),
            })
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }

    pub(crate) async fn get_queue_depths(&self) -> Result<QueueDepths, Failure> {
        const OPERATION: &str = "get_queue_depths";
        let row = self.one_row(OPERATION, &[]).await?;
        let decode = || {
            Ok(QueueDepths {
                orchestrator_queue: encode::from_id(row.try_get("orchestrator_queue")?) as usize,
                worker_queue: encode::from_id(row.try_get("worker_queue")?) as usize,
                // Timers wait in the orchestrator queue.
                timer_queue: 0,
            })
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }

    pub(crate) async fn delete_instance(&self, instance: &str, force: bool) -> Result<DeleteInstanceResult, Failure> {
        const OPERATION: &str = "delete_instance";
        self.hand_back_kept();
        let rows = self.rows(OPERATION, instance, &[&force]).await?;
        self.decode_deletion(OPERATION, rows.first())
    }

    pub(crate) async fn delete_instances_atomic(
        &self,
        ids: &[String],
        force: bool,
    ) -> Result<DeleteInstanceResult, Failure> {
        const OPERATION: &str = "delete_instances_atomic";
        for id in ids {
            encode::key(OPERATION, "instance id", id)?;
        }
        self.hand_back_kept();
        let row = self.one_row(OPERATION, &[&ids, &force]).await?;
        self.decode_deletion(OPERATION, Some(&row))
    }

    pub(crate) fn decode_deletion(&self, operation: &str, row: Option<&Row>) -> Result<DeleteInstanceResult, Failure> {
        let Some(row) = row else {
            return Ok(DeleteInstanceResult::default());
        };
        let decode = || {
            Ok(DeleteInstanceResult {
                instances_deleted: encode::from_id(row.try_get("instances_deleted")?),
                executions_deleted: encode::from_id(row.try_get("executions_deleted")?),
                events_deleted: encode::from_id(row.try_get("events_deleted")?),
                queue_messages_deleted: encode::from_id(row.try_get("queue_messages_deleted")?),
            })
        };
        decode().map_err(|error| self.decoding(operation, error))
    }
}

/// The ids a filter names, each fit for an index.
pub(crate) fn filter_ids<'a>(operation: &str, filter: &'a InstanceFilter) -> Result<Option<&'a Vec<String>>, Failure> {
    for id in filter.instance_ids.iter().flatten() {
        encode::key(operation, "instance id", id)?;
    }
    Ok(filter.instance_ids.as_ref())
}

/// How many queue messages an execution took over from its predecessor.
fn carried_forward(first_event: &str) -> serde_json::Result<u64> {
    let event: Event = serde_json::from_str(first_event)?;
    Ok(match event.kind {
        EventKind::OrchestrationStarted {
            carry_forward_events: Some(events),
            ..
        } => events.len() as u64,
        _ => 0,
    })
}
