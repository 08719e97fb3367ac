//! There is a way for one turn, or activity, or read, and a way for many: they come to the same.

mod reads;

use std::collections::BTreeMap;

use duroxide::providers::{ExecutionMetadata, OrchestrationItem, Provider, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};
use futures_util::future::join_all;

use super::{ACTIVITY_ACKS, TURN_ACKS, World, together};
use crate::fixtures::{
    LOCK, activity, child_start, completed, ending, event, named, raised, routed_activity, scheduled, start, started,
    timer, turn, work,
};

/// Far in the future.
const LATER_MS: u64 = 32_503_680_000_000;

/// Everything that a turn leaves behind, but for ids, leases and times.
const TRACES: &[&str] = &[
    "select concat_ws(' ', instance_id, execution_id, event_id, ack_id is not null, event_data) from history",
    "select concat_ws(' ', instance_id, execution_id, status, output, completed_at is not null) from executions",
    "select concat_ws(' ', instance_id, orchestration_name, orchestration_version, current_execution_id, \
            parent_instance_id, custom_status, custom_status_version) from instances",
    "select concat_ws(' ', instance_id, execution_id, activity_id, tag, session_id, work_item, lease is null) \
       from worker_queue",
    "select concat_ws(' ', instance_id, kind, visible_at <= clock_timestamp(), attempt_count, work_item) \
       from orchestrator_queue",
    "select concat_ws(' ', instance_id, key, value) from kv_store",
    "select concat_ws(' ', instance_id, key, value) from kv_delta",
    "select concat_ws(' ', instance_id, pinned_version, lease is null, available_at = 'infinity', \
            available_at <= clock_timestamp(), cached_by is null, cached_execution_id, cached_event_id, claimed_ids, \
            claimed_until is null) from mailboxes",
];

async fn traces(world: &World) -> Vec<String> {
    let mut traces = Vec::new();
    for query in TRACES {
        let rows = world.admin.query(&format!("{query} order by 1"), &[]).await;
        let rows = rows.expect(query);
        traces.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }
    traces
}

/// The end of a turn.
#[derive(Clone, Default)]
struct End {
    execution_id: Option<u64>,
    events: Vec<Event>,
    activities: Vec<WorkItem>,
    messages: Vec<WorkItem>,
    metadata: ExecutionMetadata,
    cancelled: Vec<ScheduledActivityIdentifier>,
}

/// First and second ones, by instance.
type Turns = (BTreeMap<String, End>, BTreeMap<String, End>);

fn set(instance: &str, id: u64, key: &str) -> Event {
    let kind = EventKind::KeyValueSet {
        key: key.to_string(),
        value: format!("{id}"),
        last_updated_at_ms: 7,
    };
    event(instance, id, kind)
}

fn status(instance: &str, id: u64) -> Event {
    let kind = EventKind::CustomStatusUpdated {
        status: Some(format!("status {id}")),
    };
    event(instance, id, kind)
}

