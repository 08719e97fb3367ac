//! The real runtime through an outage of each kind, and the death of all its backends, in the middle of its work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duroxide::providers::Provider;
use duroxide::runtime::registry::{ActivityRegistry, OrchestrationRegistry};
use duroxide::runtime::{OrchestrationStatus, Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, EventKind, OrchestrationContext};

use super::World;
use crate::proxy::Mode;

const OUTAGE: Duration = Duration::from_secs(5);
/// Renewed more often than an outage lasts, so that each outage meets a renewal of the long activity; what is left then
/// outlasts the outage.
const LEASE: Duration = Duration::from_secs(15);
const RENEWAL_BUFFER: Duration = Duration::from_secs(11);
const CHAINS: usize = 6;
const STEPS: usize = 30;
const STEP: Duration = Duration::from_millis(100);

/// What the activities saw.
#[derive(Default)]
struct Seen {
    runs: Mutex<HashMap<(String, String), usize>>,
    cancelled: AtomicUsize,
}

impl Seen {
    /// Runs an activity for a time; its result is its input.
    async fn run(&self, context: &ActivityContext, input: String, time: Duration) -> Result<String, String> {
        let key = (context.instance_id().to_string(), input.clone());
        *self.runs.lock().expect("runs").entry(key).or_default() += 1;
        tokio::select! {
            () = context.cancelled() => {
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                Err("cancelled".to_string())
            }
            () = tokio::time::sleep(time) => Ok(input),
        }
    }
}

fn activities(seen: &Arc<Seen>, long: Duration) -> ActivityRegistry {
    let (short_seen, long_seen) = (Arc::clone(seen), Arc::clone(seen));
    ActivityRegistry::builder()
        .register("Short", move |context: ActivityContext, input: String| {
            let seen = Arc::clone(&short_seen);
            async move { seen.run(&context, input, STEP).await }
        })
        .register("Long", move |context: ActivityContext, input: String| {
            let seen = Arc::clone(&long_seen);
            async move { seen.run(&context, input, long).await }
        })
        .build()
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Chain", |context: OrchestrationContext, _: String| async move {
            let mut done = 0;
            for step in 0..STEPS {
                let result = context.schedule_activity("Short", step.to_string()).await?;
                done += usize::from(result == step.to_string());
            }
            Ok(done.to_string())
        })
        .register("Wait", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Long", input).await
        })
        .build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_in_the_middle_of_everything() {
    // Before the runtime installs one that prints every failed attempt.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let world = World::new().await;
    let seen = Arc::new(Seen::default());
    // From before the first outage until after the second one.
    let long = 2 * OUTAGE + Duration::from_secs(8);
    let options = RuntimeOptions {
        orchestration_concurrency: 3,
        worker_concurrency: CHAINS + 1,
        orchestrator_lock_timeout: LEASE,
        orchestrator_lock_renewal_buffer: RENEWAL_BUFFER,
        worker_lock_timeout: LEASE,
        worker_lock_renewal_buffer: RENEWAL_BUFFER,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::start_with_options(
        world.provider.clone(),
        activities(&seen, long),
        orchestrations(),
        options,
    )
    .await;

    // Around the proxy: what is tested is the runtime's provider.
    let observer = world.schema.provider().await;
    let client = Client::new(observer.clone());
    let mut instances: Vec<String> = (0..CHAINS).map(|number| format!("chain-{number}")).collect();
    client
        .start_orchestration("long", "Wait", "waited")
        .await
        .expect("start");
    for instance in &instances {
        client.start_orchestration(instance, "Chain", "").await.expect("start");
    }
    instances.push("long".to_string());

    let running = || async { seen.runs.lock().expect("runs").len() };
    super::eventually("every orchestration runs", || async {
        (running().await > 3 * CHAINS).then_some(())
    })
    .await;
    for trouble in [Some(Mode::Refuse), None, Some(Mode::AcceptThenClose)] {
        let before = running().await;
        match trouble {
            Some(mode) => {
                world.proxy.set(mode).await;
                tokio::time::sleep(OUTAGE).await;
                world.proxy.set(Mode::Pass).await;
            }
            None => world.terminate_all().await,
        }
        super::eventually("work goes on", || async {
            (running().await > before + CHAINS).then_some(())
        })
        .await;
    }

    for instance in &instances {
        let status = client
            .wait_for_orchestration(instance, Duration::from_secs(60))
            .await
            .expect("an end");
        let OrchestrationStatus::Completed { output, .. } = status else {
            panic!("{instance}: {status:?}");
        };
        let expected = if instance == "long" {
            "waited".to_string()
        } else {
            STEPS.to_string()
        };
        assert_eq!(output, expected, "{instance}");
    }
    assert_eq!(seen.cancelled.load(Ordering::Relaxed), 0, "activities cancelled");
    let runs = seen.runs.lock().expect("runs").clone();
    assert_eq!(runs.len(), CHAINS * STEPS + 1);
    assert!(runs.values().all(|count| *count == 1), "run more than once: {runs:?}");

    for instance in &instances {
        let history = observer.read(instance).await.expect("history");
        let mut completions = HashMap::new();
        for event in &history {
            if let EventKind::ActivityCompleted { .. } = event.kind {
                *completions.entry(event.source_event_id).or_insert(0) += 1;
            }
        }
        let steps = if instance == "long" { 1 } else { STEPS };
        assert_eq!(completions.len(), steps, "{instance}");
        assert!(
            completions.values().all(|count| *count == 1),
            "{instance}: {completions:?}"
        );
    }
    assert_eq!(world.number("select count(*) from worker_queue", &[]).await, 0);
    runtime.shutdown(Some(5_000)).await;
}
