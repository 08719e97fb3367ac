//! The end of a turn, as `ack_orchestration_item` takes it: many turns in one call, column by column.

use std::sync::Arc;

use duroxide::providers::{ExecutionMetadata, ProviderError, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::batch;
use crate::encode;
use crate::error::CallError;
use crate::history::Events;
use crate::kv::KvChanges;
use crate::token::TurnToken;
use crate::work_item::{Activities, Messages};

/// One turn.
pub(crate) struct TurnAck {
    pub(crate) token: TurnToken,
    pub(crate) execution_id: i64,
    pub(crate) events: Events,
    pub(crate) activities: Activities,
    pub(crate) messages: Messages,
    /// The process, if it keeps the history in memory.
    pub(crate) node: Option<Uuid>,
    pub(crate) id: Uuid,
    kv: KvChanges,
    cancelled: Cancelled,
    status: Option<String>,
    output: Option<String>,
    name: Option<String>,
    version: Option<String>,
    parent: Option<String>,
    pinned_version: Option<i64>,
    custom_status: Option<Option<String>>,
}

/// Activities to cancel, column by column.
#[derive(Default)]
struct Cancelled {
    instance_ids: Vec<String>,
    execution_ids: Vec<i64>,
    activity_ids: Vec<i64>,
}

/// What became of a turn.
pub(crate) struct TurnAnswer {
    /// None if the same call had already committed.
    pub(crate) done: Option<bool>,
    pub(crate) due_ms: Option<i64>,
}

impl TurnAnswer {
    /// One answer a turn.
    pub(crate) fn decode(rows: &[Row]) -> Result<Vec<Self>, CallError> {
        let Some(row) = rows.first() else {
            return Ok(Vec::new());
        };
        let due_ms = row.try_get("due_ms")?;
        let done: Vec<Option<bool>> = row.try_get("done")?;
        Ok(done.into_iter().map(|done| Self { done, due_ms }).collect())
    }

    /// None if the same call had already committed; an error if the lease was lost.
    pub(crate) fn held(self, ack: &TurnAck) -> Result<Option<Self>, CallError> {
        match self.done {
            Some(true) => Ok(Some(self)),
            None => Ok(None),
            Some(false) => Err(CallError::LeaseLost(format!(
                "the lease on instance {:?} has expired or is held by somebody else",
                ack.token.instance_id
            ))),
        }
    }
}

impl TurnAck {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn encode(
        operation: &str,
        token: TurnToken,
        execution_id: u64,
        history_delta: &[Event],
        worker_items: &[WorkItem],
        orchestrator_items: &[WorkItem],
        metadata: &ExecutionMetadata,
        cancelled_activities: &[ScheduledActivityIdentifier],
    ) -> Result<Self, ProviderError> {
        let mut activities = Activities::default();
        for item in worker_items {
            activities.push(operation, item)?;
        }
        let mut messages = Messages::default();
        for item in orchestrator_items {
            messages.push(operation, item)?;
        }
        let mut cancelled = Cancelled::default();
        for activity in cancelled_activities {
            let instance_id = encode::key(operation, "instance id", &activity.instance)?;
            cancelled.instance_ids.push(instance_id.to_string());
            cancelled
                .execution_ids
                .push(encode::id(operation, "execution id", activity.execution_id)?);
            cancelled
                .activity_ids
                .push(encode::id(operation, "activity id", activity.activity_id)?);
        }
        let text = |field, value: &Option<String>| match value {
            Some(value) => encode::name(operation, field, value).map(|value| Some(value.to_string())),
            None => Ok(None),
        };
        let parent = metadata.parent_instance_id.as_ref();
        Ok(Self {
            id: Uuid::new_v4(),
            token,
            execution_id: encode::id(operation, "execution id", execution_id)?,
            events: Events::encode(operation, history_delta)?,
            kv: KvChanges::encode(operation, history_delta)?,
            activities,
            messages,
            cancelled,
            node: None,
            status: text("status", &metadata.status)?,
            output: metadata.output.as_deref().map(|text| encode::text(text).into_owned()),
            name: text("orchestration name", &metadata.orchestration_name)?,
            version: text("orchestration version", &metadata.orchestration_version)?,
            parent: parent
                .map(|parent| encode::key(operation, "parent instance id", parent).map(str::to_string))
                .transpose()?,
            pinned_version: metadata.pinned_duroxide_version.as_ref().map(encode::version),
            custom_status: history_delta.iter().rev().find_map(|event| match &event.kind {
                EventKind::CustomStatusUpdated { status } => {
                    Some(status.as_deref().map(|text| encode::text(text).into_owned()))
                }
                _ => None,
            }),
        })
    }

    /// Whether the execution goes on after this turn.
    pub(crate) fn goes_on(&self) -> bool {
        !matches!(self.status.as_deref(), Some("Completed" | "Failed" | "ContinuedAsNew"))
    }

    /// The instances, other than its own, that it sends to or names as its parent.
    fn targets(&self) -> impl Iterator<Item = &str> {
        self.messages
            .instance_ids
            .iter()
            .chain(&self.parent)
            .map(String::as_str)
            .filter(|target| *target != self.token.instance_id)
    }
}

impl batch::Request for TurnAck {
    fn key(&self) -> Option<String> {
        Some(self.token.instance_id.clone())
    }

    fn bytes(&self) -> usize {
        [&*self.events.data, &self.activities.items, &self.messages.items]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum()
    }
}

/// Many turns, column by column.
#[derive(Default)]
pub(crate) struct TurnAcks<'a> {
    instance_ids: Vec<&'a str>,
    leases: Vec<Uuid>,
    ack_ids: Vec<Uuid>,
    execution_ids: Vec<i64>,
    statuses: Vec<Option<&'a str>>,
    outputs: Vec<Option<&'a str>>,
    names: Vec<Option<&'a str>>,
    versions: Vec<Option<&'a str>>,
    parents: Vec<Option<&'a str>>,
    pinned_versions: Vec<Option<i64>>,
    sets_custom_status: Vec<bool>,
    custom_statuses: Vec<Option<&'a str>>,
    clears_kv: Vec<bool>,
    nodes: Vec<Option<Uuid>>,
    first_event_ids: Vec<Option<i64>>,
    last_event_ids: Vec<Option<i64>>,
    event_turns: Vec<i32>,
    event_ids: Vec<i64>,
    event_data: Vec<&'a str>,
    kv_turns: Vec<i32>,
    kv_keys: Vec<&'a str>,
    kv_values: Vec<Option<&'a str>>,
    kv_updated_at_ms: Vec<Option<i64>>,
    activity_turns: Vec<i32>,
    activity_instance_ids: Vec<&'a str>,
    activity_execution_ids: Vec<i64>,
    activity_ids: Vec<i64>,
    activity_tags: Vec<&'a str>,
    activity_sessions: Vec<&'a str>,
    activity_items: Vec<&'a str>,
    cancel_turns: Vec<i32>,
    cancel_instance_ids: Vec<&'a str>,
    cancel_execution_ids: Vec<i64>,
    cancel_activity_ids: Vec<i64>,
    message_turns: Vec<i32>,
    message_instance_ids: Vec<&'a str>,
    message_kinds: Vec<i8>,
    message_visible_at_ms: Vec<Option<i64>>,
    message_items: Vec<&'a str>,
    targets: Vec<&'a str>,
}