/// First turns of new instances.
fn first_turns() -> BTreeMap<String, End> {
    let first = |name: &str, end: End| {
        let mut events = vec![started(name)];
        events.extend(end.events);
        let metadata = if end.metadata.orchestration_name.is_none() {
            named()
        } else {
            end.metadata
        };
        let end = End {
            events,
            metadata,
            ..end
        };
        (name.to_string(), end)
    };
    BTreeMap::from([
        first("plain", End::default()),
        first(
            "activities",
            End {
                events: vec![scheduled("activities", 2), scheduled("activities", 3)],
                activities: vec![
                    activity("activities", 2),
                    routed_activity("activities", 3, Some("gpu"), Some("session")),
                ],
                ..End::default()
            },
        ),
        first(
            "messages",
            End {
                messages: vec![
                    raised("plain", "from another"),
                    raised("zebra", "to nobody"),
                    raised("messages", "to itself"),
                    timer("messages", LATER_MS),
                ],
                ..End::default()
            },
        ),
        first(
            "parent",
            End {
                messages: vec![child_start("parent::child", Some("parent"))],
                ..End::default()
            },
        ),
        first(
            "values",
            End {
                events: vec![set("values", 2, "a"), set("values", 3, "b"), status("values", 4)],
                ..End::default()
            },
        ),
        first(
            "pinned",
            End {
                metadata: ExecutionMetadata {
                    pinned_duroxide_version: Some(semver::Version::new(0, 1, 32)),
                    ..named()
                },
                ..End::default()
            },
        ),
        first(
            "remembers",
            End {
                events: vec![set("remembers", 2, "a")],
                ..End::default()
            },
        ),
        first(
            "done",
            End {
                events: vec![set("done", 2, "kept")],
                metadata: ending("Completed"),
                ..End::default()
            },
        ),
        (
            "nothing".to_string(),
            End {
                metadata: ExecutionMetadata::default(),
                ..End::default()
            },
        ),
    ])
}

/// The turns after them.
fn second_turns() -> BTreeMap<String, End> {
    let cancelled = |activity_id| ScheduledActivityIdentifier {
        instance: "activities".to_string(),
        execution_id: 1,
        activity_id,
    };
    BTreeMap::from([
        (
            "plain".to_string(),
            End {
                metadata: ending("Failed"),
                ..End::default()
            },
        ),
        (
            "activities".to_string(),
            End {
                events: vec![scheduled("activities", 4)],
                activities: vec![activity("activities", 4)],
                cancelled: vec![cancelled(3), cancelled(99)],
                ..End::default()
            },
        ),
        (
            "messages".to_string(),
            End {
                execution_id: Some(2),
                events: vec![Event::with_event_id(1, "messages", 2, None, started("messages").kind)],
                messages: vec![raised("parent", "x")],
                metadata: named(),
                ..End::default()
            },
        ),
        (
            "values".to_string(),
            End {
                events: vec![
                    event("values", 5, EventKind::KeyValuesCleared),
                    set("values", 6, "c"),
                    status("values", 7),
                ],
                metadata: ending("ContinuedAsNew"),
                ..End::default()
            },
        ),
        (
            "pinned".to_string(),
            End {
                events: vec![set("pinned", 2, "a")],
                ..End::default()
            },
        ),
        (
            "remembers".to_string(),
            End {
                metadata: ending("Completed"),
                ..End::default()
            },
        ),
    ])
}

/// What a turn is given, without what differs each time.
fn given(item: &OrchestrationItem) -> String {
    let mut values: Vec<_> = item
        .kv_snapshot
        .iter()
        .map(|(key, entry)| (key, &entry.value))
        .collect();
    values.sort();
    let OrchestrationItem {
        instance,
        orchestration_name,
        execution_id,
        version,
        history,
        messages,
        history_error,
        ..
    } = item;
    format!(
        "{instance} {orchestration_name} {execution_id} {version} {history:?} {messages:?} {history_error:?} {values:?}"
    )
}

/// Runs the turns of these instances, each alone or all together, and returns what they were given.
async fn run(world: &World, ends: &BTreeMap<String, End>, alone: bool) -> Vec<String> {
    let fetched: Vec<_> = if alone {
        let mut fetched = Vec::new();
        for _ in ends {
            fetched.push(turn(&*world.provider, LOCK).await);
        }
        fetched
    } else {
        join_all(ends.iter().map(|_| turn(&*world.provider, LOCK))).await
    };
    let mut seen: Vec<_> = fetched.iter().map(|(item, _, _)| given(item)).collect();
    seen.sort();
    let acks = fetched.into_iter().map(|(item, token, attempt)| {
        assert_eq!(attempt, 1, "{}", item.instance);
        let end = ends[&item.instance].clone();
        let provider = world.provider.clone();
        async move {
            provider
                .ack_orchestration_item(
                    &token,
                    end.execution_id.unwrap_or(1),
                    end.events,
                    end.activities,
                    end.messages,
                    end.metadata,
                    end.cancelled,
                )
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", item.instance));
        }
    });
    if alone {
        for ack in acks {
            ack.await;
        }
    } else {
        let calls = world.proxy.calls_of(TURN_ACKS);
        together(world, TURN_ACKS, acks.collect::<Vec<_>>()).await;
        assert_eq!(world.proxy.calls_of(TURN_ACKS), calls + 2);
    }
    seen
}

