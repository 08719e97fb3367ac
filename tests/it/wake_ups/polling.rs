//! Whoever waits for an orchestration that ends in its own process hears of it at once, and asks seldom.

use std::time::Duration;

use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{OrchestrationStatus, Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};

use super::SOON;
use crate::batching::World;
use crate::fixtures::{LOCK, NOW, create};

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
    for (instance, input) in [("completes", "done"), ("fails", "fail")] {
        client
            .start_orchestration(instance, "Slow", input)
            .await
            .expect("start");
        let before = world.proxy.calls_of(READ);
        let waiting = client.clone();
        let status = tokio::spawn(async move { waiting.wait_for_orchestration(instance, SOON).await });
        match (input, status.await.expect("no panic").expect("status")) {
            ("done", OrchestrationStatus::Completed { output, .. }) => assert_eq!(output, "done"),
            ("fail", OrchestrationStatus::Failed { .. }) => {}
            (_, other) => panic!("{other:?}"),
        }
        let reads = world.proxy.calls_of(READ) - before;
        assert!(reads < 9, "{reads} reads");
    }
    runtime.shutdown(None).await;
}

/// Who fetches and reads needs what it reads.
#[tokio::test]
async fn whoever_fetches_reads_as_often_as_it_likes() {
    let world = World::new().await;
    create(&*world.provider, "i").await;
    let nothing = world.provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(nothing.expect("fetch").is_none());
    let before = world.proxy.calls_of(READ);
    let reads = async {
        for _ in 0..200 {
            world.provider.read("i").await.expect("read");
        }
    };
    // Held up for the shortest time each, they would take longer.
    tokio::time::timeout(Duration::from_secs(3), reads)
        .await
        .expect("not held up");
    assert_eq!(world.proxy.calls_of(READ) - before, 200);
}
