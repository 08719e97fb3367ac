//! Work items and events as the runtime writes them.

use std::time::Duration;

use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, SessionFetchConfig, WorkItem, current_build_version,
};
use duroxide::{Event, EventKind};

/// Name of every orchestration that is driven through the trait, without a runtime.
pub const ORCHESTRATION: &str = "Bench";
const VERSION: &str = "1.0.0";
/// A lease that outlasts any measured call; the runtime's own default is shorter, and renewed.
pub const LOCK: Duration = Duration::from_secs(30);

pub fn start(instance: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_string(),
        orchestration: ORCHESTRATION.to_string(),
        input: "{}".to_string(),
        version: Some(VERSION.to_string()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

pub fn external_event(instance: &str) -> WorkItem {
    WorkItem::ExternalRaised {
        instance: instance.to_string(),
        name: "Ping".to_string(),
        data: "{}".to_string(),
    }
}

pub fn timer(instance: &str, id: u64, fire_at_ms: u64) -> WorkItem {
    WorkItem::TimerFired {
        instance: instance.to_string(),
        execution_id: 1,
        id,
        fire_at_ms,
    }
}

pub fn activity(instance: &str, id: u64) -> WorkItem {
    routed_activity(instance, id, None, None)
}

pub fn routed_activity(instance: &str, id: u64, tag: Option<&str>, session: Option<&str>) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.to_string(),
        execution_id: 1,
        id,
        name: "Work".to_string(),
        input: "{}".to_string(),
        session_id: session.map(str::to_string),
        tag: tag.map(str::to_string),
    }
}

/// The completion of an activity as its worker would send it; `None` if `item` is no activity.
pub fn completion_of(item: WorkItem) -> Option<WorkItem> {
    match item {
        WorkItem::ActivityExecute {
            instance,
            execution_id,
            id,
            ..
        } => Some(WorkItem::ActivityCompleted {
            instance,
            execution_id,
            id,
            result: "done".to_string(),
        }),
        _ => None,
    }
}

fn event(id: u64, instance: &str, source: Option<u64>, kind: EventKind) -> Event {
    Event::with_event_id(id, instance, 1, source, kind)
}

pub fn started_event(instance: &str) -> Event {
    let kind = EventKind::OrchestrationStarted {
        name: ORCHESTRATION.to_string(),
        version: VERSION.to_string(),
        input: "{}".to_string(),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        carry_forward_events: None,
        initial_custom_status: None,
    };
    event(1, instance, None, kind)
}

pub fn scheduled_event(instance: &str, id: u64) -> Event {
    let kind = EventKind::ActivityScheduled {
        name: "Work".to_string(),
        input: "{}".to_string(),
        session_id: None,
        tag: None,
    };
    event(id, instance, None, kind)
}

/// What the first turn of the measured orchestration writes.
pub fn first_events(instance: &str) -> Vec<Event> {
    vec![started_event(instance), scheduled_event(instance, 2)]
}

/// `count` events with the ids from `first` on, alternately an activity scheduled and completed.
pub fn more_events(instance: &str, first: u64, count: u64) -> Vec<Event> {
    (first..first + count)
        .map(|id| {
            if (id - first).is_multiple_of(2) {
                scheduled_event(instance, id)
            } else {
                let result = "x".repeat(100);
                event(id, instance, Some(id - 1), EventKind::ActivityCompleted { result })
            }
        })
        .collect()
}

/// What the runtime sends with the ack of a first turn.
pub fn first_metadata() -> ExecutionMetadata {
    ExecutionMetadata {
        orchestration_name: Some(ORCHESTRATION.to_string()),
        orchestration_version: Some(VERSION.to_string()),
        pinned_duroxide_version: Some(current_build_version()),
        ..ExecutionMetadata::default()
    }
}

/// What the runtime's orchestration dispatcher passes to each fetch.
pub fn runtime_filter() -> DispatcherCapabilityFilter {
    DispatcherCapabilityFilter::default_for_current_build()
}

/// What worker number `worker` of a runtime passes to each fetch: without a configured node id, each worker is an owner
/// of sessions of its own.
pub fn runtime_session(worker: usize) -> SessionFetchConfig {
    SessionFetchConfig {
        owner_id: format!("work-{worker}-compare"),
        lock_timeout: Duration::from_secs(30),
    }
}
