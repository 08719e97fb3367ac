//! Whoever waits for an orchestration that ends in its own process hears of it at once, and asks seldom.

use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{OrchestrationStatus, Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};

use super::SOON;
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
