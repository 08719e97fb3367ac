//! Whoever waits for an orchestration that ends in its own process hears of it at once, and asks seldom.

use std::time::Duration;

use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{OrchestrationStatus, Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, EventKind, OrchestrationContext, OrchestrationRegistry};

use super::{SOON, eventually};
use crate::batching::World;

const READ: &str = ".read(";

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Slow", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Sleep", input).await
        })
        .build()
}

fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("Sleep", |_: ActivityContext, input: String| async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            match input.as_str() {
                "fail" => Err("as asked".to_string()),
                _ => Ok(input),
            }
        })
        .build()
}

/// Left to itself the client would ask at 0, 0, 5, 15, 35, 75, 155, 255, 355 and 455 ms, and once more for the worker's sake.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_an_end_here_asks_seldom() {
    let world = World::new().await;
    let options = RuntimeOptions {
        orchestration_concurrency: 1,
        worker_concurrency: 1,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::start_with_options(world.provider.clone(), activities(), orchestrations(), options).await;
    let client = Client::new(world.provider.clone());
    for input in ["done", "fail"] {
        let mut fewest = usize::MAX;
        // On a busy machine the first two reads may be too far apart to show that somebody polls.
        for attempt in 0..10 {
            let instance = format!("{input}-{attempt}");
            let started = client.start_orchestration(&instance, "Slow", input).await;
            started.expect("start");
            let before = world.proxy.calls_of(READ);
            let waiting = client.clone();
            let status = tokio::spawn(async move { waiting.wait_for_orchestration(&instance, SOON).await });
            match (input, status.await.expect("no panic").expect("status")) {
                ("done", OrchestrationStatus::Completed { output, .. }) => assert_eq!(output, "done"),
                ("fail", OrchestrationStatus::Failed { .. }) => {}
                (_, other) => panic!("{other:?}"),
            }
            fewest = fewest.min(world.proxy.calls_of(READ) - before);
            if fewest < 9 {
                break;
            }
        }
        assert!(fewest < 9, "{fewest} reads");
    }
    runtime.shutdown(None).await;
}

/// A status, and then a short activity.
fn with_status() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Status", |context: OrchestrationContext, input: String| async move {
            context.set_custom_status("half-way");
            context.schedule_activity("Short", input).await
        })
        .build()
}

/// The ack of the last turn tells whoever waits for it: after the read that shows that somebody waits there is no other.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_an_end_here_is_told_of_it() {
    let world = World::new().await;
    let short = ActivityRegistry::builder()
        .register("Short", |_: ActivityContext, input: String| async move { Ok(input) })
        .build();
    let runtime = Runtime::start_with_store(world.provider.clone(), short, with_status()).await;
    let client = Client::new(world.provider.clone());
    let mut fewest = usize::MAX;
    // On a busy machine it may take longer than a read waits, and the first two reads may be too far apart to show that somebody polls.
    for attempt in 0..100 {
        let instance = format!("i-{attempt}");
        let started = client.start_orchestration(&instance, "Status", "done").await;
        started.expect("start");
        let before = world.proxy.calls_of(READ);
        let (waiting, awaited) = (client.clone(), instance.clone());
        let status = tokio::spawn(async move { waiting.wait_for_orchestration(&awaited, SOON).await });
        let status = status.await.expect("no panic").expect("status");
        fewest = fewest.min(world.proxy.calls_of(READ) - before);
        let OrchestrationStatus::Completed {
            output,
            custom_status,
            custom_status_version,
        } = status
        else {
            panic!("{status:?}");
        };
        assert_eq!(
            (output.as_str(), custom_status.as_deref(), custom_status_version),
            ("done", Some("half-way"), 1)
        );
        if fewest == 1 {
            break;
        }
    }
    assert_eq!(fewest, 1);
    runtime.shutdown(None).await;
}

/// What a process has in memory is not what the database has: then that is asked.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_an_end_is_told_what_the_database_has() {
    let world = World::new().await;
    let runtime = Runtime::start_with_store(world.provider.clone(), activities(), orchestrations()).await;
    let client = Client::new(world.provider.clone());
    client.start_orchestration("i", "Slow", "done").await.expect("start");
    let provider = world.provider.clone();
    let waiting = tokio::spawn(async move {
        loop {
            let history = provider.read("i").await.expect("read");
            let last = history.last().map(|event| event.kind.clone());
            if matches!(last, Some(EventKind::OrchestrationCompleted { .. })) {
                return history;
            }
        }
    });
    eventually("the first turn", || async {
        let history = "select count(*) from history where event_id = 1";
        (world.number(history, &[]).await == 1).then_some(())
    })
    .await;
    let changed =
        "update history set event_data = regexp_replace(event_data, '\"timestamp_ms\":\\d+', '\"timestamp_ms\":7')";
    world.execute(changed, &[]).await;
    let history = tokio::time::timeout(SOON, waiting).await;
    let history = history.expect("in time").expect("no panic");
    assert_eq!(history[0].timestamp_ms, 7, "{history:?}");
    runtime.shutdown(None).await;
}
