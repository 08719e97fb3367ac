//! The end of a turn, as `ack_orchestration_item` takes it.

use duroxide::providers::{ExecutionMetadata, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::batch;
use crate::encode;
use crate::error::{CallError, Failure};
use crate::history::Events;
use crate::instances::{CustomStatus, status_along};
use crate::kv::KvChanges;
use crate::token::TurnToken;
use crate::work_item::{Activities, Messages};

/// One turn.
pub(crate) struct TurnAck {
    pub(crate) token: TurnToken,
    pub(crate) execution_id: i64,
    pub(crate) events: Events,
    pub(crate) activities: Activities,
    /// The same, as the runtime has them, and the leases of those that are handed over to somebody who waits.
    pub(crate) worker_items: Vec<WorkItem>,
    pub(crate) activity_leases: Vec<Uuid>,
    pub(crate) messages: Messages,
    /// The process, if it keeps the history in memory.
    pub(crate) node: Option<Uuid>,
    pub(crate) id: Uuid,
    pub(crate) kv: KvChanges,
    pub(crate) cancelled: Cancelled,
    pub(crate) status: Option<String>,
    pub(crate) output: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) parent: Option<String>,
    pub(crate) pinned_version: Option<i64>,
    pub(crate) custom_status: Option<Option<String>>,
    /// Somebody waits for the end that this turn is.
    pub(crate) tells_end: bool,
}

/// Activities to cancel, column by column.
#[derive(Default)]
pub(crate) struct Cancelled {
    pub(crate) instance_ids: Vec<String>,
    pub(crate) execution_ids: Vec<i64>,
    pub(crate) activity_ids: Vec<i64>,
}

/// What became of a turn.
pub(crate) struct TurnAnswer {
    /// None if the same call had already committed.
    pub(crate) done: Option<bool>,
    pub(crate) due_ms: Option<i64>,
    /// Of those activities of the call that were handed over, the row; with the first answer.
    pub(crate) handed: Vec<(Uuid, i64)>,
    /// If this process has all of the turn's history in memory, and something was handed over; or if it is the end that somebody waits for, and nothing
    /// follows in the history.
    pub(crate) history_epoch: Option<i64>,
    /// The custom status, if that came along: only with the end that somebody waits for.
    pub(crate) status: Option<Option<CustomStatus>>,
}

impl TurnAnswer {
    /// One answer a turn.
    pub(crate) fn decode(rows: &[Row]) -> Result<Vec<Self>, CallError> {
        let answer = |row: &Row| {
            Ok(Self {
                done: row.try_get("done")?,
                due_ms: row.try_get("due_ms")?,
                handed: handed(row)?.collect(),
                history_epoch: row.try_get("history_epoch")?,
                status: status_along(row)?,
            })
        };
        rows.iter().map(answer).collect()
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

/// The activities of a call that were put into the queue already leased, and their rows.
pub(crate) fn handed(row: &Row) -> Result<impl Iterator<Item = (Uuid, i64)> + use<>, tokio_postgres::Error> {
    let leases: Option<Vec<Uuid>> = row.try_get("handed_leases")?;
    let ids: Option<Vec<i64>> = row.try_get("handed_ids")?;
    Ok(leases.into_iter().flatten().zip(ids.into_iter().flatten()))
}

impl TurnAck {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn encode(
        operation: &str,
        token: TurnToken,
        execution_id: u64,
        history_delta: &[Event],
        worker_items: Vec<WorkItem>,
        orchestrator_items: &[WorkItem],
        metadata: &ExecutionMetadata,
        cancelled_activities: &[ScheduledActivityIdentifier],
    ) -> Result<Self, Failure> {
        let mut activities = Activities::default();
        for item in &worker_items {
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
            activity_leases: worker_items.iter().map(|_| Uuid::new_v4()).collect(),
            worker_items,
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
            tells_end: false,
        })
    }

    /// Whether there are no more turns after this one.
    pub(crate) fn ends_orchestration(&self) -> bool {
        matches!(self.status.as_deref(), Some("Completed" | "Failed"))
    }

    /// Whether the execution goes on after this turn.
    pub(crate) fn goes_on(&self) -> bool {
        !self.ends_orchestration() && self.status.as_deref() != Some("ContinuedAsNew")
    }

    /// The instances, other than its own, that it sends to or names as its parent.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &str> {
        self.messages
            .instance_ids
            .iter()
            .chain(&self.parent)
            .map(String::as_str)
            .filter(|target| *target != self.token.instance_id)
    }

    pub(crate) fn first_event_id(&self) -> Option<i64> {
        self.events.ids.first().copied()
    }

    pub(crate) fn last_event_id(&self) -> Option<i64> {
        self.events.ids.iter().max().copied()
    }
}

/// What of a turn the function wants in another form.
pub(crate) struct Columns<'a> {
    ack: &'a TurnAck,
    lease_ms: &'a [Option<i64>],
    sets_custom_status: bool,
    custom_status: Option<&'a str>,
    first_event_id: Option<i64>,
    last_event_id: Option<i64>,
    targets: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    /// `lease_ms`: how long the lease is of each activity that is handed over.
    pub(crate) fn new(ack: &'a TurnAck, lease_ms: &'a [Option<i64>]) -> Self {
        let mut targets: Vec<_> = ack.targets().collect();
        targets.sort_unstable();
        targets.dedup();
        Self {
            ack,
            lease_ms,
            sets_custom_status: ack.custom_status.is_some(),
            custom_status: ack.custom_status.as_ref().and_then(Option::as_deref),
            first_event_id: ack.first_event_id(),
            last_event_id: ack.last_event_id(),
            targets,
        }
    }

    /// In the order of the function's parameters.
    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let ack = self.ack;
        vec![
            &ack.token.instance_id,
            &ack.token.lease,
            &ack.id,
            &ack.execution_id,
            &ack.status,
            &ack.output,
            &ack.name,
            &ack.version,
            &ack.parent,
            &ack.pinned_version,
            &self.sets_custom_status,
            &self.custom_status,
            &ack.kv.clears,
            &ack.node,
            &self.first_event_id,
            &self.last_event_id,
            &ack.events.ids,
            &*ack.events.data,
            &ack.kv.keys,
            &ack.kv.values,
            &ack.kv.updated_at_ms,
            &ack.activities.instance_ids,
            &ack.activities.execution_ids,
            &ack.activities.activity_ids,
            &ack.activities.tags,
            &ack.activities.sessions,
            &ack.activities.items,
            &ack.activity_leases,
            &self.lease_ms,
            &ack.cancelled.instance_ids,
            &ack.cancelled.execution_ids,
            &ack.cancelled.activity_ids,
            &ack.messages.instance_ids,
            &ack.messages.kinds,
            &ack.messages.visible_at_ms,
            &ack.messages.items,
            &self.targets,
            &ack.tells_end,
        ]
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
