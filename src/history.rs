//! Event histories and executions: `sql/history`.

use std::sync::Arc;

use duroxide::Event;
use duroxide::providers::{ExecutionInfo, InstanceFilter, PruneOptions, PruneResult};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tracing::debug;

use crate::ahead::{self, Ahead};
use crate::batch;
use crate::cache::Known;
use crate::encode;
use crate::error::{CallError, Failure};
use crate::inner::Inner;
use crate::instances::{BULK_LIMIT, CustomStatus, filter_ids, status_along};
use crate::telemetry::metrics;
use crate::work_item::json;

/// A last event larger than this is not worth sending only to be told that it is still the last.
const MAX_HINT_BYTES: usize = 8 << 10;

/// Events, column by column.
pub(crate) struct Events {
    pub(crate) ids: Vec<i64>,
    pub(crate) data: Arc<Vec<String>>,
}

impl Events {
    pub(crate) fn encode(operation: &str, events: &[Event]) -> Result<Self, Failure> {
        let mut ids = Vec::with_capacity(events.len());
        let mut data = Vec::with_capacity(events.len());
        for event in events {
            if event.event_id() == 0 {
                return Err(Failure::permanent(
                    operation,
                    "event ids are assigned by the runtime and start at 1",
                ));
            }
            ids.push(encode::id(operation, "event id", event.event_id())?);
            data.push(json(operation, serde_json::to_string(event))?);
        }
        Ok(Self {
            ids,
            data: Arc::new(data),
        })
    }
}

/// All events, or which of them, counted after those `before`, cannot be read. None is ever skipped.
fn decode_events(texts: &[String], before: usize) -> Result<Vec<Event>, String> {
    texts
        .iter()
        .enumerate()
        .map(|(position, text)| {
            serde_json::from_str(text).map_err(|error| {
                format!(
                    "event {} of the history cannot be read: {}",
                    before + position + 1,
                    encode::unreadable(&error)
                )
            })
        })
        .collect()
}

/// What the database sent of a history: what comes after `cached_event_id`, which this process has, or all of it (0).
#[derive(Clone)]
pub(crate) struct Tail {
    /// None where there is no mailbox, and so nothing to tell whether it changed.
    pub(crate) epoch: Option<i64>,
    pub(crate) execution_id: i64,
    pub(crate) cached_event_id: i64,
    pub(crate) events: Vec<String>,
}

impl Tail {
    /// Of a row that has it, of this execution.
    pub(crate) fn decode(row: &Row, execution_id: i64) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            epoch: row.try_get("history_epoch")?,
            execution_id,
            cached_event_id: row.try_get("cached_event_id")?,
            events: row.try_get::<_, Option<Vec<String>>>("history")?.unwrap_or_default(),
        })
    }
}

/// A history to read.
pub(crate) struct ReadRequest {
    instance_id: String,
    known: Option<Known>,
}

/// What became of it, and the custom status, if that came along.
pub(crate) type ReadAnswer = (Tail, Option<Option<CustomStatus>>);

/// What a history is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Nobody else adds to it.
    Turn,
    Read,
    /// It came along with an activity.
    Activity,
}

impl batch::Request for ReadRequest {
    fn bytes(&self) -> usize {
        self.instance_id.len()
    }
}

impl Inner {
    pub(crate) async fn read(self: &Arc<Self>, instance: &str) -> Result<Vec<Event>, Failure> {
        const OPERATION: &str = "read";
        if let Some(Ahead::History(tail)) = ahead::take(self.node, instance)
            && let Some(known) = self.known_ahead(instance, &tail)
        {
            return self
                .whole_history(instance, Some(known), tail, Occasion::Activity)
                .await;
        }
        if self.runs_turns()
            && let Some(ended) = self.polled.wait(instance, self.waker.has_company()).await
        {
            if self.cache.is_enabled() {
                metrics::cache_lookup("hit");
            }
            return Ok(self.was_read(instance, Arc::unwrap_or_clone(ended.history), ended.status));
        }
        let request = Arc::new(ReadRequest {
            instance_id: encode::key(OPERATION, "instance id", instance)?.to_string(),
            known: self
                .cache
                .get(instance)
                .filter(|known| known.last_text.len() <= MAX_HINT_BYTES),
        });
        let answer = self.reads.ask(self, Arc::clone(&request)).await;
        let (tail, status) = answer.map_err(|error| error.to_failure(OPERATION))?;
        let history = self
            .whole_history(instance, request.known.clone(), tail, Occasion::Read)
            .await?;
        Ok(self.was_read(instance, history, status))
    }

