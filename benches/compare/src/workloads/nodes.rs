//! Several nodes on one schema.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use duroxide::provider_stress_tests::{create_default_activities, create_default_orchestrations};
use duroxide::{Client, OrchestrationStatus};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Chart, Metric, Point, Shape, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::load::Errors;
use crate::record::Outcome;

const DISPATCHERS: usize = 4;

/// Starts orchestrations through the clients of all nodes and waits for them.
struct Driver {
    clients: Vec<Client>,
    /// No more are started then.
    end: Instant,
    patience: Duration,
    completed: AtomicU64,
    errors: Errors,
}

impl Driver {
    /// Keeps one orchestration in flight.
    async fn keep_one(&self, number: usize) {
        let client = &self.clients[number % self.clients.len()];
        for round in 0.. {
            if Instant::now() >= self.end {
                return;
            }
            if let Err(error) = self.once(client, &format!("node-{number}-{round}")).await {
                self.errors.add(&format!("{error:#}"));
                // Whoever fails at once must not keep a processor busy with failing.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    async fn once(&self, client: &Client, instance: &str) -> Result<()> {
        client
            .start_orchestration(instance, "FanoutOrchestration", r#"{"task_count":5}"#)
            .await?;
        let status = client.wait_for_orchestration(instance, self.patience).await?;
        if !matches!(status, OrchestrationStatus::Completed { .. }) {
            anyhow::bail!("{instance} ended as {status:?}");
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

pub struct Nodes;

#[async_trait]
impl Workload for Nodes {
    fn title(&self) -> &'static str {
        "Nodes"
    }

    fn about(&self) -> &'static str {
        "1, 2 and 4 nodes, each with a provider and a runtime of its own (4/4 dispatchers, default options), on one schema in \
         one process. 100 orchestrations of 5 activities that take no time are in flight, started and awaited evenly \
         through the clients of all nodes. As in the framework's stress test, the rate includes waiting for the last ones. \
         That test has no notion of nodes, so the driver is this program's; orchestration and activities are the framework's."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        Point::numbered(scale.pick(&[1, 2, 4], &[2]), "node", "nodes")
    }

    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric::higher("rate", "orchestrations/s")] }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "rate",
            title: "Orchestrations per second on several nodes",
            x: "nodes of 4/4 dispatchers",
            y: "orchestrations/s",
            shape: Shape::Bars,
            points: "",
        }]
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let mut clients = Vec::new();
        let mut watches = Vec::new();
        for _ in 0..point.count() {
            let (provider, watch) = context.open_watched().await?;
            clients.push(Client::new(provider.clone()));
            watches.push(watch);
            let orchestrations = create_default_orchestrations();
            context
                .start_runtime(provider, create_default_activities(0), orchestrations, DISPATCHERS)
                .await;
        }
        let clock = Instant::now();
        let driver = Arc::new(Driver {
            clients,
            end: clock + context.scale.window(0.4),
            patience: context.scale.limit,
            completed: AtomicU64::new(0),
            errors: Errors::default(),
        });
        let mut in_flight = JoinSet::new();
        for number in 0..context.scale.pick(100, 5) {
            let driver = driver.clone();
            in_flight.spawn(async move { driver.keep_one(number).await });
        }
        let finished = timeout(context.scale.limit, async {
            while in_flight.join_next().await.is_some() {}
        })
        .await;
        let took = clock.elapsed();
        in_flight.shutdown().await;

        let mut outcome = Outcome {
            errors: driver.errors.count() + watches.iter().map(|watch| watch.errors.count()).sum::<u64>(),
            error: watches
                .iter()
                .find_map(|watch| watch.errors.first())
                .or(driver.errors.first()),
            cut: finished.is_err(),
            ..Outcome::default()
        };
        outcome.set(
            "rate",
            driver.completed.load(Ordering::Relaxed) as f64 / took.as_secs_f64(),
        );
        Ok(outcome)
    }
}
