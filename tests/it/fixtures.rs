//! Work items, events and turns for tests that talk to the provider directly.

use std::time::Duration;

use duroxide::providers::{ExecutionMetadata, OrchestrationItem, Provider, ProviderError, TagFilter, WorkItem};
use duroxide::{Event, EventKind};

pub const LOCK: Duration = Duration::from_secs(30);
pub const NOW: Duration = Duration::ZERO;

pub fn start(instance: &str) -> WorkItem {
    child_start(instance, None)
}

pub fn child_start(instance: &str, parent: Option<&str>) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_string(),
        orchestration: "Test".to_string(),
        input: "{}".to_string(),
        version: Some("1.0.0".to_string()),
        parent_instance: parent.map(str::to_string),
        parent_id: parent.map(|_| 2),
        parent_execution_id: parent.map(|_| 1),
        execution_id: 1,
    }
}

pub fn raised(instance: &str, data: &str) -> WorkItem {
    WorkItem::ExternalRaised {
        instance: instance.to_string(),
        name: "event".to_string(),
        data: data.to_string(),
    }
}

pub fn timer(instance: &str, fire_at_ms: u64) -> WorkItem {
    WorkItem::TimerFired {
        instance: instance.to_string(),
        execution_id: 1,
        id: 2,
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

pub fn completed(instance: &str, id: u64) -> WorkItem {
    WorkItem::ActivityCompleted {
        instance: instance.to_string(),
        execution_id: 1,
        id,
        result: "done".to_string(),
    }
}

pub fn event(instance: &str, id: u64, kind: EventKind) -> Event {
    Event::with_event_id(id, instance, 1, None, kind)
}

pub fn started(instance: &str) -> Event {
    event(
        instance,
        1,
        EventKind::OrchestrationStarted {
            name: "Test".to_string(),
            version: "1.0.0".to_string(),
            input: "{}".to_string(),
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
            carry_forward_events: None,
            initial_custom_status: None,
        },
    )
}

pub fn scheduled(instance: &str, id: u64) -> Event {
    event(
        instance,
        id,
        EventKind::ActivityScheduled {
            name: "Work".to_string(),
            input: "{}".to_string(),
            session_id: None,
            tag: None,
        },
    )
}

pub fn named() -> ExecutionMetadata {
    ExecutionMetadata {
        orchestration_name: Some("Test".to_string()),
        orchestration_version: Some("1.0.0".to_string()),
        ..ExecutionMetadata::default()
    }
}

pub fn ending(status: &str) -> ExecutionMetadata {
    ExecutionMetadata {
        status: Some(status.to_string()),
        output: Some("out".to_string()),
        ..named()
    }
}

/// What an ack can carry, with everything empty by default.
#[derive(Default, Clone)]
pub struct Ack {
    pub execution_id: Option<u64>,
    pub events: Vec<Event>,
    pub activities: Vec<WorkItem>,
    pub messages: Vec<WorkItem>,
    pub metadata: ExecutionMetadata,
}

pub async fn ack(provider: &dyn Provider, token: &str, ack: Ack) -> Result<(), ProviderError> {
    provider
        .ack_orchestration_item(
            token,
            ack.execution_id.unwrap_or(1),
            ack.events,
            ack.activities,
            ack.messages,
            ack.metadata,
            vec![],
        )
        .await
}

/// Claims a turn that must be there.
pub async fn turn(provider: &dyn Provider, lock: Duration) -> (OrchestrationItem, String, u32) {
    provider
        .fetch_orchestration_item(lock, NOW, None)
        .await
        .expect("fetch")
        .expect("a turn")
}

/// Claims an untagged activity that must be there.
pub async fn work(provider: &dyn Provider, lock: Duration) -> (WorkItem, String, u32) {
    provider
        .fetch_work_item(lock, NOW, None, &TagFilter::DefaultOnly)
        .await
        .expect("fetch")
        .expect("an activity")
}

/// An instance that had its first turn and waits.
pub async fn create(provider: &dyn Provider, instance: &str) {
    provider
        .enqueue_for_orchestrator(start(instance), None)
        .await
        .expect("enqueue");
    let (item, token, _) = turn(provider, LOCK).await;
    assert_eq!(item.instance, instance, "only for an empty queue");
    let first = Ack {
        events: vec![started(instance)],
        metadata: named(),
        ..Ack::default()
    };
    ack(provider, &token, first).await.expect("ack");
}