    /// `status`: the custom status, if that came along.
    fn was_read(&self, instance: &str, history: Vec<Event>, status: Option<Option<CustomStatus>>) -> Vec<Event> {
        self.polled.was_read(instance, &history);
        if let Some(status) = status {
            ahead::keep(self.node, instance, Ahead::CustomStatus(status));
        }
        history
    }

    /// What this process has of a history that came along; nothing if all of it did. None if it has another, or more of it, by now.
    fn known_ahead(&self, instance: &str, tail: &Tail) -> Option<Known> {
        match (tail.epoch?, tail.execution_id, tail.cached_event_id) {
            (epoch, execution_id, 0) => {
                let newer = self
                    .cache
                    .get(instance)
                    .is_some_and(|known| known.events.len() > tail.events.len());
                (!newer).then(|| Known::nothing(epoch, execution_id))
            }
            (epoch, execution_id, event_id) => self.cache.get_up_to(instance, epoch, execution_id, event_id, false),
        }
    }

    /// Many histories in one call.
    pub(crate) fn send_reads(
        self: Arc<Self>,
        requests: Vec<Arc<ReadRequest>>,
    ) -> BoxFuture<'static, Vec<Result<ReadAnswer, CallError>>> {
        async move {
            let known = |field: fn(&Known) -> i64| -> Vec<Option<i64>> {
                requests
                    .iter()
                    .map(|request| request.known.as_ref().map(field))
                    .collect()
            };
            let last_texts: Vec<Option<&str>> = requests
                .iter()
                .map(|request| request.known.as_ref().map(|known| &*known.last_text))
                .collect();
            let instance_ids: Vec<&str> = requests.iter().map(|request| request.instance_id.as_str()).collect();
            let sent = self
                .caller
                .call(
                    "read",
                    &[
                        &instance_ids,
                        &known(|known| known.epoch),
                        &known(|known| known.execution_id),
                        &known(|known| known.last_event_id),
                        &last_texts,
                    ],
                )
                .await;
            let answers = sent.and_then(|rows| {
                let answers = rows.iter().map(|row| {
                    let tail = Tail::decode(row, row.try_get("execution_id")?)?;
                    Ok((tail, status_along(row)?))
                });
                answers.collect::<Result<Vec<_>, CallError>>()
            });
            batch::answers(answers, requests.len())
        }
        .boxed()
    }

    /// Puts together what this process has of a history and what the database sent, and keeps it in memory.
    /// `known`: what the database was told that this process has; none if it knew by itself.
    pub(crate) async fn whole_history(
        &self,
        instance: &str,
        known: Option<Known>,
        tail: Tail,
        occasion: Occasion,
    ) -> Result<Vec<Event>, Failure> {
        let unreadable = |error| Failure::permanent("read", format!("instance {instance:?}: {error}"));
        let Some(epoch) = tail.epoch else {
            return decode_events(&tail.events, 0).map_err(unreadable);
        };
        let leased = occasion == Occasion::Turn;
        // What this process had is not what the database has.
        let refuted = tail.cached_event_id == 0 && (leased || (occasion == Occasion::Read && known.is_some()));
        let known = match known {
            _ if tail.cached_event_id == 0 => Some(Known::nothing(epoch, tail.execution_id)),
            // As it was when the database was asked: it said itself that this still holds.
            Some(known) => Some(known),
            None => self
                .cache
                .get_up_to(instance, epoch, tail.execution_id, tail.cached_event_id, leased),
        };
        let Some(mut known) = known else {
            // Forgotten meanwhile: all of it, then.
            debug!(instance, "a history is no longer in memory; reading it again");
            let all = Tail {
                cached_event_id: 0,
                events: self.stored_events(instance, tail.execution_id).await?,
                ..tail
            };
            return Box::pin(self.whole_history(instance, None, all, occasion)).await;
        };
        if self.cache.is_enabled() {
            match (tail.cached_event_id, tail.events.is_empty()) {
                // There is no history yet.
                (0, true) => {}
                (0, false) if occasion == Occasion::Activity => metrics::cache_lookup("along"),
                (0, false) => metrics::cache_lookup("miss"),
                (_, true) => metrics::cache_lookup("hit"),
                (_, false) => metrics::cache_lookup("partial"),
            }
        }
        let events = decode_events(&tail.events, known.events.len()).map_err(unreadable)?;
        known.append(events, &tail.events);
        if self.cache.is_enabled() && (tail.cached_event_id == 0 || !tail.events.is_empty()) {
            if refuted {
                self.cache.forget(instance);
            }
            self.cache.put(instance, known.clone());
        }
        Ok(if leased {
            self.cache.take_events(instance, known)
        } else {
            Arc::unwrap_or_clone(known.events)
        })
    }

    /// As they are stored.
    pub(crate) async fn stored_events(&self, instance: &str, execution_id: i64) -> Result<Vec<String>, Failure> {
        let texts: Option<Vec<String>> = self.value("read_with_execution", instance, &[&execution_id]).await?;
        Ok(texts.unwrap_or_default())
    }

    pub(crate) async fn read_with_execution(&self, instance: &str, execution_id: u64) -> Result<Vec<Event>, Failure> {
        const OPERATION: &str = "read_with_execution";
        let execution_id = encode::id(OPERATION, "execution id", execution_id)?;
        let texts = self.stored_events(instance, execution_id).await?;
        decode_events(&texts, 0)
            .map_err(|error| Failure::permanent(OPERATION, format!("instance {instance:?}: {error}")))
    }

    pub(crate) async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        events: &[Event],
    ) -> Result<(), Failure> {
        const OPERATION: &str = "append_with_execution";
        let execution_id = encode::id(OPERATION, "execution id", execution_id)?;
        let events = Events::encode(OPERATION, events)?;
        self.rows(OPERATION, instance, &[&execution_id, &events.ids, &*events.data])
            .await?;
        Ok(())
    }

    pub(crate) async fn latest_execution_id(&self, instance: &str) -> Result<u64, Failure> {
        let latest: Option<i64> = self.value("latest_execution_id", instance, &[]).await?;
        Ok(latest.map_or(duroxide::INITIAL_EXECUTION_ID, encode::from_id))
    }

    pub(crate) async fn list_executions(&self, instance: &str) -> Result<Vec<u64>, Failure> {
        let ids: Option<Vec<i64>> = self.value("list_executions", instance, &[]).await?;
        Ok(ids.unwrap_or_default().into_iter().map(encode::from_id).collect())
    }

    pub(crate) async fn get_execution_info(&self, instance: &str, execution_id: u64) -> Result<ExecutionInfo, Failure> {
        const OPERATION: &str = "get_execution_info";
        let id = encode::id(OPERATION, "execution id", execution_id)?;
        let rows = self.rows(OPERATION, instance, &[&id]).await?;
        let Some(row) = rows.first() else {
            return Err(Failure::permanent(
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
    ) -> Result<PruneResult, Failure> {
        let filter = InstanceFilter {
            instance_ids: Some(vec![instance.to_string()]),
            ..InstanceFilter::default()
        };
        let result = self.prune_executions_bulk(&filter, options).await?;
        if result.instances_processed == 0 {
            return Err(Failure::permanent(
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
    ) -> Result<PruneResult, Failure> {
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
