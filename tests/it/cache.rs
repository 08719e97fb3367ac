//! Histories that a process keeps in memory: whatever happens, a turn and a read get what the database has.

mod acks;
mod ahead;
mod changes;
mod memory;

use duroxide::Event;
use duroxide::EventKind;
use duroxide::providers::{ExecutionMetadata, OrchestrationItem, Provider, WorkItem};

use crate::fixtures::{self, Ack, LOCK, create, ending, named, raised, started, turn};

const INSTANCE: &str = "instance";

/// An event that says something.
fn noted(instance: &str, id: u64, note: &str) -> Event {
    let kind = EventKind::ExternalEvent {
        name: "note".to_string(),
        data: note.to_string(),
    };
    fixtures::event(instance, id, kind)
}

/// The next event of a history.
fn next(instance: &str, history: &[Event], note: &str) -> Event {
    noted(instance, history.last().map_or(1, |last| last.event_id() + 1), note)
}

/// Claims a turn of an instance that is idle.
async fn claim(provider: &dyn Provider, instance: &str) -> (OrchestrationItem, String) {
    let message = raised(instance, "go on");
    provider.enqueue_for_orchestrator(message, None).await.expect("enqueue");
    let (item, token, _) = turn(provider, LOCK).await;
    assert_eq!(item.instance, instance);
    (item, token)
}

async fn ack(
    provider: &dyn Provider,
    token: &str,
    events: Vec<Event>,
) -> Result<(), duroxide::providers::ProviderError> {
    let turn = Ack {
        events,
        ..Ack::default()
    };
    fixtures::ack(provider, token, turn).await
}

/// A turn that adds one event. Returns the history it was given.
async fn take_turn(provider: &dyn Provider, instance: &str, note: &str) -> Vec<Event> {
    let (item, token) = claim(provider, instance).await;
    assert_eq!(item.history_error, None);
    let event = next(instance, &item.history, note);
    ack(provider, &token, vec![event]).await.expect("ack");
    item.history
}

/// An instance with four events, all of which this process has in memory.
async fn create_cached(provider: &dyn Provider, instance: &str) {
    create(provider, instance).await;
    for note in ["two", "three", "four"] {
        take_turn(provider, instance, note).await;
    }
    assert_eq!(provider.read(instance).await.expect("read").len(), 4);
}

/// A turn that ends an execution; a message that starts the next is left.
async fn continue_as_new(provider: &dyn Provider, execution_id: u64) {
    let (item, token) = claim(provider, INSTANCE).await;
    let continued = WorkItem::ContinueAsNew {
        instance: INSTANCE.to_string(),
        orchestration: "Test".to_string(),
        input: format!("{}", execution_id + 1),
        version: Some("1.0.0".to_string()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        carry_forward_events: Vec::new(),
        initial_custom_status: None,
    };
    let last = Ack {
        execution_id: Some(execution_id),
        events: vec![next(INSTANCE, &item.history, "the end")],
        messages: vec![continued],
        metadata: ending("ContinuedAsNew"),
        ..Ack::default()
    };
    fixtures::ack(provider, &token, last).await.expect("ack");
}

/// Ends the first turn of an execution that continues another.
async fn ack_first_of(provider: &dyn Provider, token: &str, execution_id: u64) {
    let first = Ack {
        execution_id: Some(execution_id),
        events: vec![Event {
            execution_id,
            ..started(INSTANCE)
        }],
        metadata: ExecutionMetadata {
            status: Some("Running".to_string()),
            ..named()
        },
        ..Ack::default()
    };
    fixtures::ack(provider, token, first).await.expect("ack");
}

/// All of an execution, past every cache.
async fn stored(provider: &dyn Provider, instance: &str) -> Vec<Event> {
    provider.read_with_execution(instance, 1).await.expect("read")
}

/// A read, a turn, and then another read and turn of this process see what is stored.
async fn assert_sees_what_is_stored(provider: &dyn Provider, instance: &str) {
    for note in ["first look", "second look"] {
        let all = stored(provider, instance).await;
        assert_eq!(provider.read(instance).await.expect("read"), all, "read, {note}");
        assert_eq!(take_turn(provider, instance, note).await, all, "turn, {note}");
    }
}
