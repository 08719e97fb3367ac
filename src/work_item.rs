//! Work items as rows: where they go, and what SQL must know about them beside their text.

use duroxide::providers::WorkItem;

use crate::encode;
use crate::error::Failure;

/// Kinds of orchestrator messages; see `orchestrator_queue.kind`.
const STARTS: i8 = b's' as i8;
const QUEUE_MESSAGE: i8 = b'q' as i8;
const OTHER: i8 = b'm' as i8;

/// A message for an orchestration.
pub(crate) struct Message {
    pub(crate) instance_id: String,
    pub(crate) kind: i8,
    pub(crate) visible_at_ms: Option<i64>,
    pub(crate) item: String,
}

impl Message {
    pub(crate) fn encode(operation: &str, item: &WorkItem) -> Result<Self, Failure> {
        let instance_id = target(item).ok_or_else(|| {
            Failure::permanent(operation, "activities go to the worker queue, not to an orchestration")
        })?;
        Ok(Self {
            instance_id: encode::key(operation, "instance id", instance_id)?.to_string(),
            kind: match item {
                WorkItem::StartOrchestration { .. } | WorkItem::ContinueAsNew { .. } => STARTS,
                WorkItem::QueueMessage { .. } => QUEUE_MESSAGE,
                _ => OTHER,
            },
            visible_at_ms: match item {
                WorkItem::TimerFired { fire_at_ms, .. } => Some(encode::epoch_ms(*fire_at_ms)),
                _ => None,
            },
            item: json(operation, serde_json::to_string(item))?,
        })
    }
}

/// Messages for orchestrations, column by column.
#[derive(Default)]
pub(crate) struct Messages {
    pub(crate) instance_ids: Vec<String>,
    pub(crate) kinds: Vec<i8>,
    pub(crate) visible_at_ms: Vec<Option<i64>>,
    pub(crate) items: Vec<String>,
}

impl Messages {
    pub(crate) fn push(&mut self, operation: &str, item: &WorkItem) -> Result<(), Failure> {
        let message = Message::encode(operation, item)?;
        self.instance_ids.push(message.instance_id);
        self.kinds.push(message.kind);
        self.visible_at_ms.push(message.visible_at_ms);
        self.items.push(message.item);
        Ok(())
    }
}

/// The instance that an item is about.
pub(crate) fn instance(item: &WorkItem) -> Option<&str> {
    match item {
        WorkItem::ActivityExecute { instance, .. } => Some(instance),
        _ => target(item),
    }
}

/// The instance whose queue an item belongs to; none for activities.
fn target(item: &WorkItem) -> Option<&str> {
    match item {
        WorkItem::StartOrchestration { instance, .. }
        | WorkItem::ActivityCompleted { instance, .. }
        | WorkItem::ActivityFailed { instance, .. }
        | WorkItem::TimerFired { instance, .. }
        | WorkItem::ExternalRaised { instance, .. }
        | WorkItem::QueueMessage { instance, .. }
        | WorkItem::CancelInstance { instance, .. }
        | WorkItem::ContinueAsNew { instance, .. } => Some(instance),
        WorkItem::SubOrchCompleted { parent_instance, .. } | WorkItem::SubOrchFailed { parent_instance, .. } => {
            Some(parent_instance)
        }
        _ => None,
    }
}

/// Activities, column by column.
#[derive(Default)]
pub(crate) struct Activities {
    pub(crate) instance_ids: Vec<String>,
    pub(crate) execution_ids: Vec<i64>,
    pub(crate) activity_ids: Vec<i64>,
    pub(crate) tags: Vec<String>,
    pub(crate) sessions: Vec<String>,
    pub(crate) items: Vec<String>,
}

impl Activities {
    pub(crate) fn push(&mut self, operation: &str, item: &WorkItem) -> Result<(), Failure> {
        let WorkItem::ActivityExecute {
            instance,
            execution_id,
            id,
            session_id,
            tag,
            ..
        } = item
        else {
            return Err(Failure::permanent(
                operation,
                "only activities (ActivityExecute) go to the worker queue",
            ));
        };
        self.instance_ids
            .push(encode::key(operation, "instance id", instance)?.to_string());
        self.execution_ids
            .push(encode::id(operation, "execution id", *execution_id)?);
        self.activity_ids.push(encode::id(operation, "activity id", *id)?);
        self.tags.push(encode::routing_key(operation, "tag", tag.as_deref())?);
        self.sessions
            .push(encode::routing_key(operation, "session id", session_id.as_deref())?);
        self.items.push(json(operation, serde_json::to_string(item))?);
        Ok(())
    }
}

/// The completion of an activity: the instance it goes to, and its text.
pub(crate) fn completion(operation: &str, item: &WorkItem) -> Result<(String, String), Failure> {
    match item {
        WorkItem::ActivityCompleted { instance, .. } | WorkItem::ActivityFailed { instance, .. } => Ok((
            encode::key(operation, "instance id", instance)?.to_string(),
            json(operation, serde_json::to_string(item))?,
        )),
        _ => Err(Failure::permanent(
            operation,
            "an activity completes with ActivityCompleted or ActivityFailed",
        )),
    }
}

/// A serialization that went well. JSON escapes NUL, so the text can be stored as it is.
pub(crate) fn json(operation: &str, text: serde_json::Result<String>) -> Result<String, Failure> {
    text.map_err(|error| Failure::permanent(operation, format!("cannot be written as JSON: {error}")))
}