impl<'a> TurnAcks<'a> {
    pub(crate) fn new(acks: &'a [Arc<TurnAck>]) -> Self {
        let mut columns = Self::default();
        for (turn, ack) in (1..).zip(acks) {
            columns.push(turn, ack);
        }
        columns.targets.sort_unstable();
        columns.targets.dedup();
        columns
    }

    fn push(&mut self, turn: i32, ack: &'a TurnAck) {
        fn add<'a>(turn: i32, turns: &mut Vec<i32>, column: &mut Vec<&'a str>, values: &'a [String]) {
            turns.extend(values.iter().map(|_| turn));
            column.extend(values.iter().map(String::as_str));
        }
        self.instance_ids.push(&ack.token.instance_id);
        self.leases.push(ack.token.lease);
        self.ack_ids.push(ack.id);
        self.execution_ids.push(ack.execution_id);
        self.statuses.push(ack.status.as_deref());
        self.outputs.push(ack.output.as_deref());
        self.names.push(ack.name.as_deref());
        self.versions.push(ack.version.as_deref());
        self.parents.push(ack.parent.as_deref());
        self.pinned_versions.push(ack.pinned_version);
        self.sets_custom_status.push(ack.custom_status.is_some());
        self.custom_statuses
            .push(ack.custom_status.as_ref().and_then(Option::as_deref));
        self.clears_kv.push(ack.kv.clears);
        self.nodes.push(ack.node);
        self.first_event_ids.push(ack.events.ids.first().copied());
        self.last_event_ids.push(ack.events.ids.iter().max().copied());

