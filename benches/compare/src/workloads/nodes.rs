//! Several nodes on one schema.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use duroxide::provider_stress_tests::{create_default_activities, create_default_orchestrations};
use duroxide::{Client, OrchestrationStatus};

use super::calls::load_of;
use super::{Chart, Metric, Point, Shape, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::load::{self, Recorder, Work};
use crate::record::Outcome;

const DISPATCHERS: usize = 4;

/// Each caller starts an orchestration through its node's client and waits for it.
struct Orchestrations {
    clients: Vec<Client>,
    timeout: Duration,
}

#[async_trait]
impl Work for Orchestrations {
    async fn once(&self, caller: usize, round: u64, recorder: &Recorder) {
        let client = &self.clients[caller % self.clients.len()];
        let instance = format!("node-{caller}-{round}");
        let started = client.start_orchestration(&instance, "FanoutOrchestration", r#"{"task_count":5}"#);
        if let Err(error) = started.await {
            recorder.fail(&error.to_string());
            tokio::time::sleep(Duration::from_millis(10)).await;
            return;
        }
        match client.wait_for_orchestration(&instance, self.timeout).await {
            Ok(OrchestrationStatus::Completed { .. }) => recorder.done(),
            Ok(other) => recorder.fail(&format!("{instance} ended as {other:?}")),
            Err(error) => recorder.fail(&error.to_string()),
        }
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
         through the clients of all nodes. The framework's stress test has no notion of nodes, so the driver is this \
         program's; orchestration and activities are the framework's."
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
        let work = Arc::new(Orchestrations {
            clients,
            timeout: context.scale.limit,
        });
        let callers = context.scale.pick(100, 5);
        let window = context.scale.window(0.5).max(Duration::from_secs(1));
        let load = load_of(context.scale, callers, window);
        let result = load::run(load, work, None).await;

        let mut outcome = Outcome {
            errors: result.errors + watches.iter().map(|watch| watch.errors.count()).sum::<u64>(),
            error: watches
                .iter()
                .find_map(|watch| watch.errors.first())
                .or(result.error.clone()),
            cut: result.cut,
            ..Outcome::default()
        };
        outcome.set("rate", result.rate());
        Ok(outcome)
    }
}
