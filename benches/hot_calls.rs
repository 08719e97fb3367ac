//! What each hot call costs, one caller at a time: `PG_DURABLE=1 scripts/with-postgres cargo bench`.
//!
//! Times include the round trip and, for enqueue and ack, the flush of a durable commit. They say nothing about
//! throughput under load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use duroxide::providers::{ExecutionMetadata, Provider, TagFilter, WorkItem};
use duroxide::{Event, EventKind};
use duroxide_postgres::PostgresProvider;
use tokio::runtime::Runtime;

const LOCK: Duration = Duration::from_secs(60);

fn start(instance: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_string(),
        orchestration: "Bench".to_string(),
        input: "{}".to_string(),
        version: Some("1.0.0".to_string()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

fn activity(instance: &str) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.to_string(),
        execution_id: 1,
        id: 2,
        name: "Work".to_string(),
        input: "{}".to_string(),
        session_id: None,
        tag: None,
    }
}

fn first_events(instance: &str) -> Vec<Event> {
    let started = EventKind::OrchestrationStarted {
        name: "Bench".to_string(),
        version: "1.0.0".to_string(),
        input: "{}".to_string(),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        carry_forward_events: None,
        initial_custom_status: None,
    };
    let scheduled = EventKind::ActivityScheduled {
        name: "Work".to_string(),
        input: "{}".to_string(),
        session_id: None,
        tag: None,
    };
    vec![
        Event::with_event_id(1, instance, 1, None, started),
        Event::with_event_id(2, instance, 1, None, scheduled),
    ]
}

fn named() -> ExecutionMetadata {
    ExecutionMetadata {
        orchestration_name: Some("Bench".to_string()),
        orchestration_version: Some("1.0.0".to_string()),
        ..ExecutionMetadata::default()
    }
}

/// How long each step of `count` turns took together.
#[derive(Default)]
struct Steps {
    enqueue: Duration,
    fetch: Duration,
    renew: Duration,
    ack: Duration,
}

async fn turns(provider: &PostgresProvider, count: u64) -> Steps {
    let mut steps = Steps::default();
    for _ in 0..count {
        let instance = uuid::Uuid::new_v4().to_string();
        let clock = Instant::now();
        provider
            .enqueue_for_orchestrator(start(&instance), None)
            .await
            .expect("enqueue");
        steps.enqueue += clock.elapsed();
        let clock = Instant::now();
        let (_, token, _) = provider
            .fetch_orchestration_item(LOCK, Duration::ZERO, None)
            .await
            .expect("fetch")
            .expect("a turn");
        steps.fetch += clock.elapsed();
        let clock = Instant::now();
        provider
            .renew_orchestration_item_lock(&token, LOCK)
            .await
            .expect("renew");
        steps.renew += clock.elapsed();
        let clock = Instant::now();
        provider
            .ack_orchestration_item(
                &token,
                1,
                first_events(&instance),
                vec![activity(&instance)],
                vec![],
                named(),
                vec![],
            )
            .await
            .expect("ack");
        steps.ack += clock.elapsed();
    }
    steps
}

async fn activities(provider: &PostgresProvider, count: u64) -> Steps {
    let mut steps = Steps::default();
    for _ in 0..count {
        let instance = uuid::Uuid::new_v4().to_string();
        let clock = Instant::now();
        provider.enqueue_for_worker(activity(&instance)).await.expect("enqueue");
        steps.enqueue += clock.elapsed();
        let clock = Instant::now();
        let (_, token, _) = provider
            .fetch_work_item(LOCK, Duration::ZERO, None, &TagFilter::DefaultOnly)
            .await
            .expect("fetch")
            .expect("an activity");
        steps.fetch += clock.elapsed();
        let clock = Instant::now();
        provider.renew_work_item_lock(&token, LOCK).await.expect("renew");
        steps.renew += clock.elapsed();
        let clock = Instant::now();
        let completed = WorkItem::ActivityCompleted {
            instance,
            execution_id: 1,
            id: 2,
            result: "done".to_string(),
        };
        provider.ack_work_item(&token, Some(completed)).await.expect("ack");
        steps.ack += clock.elapsed();
    }
    steps
}

/// One step's name, and its share.
type Step = (&'static str, fn(&Steps) -> Duration);

fn hot_calls(criterion: &mut Criterion) {
    let url = std::env::var("DATABASE_URL").expect("run with `scripts/with-postgres cargo bench`");
    let runtime = Runtime::new().expect("tokio");
    let schema = format!("bench_{}", uuid::Uuid::new_v4().simple());
    let provider = runtime
        .block_on(PostgresProvider::builder(&url).schema(&schema).connect())
        .map(Arc::new)
        .expect("provider");

    let steps: [Step; 4] = [
        ("enqueue", |steps| steps.enqueue),
        ("fetch", |steps| steps.fetch),
        ("renew", |steps| steps.renew),
        ("ack", |steps| steps.ack),
    ];
    let mut group = criterion.benchmark_group("turn");
    for (name, step) in steps {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| step(&runtime.block_on(turns(&provider, count))));
        });
    }
    group.finish();
    // The turns above left activities behind; they must not be first in line.
    runtime.block_on(async {
        while let Some((_, token, _)) = provider
            .fetch_work_item(LOCK, Duration::ZERO, None, &TagFilter::Any)
            .await
            .expect("fetch")
        {
            provider.ack_work_item(&token, None).await.expect("ack");
        }
    });
    let mut group = criterion.benchmark_group("activity");
    for (name, step) in steps {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| step(&runtime.block_on(activities(&provider, count))));
        });
    }
    group.finish();
    let instance = runtime.block_on(async {
        let instance = "read".to_string();
        let events = (1..=100)
            .map(|id| Event::with_event_id(id, &instance, 1, None, first_events(&instance)[1].kind.clone()))
            .collect();
        provider
            .append_with_execution(&instance, 1, events)
            .await
            .expect("append");
        instance
    });
    criterion.bench_function("read 100 events", |bencher| {
        bencher.iter(|| runtime.block_on(provider.read(&instance)).expect("read"));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = hot_calls
}
criterion_main!(benches);