        add(
            turn,
            &mut self.event_turns,
            &mut self.event_data,
            ack.events.data.as_slice(),
        );
        self.event_ids.extend(&ack.events.ids);

        add(turn, &mut self.kv_turns, &mut self.kv_keys, &ack.kv.keys);
        self.kv_values.extend(ack.kv.values.iter().map(Option::as_deref));
        self.kv_updated_at_ms.extend(&ack.kv.updated_at_ms);

        let activities = &ack.activities;
        add(
            turn,
            &mut self.activity_turns,
            &mut self.activity_items,
            &activities.items,
        );
        self.activity_instance_ids
            .extend(activities.instance_ids.iter().map(String::as_str));
        self.activity_execution_ids.extend(&activities.execution_ids);
        self.activity_ids.extend(&activities.activity_ids);
        self.activity_tags.extend(activities.tags.iter().map(String::as_str));
        self.activity_sessions
            .extend(activities.sessions.iter().map(String::as_str));

        let cancelled = &ack.cancelled;
        add(
            turn,
            &mut self.cancel_turns,
            &mut self.cancel_instance_ids,
            &cancelled.instance_ids,
        );
        self.cancel_execution_ids.extend(&cancelled.execution_ids);
        self.cancel_activity_ids.extend(&cancelled.activity_ids);

        let messages = &ack.messages;
        add(turn, &mut self.message_turns, &mut self.message_items, &messages.items);
        self.message_instance_ids
            .extend(messages.instance_ids.iter().map(String::as_str));
        self.message_kinds.extend(&messages.kinds);
        self.message_visible_at_ms.extend(&messages.visible_at_ms);

        self.targets.extend(ack.targets());
    }

    /// In the order of the function's parameters.
    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.instance_ids,
            &self.leases,
            &self.ack_ids,
            &self.execution_ids,
            &self.statuses,
            &self.outputs,
            &self.names,
            &self.versions,
            &self.parents,
            &self.pinned_versions,
            &self.sets_custom_status,
            &self.custom_statuses,
            &self.clears_kv,
            &self.nodes,
            &self.first_event_ids,
            &self.last_event_ids,
            &self.event_turns,
            &self.event_ids,
            &self.event_data,
            &self.kv_turns,
            &self.kv_keys,
            &self.kv_values,
            &self.kv_updated_at_ms,
            &self.activity_turns,
            &self.activity_instance_ids,
            &self.activity_execution_ids,
            &self.activity_ids,
            &self.activity_tags,
            &self.activity_sessions,
            &self.activity_items,
            &self.cancel_turns,
            &self.cancel_instance_ids,
            &self.cancel_execution_ids,
            &self.cancel_activity_ids,
            &self.message_turns,
            &self.message_instance_ids,
            &self.message_kinds,
            &self.message_visible_at_ms,
            &self.message_items,
            &self.targets,
        ]
    }
}