async fn enqueue(world: &World, items: impl IntoIterator<Item = WorkItem>, alone: bool) {
    let sent = items
        .into_iter()
        .map(|item| world.provider.enqueue_for_orchestrator(item, None));
    if alone {
        for sent in sent {
            sent.await.expect("enqueue");
        }
    } else {
        for sent in join_all(sent).await {
            sent.expect("enqueue");
        }
    }
}

/// Runs first and second turns, and returns what they were given and left behind.
async fn run_all(world: &World, (first, second): &Turns, alone: bool) -> Vec<String> {
    enqueue(world, first.keys().map(|name| start(name)), alone).await;
    let mut seen = run(world, first, alone).await;
    seen.extend(traces(world).await);
    // Those that have something to do get it anew, so that the same turns are due in both.
    world
        .execute(
            "delete from orchestrator_queue where visible_at <= clock_timestamp()",
            &[],
        )
        .await;
    world
        .execute(
            "update mailboxes set available_at = 'infinity' where lease is null",
            &[],
        )
        .await;
    enqueue(world, second.keys().map(|name| raised(name, "go on")), alone).await;
    seen.extend(run(world, second, alone).await);
    seen.extend(traces(world).await);
    seen
}

#[tokio::test]
async fn turns_leave_the_same_behind() {
    let turns = (first_turns(), second_turns());
    let alone = run_all(&World::new().await, &turns, true).await;
    let together = run_all(&World::new().await, &turns, false).await;
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(alone, together);
    }
    assert_eq!(alone.len(), together.len());
}

#[tokio::test]
async fn activities_leave_the_same_behind() {
    // More than are taken one by one when they come together.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let mut left = Vec::new();
    for alone in [true, false] {
        let world = World::new().await;
        for name in names {
            let sent = world.provider.enqueue_for_worker(activity(name, 1)).await;
            sent.expect("enqueue");
        }
        let mut fetched = Vec::new();
        if alone {
            for _ in names {
                fetched.push(work(&*world.provider, LOCK).await);
            }
        } else {
            fetched.extend(join_all(names.iter().map(|_| work(&*world.provider, LOCK))).await);
        }
        let mut seen: Vec<_> = fetched
            .iter()
            .map(|(item, _, attempt)| format!("{item:?} {attempt}"))
            .collect();
        seen.sort();
        let acks = fetched.into_iter().map(|(item, token, _)| {
            let WorkItem::ActivityExecute { instance, .. } = item else {
                panic!("not an activity: {item:?}");
            };
            let provider = world.provider.clone();
            // One of them has no completion, and one sends it elsewhere.
            let completion = match instance.as_str() {
                "c" => None,
                "d" => Some(completed("a", 1)),
                _ => Some(completed(&instance, 1)),
            };
            async move { provider.ack_work_item(&token, completion).await.expect("ack") }
        });
        if alone {
            for ack in acks {
                ack.await;
            }
        } else {
            let calls = world.proxy.calls_of(ACTIVITY_ACKS);
            together(&world, ACTIVITY_ACKS, acks.collect::<Vec<_>>()).await;
            assert_eq!(world.proxy.calls_of(ACTIVITY_ACKS), calls + 2);
        }
        seen.extend(traces(&world).await);
        left.push(seen);
    }
    assert_eq!(left[0], left[1]);
}
