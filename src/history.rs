//! Event histories and executions: `sql/history`.

use duroxide::Event;
use duroxide::providers::{ExecutionInfo, InstanceFilter, ProviderError, PruneOptions, PruneResult};

use crate::encode;
use crate::instances::{BULK_LIMIT, filter_ids};
use crate::provider::Inner;
use crate::work_item::json;

/// Events, column by column.
pub(crate) struct Events {
    pub(crate) ids: Vec<i64>,
    pub(crate) data: Vec<String>,
}

impl Events {
    pub(crate) fn encode(operation: &str, events: &[Event]) -> Result<Self, ProviderError> {
        let mut encoded = Self {
            ids: Vec::with_capacity(events.len()),
            data: Vec::with_capacity(events.len()),
        };
        for event in events {
            if event.event_id() == 0 {
                return Err(ProviderError::permanent(
                    operation,
                    "event ids are assigned by the runtime and start at 1",
                ));
            }
            encoded.ids.push(encode::id(operation, "event id", event.event_id())?);
            encoded.data.push(json(operation, serde_json::to_string(event))?);
        }
        Ok(encoded)
    }
}

/// All events, or which of them cannot be read. None is ever skipped.
pub(crate) fn decode_events(texts: Vec<String>) -> Result<Vec<Event>, String> {
    texts
        .iter()
        .enumerate()
        .map(|(position, text)| {
            serde_json::from_str(text)
                .map_err(|error| format!("event {} of the history cannot be read: {error}", position + 1))
        })
        .collect()
}

impl Inner {
    pub(crate) async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        const OPERATION: &str = "read";
        let texts = self.value(OPERATION, instance, &[]).await?;
        self.decode_history(OPERATION, instance, texts)
    }

    pub(crate) async fn read_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        const OPERATION: &str = "read_with_execution";
        let execution_id = encode::id(OPERATION, "execution id", execution_id)?;
        let texts = self.value(OPERATION, instance, &[&execution_id]).await?;
        self.decode_history(OPERATION, instance, texts)
    }

    fn decode_history(
        &self,
        operation: &str,
        instance: &str,
        texts: Option<Vec<String>>,
    ) -> Result<Vec<Event>, ProviderError> {
        decode_events(texts.unwrap_or_default())
            .map_err(|error| ProviderError::permanent(operation, format!("instance {instance:?}: {error}")))
    }

    pub(crate) async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        events: &[Event],
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "append_with_execution";
        let execution_id = encode::id(OPERATION, "execution id", execution_id)?;
        let events = Events::encode(OPERATION, events)?;
        self.rows(OPERATION, instance, &[&execution_id, &events.ids, &events.data])
            .await?;
        Ok(())
    }

    pub(crate) async fn latest_execution_id(&self, instance: &str) -> Result<u64, ProviderError> {
        let latest: Option<i64> = self.value("latest_execution_id", instance, &[]).await?;
        Ok(latest.map_or(duroxide::INITIAL_EXECUTION_ID, encode::from_id))
    }

    pub(crate) async fn list_executions(&self, instance: &str) -> Result<Vec<u64>, ProviderError> {
        let ids: Option<Vec<i64>> = self.value("list_executions", instance, &[]).await?;
        Ok(ids.unwrap_or_default().into_iter().map(encode::from_id).collect())
    }

    pub(crate) async fn get_execution_info(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<ExecutionInfo, ProviderError> {
        const OPERATION: &str = "get_execution_info";
        let id = encode::id(OPERATION, "execution id", execution_id)?;
        let rows = self.rows(OPERATION, instance, &[&id]).await?;
        let Some(row) = rows.first() else {
            return Err(ProviderError::permanent(
                OPERATION,
                format!("Execution {execution_id} not found for instance {instance:?}"),
            ));
        };
        let decode = || {
            Ok(ExecutionInfo {
                execution_id,
                status: row.try_get("status")?,
                output: row.try_get::<_, Option<String>>("output")?.map(encode::from_text),
                started_at: encode::from_id(row.try_get("started_at_ms")?),
                completed_at: row.try_get::<_, Option<i64>>("completed_at_ms")?.map(encode::from_id),
                event_count: encode::from_id(row.try_get("event_count")?) as usize,
            })
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }

    pub(crate) async fn prune_executions(
        &self,
        instance: &str,
        options: &PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        let filter = InstanceFilter {
            instance_ids: Some(vec![instance.to_string()]),
            ..InstanceFilter::default()
        };
        let result = self.prune_executions_bulk(&filter, options).await?;
        if result.instances_processed == 0 {
            return Err(ProviderError::permanent(
                "prune_executions",
                format!("Instance {instance:?} not found"),
            ));
        }
        Ok(result)
    }

    pub(crate) async fn prune_executions_bulk(
        &self,
        filter: &InstanceFilter,
        options: &PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        const OPERATION: &str = "prune_executions";
        let row = self
            .one_row(
                OPERATION,
                &[
                    &filter_ids(OPERATION, filter)?,
                    &filter.completed_before.map(encode::epoch_ms),
                    &filter.limit.map_or(BULK_LIMIT, i64::from),
                    &options.keep_last.map(i64::from),
                    &options.completed_before.map(encode::epoch_ms),
                ],
            )
            .await?;
        let decode = || {
            Ok(PruneResult {
                instances_processed: encode::from_id(row.try_get("instances_processed")?),
                executions_deleted: encode::from_id(row.try_get("executions_deleted")?),
                events_deleted: encode::from_id(row.try_get("events_deleted")?),
            })
        };
        decode().map_err(|error| self.decoding(OPERATION, error))
    }
}
