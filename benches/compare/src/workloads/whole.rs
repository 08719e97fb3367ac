//! One big orchestration at a time: a chain of executions, and a fan-out.

use std::time::Instant;

use anyhow::Result;
use async_trait::async_trait;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use tokio::time::timeout;

use super::{Metric, Point, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::record::Outcome;
use crate::watched::Moment;

fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("Work", |_: ActivityContext, input: String| async move { Ok(input) })
        .build()
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Chain", |context: OrchestrationContext, left: String| async move {
            match left.parse::<u64>() {
                Ok(left) if left > 1 => context.continue_as_new((left - 1).to_string()).await,
                Ok(_) => Ok("done".to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
        .register("FanOut", |context: OrchestrationContext, count: String| async move {
            let count: usize = count.parse().map_err(|error| format!("{error}"))?;
            let all = (0..count).map(|number| context.schedule_activity("Work", number.to_string()));
            let results = context.join(all.collect()).await;
            match results.iter().filter(|result| result.is_ok()).count() {
                succeeded if succeeded == count => Ok("done".to_string()),
                succeeded => Err(format!("{succeeded} of {count} succeeded")),
            }
        })
        .build()
}

/// The instance that is measured.
const MEASURED: &str = "measured";

/// Runs one orchestration and notes the seconds it took, unless it was cut short.
async fn run(
    context: &Context<'_>,
    dispatchers: usize,
    orchestration: &str,
    input: usize,
) -> Result<(Client, Outcome)> {
    let (provider, watch) = context.open_watched().await?;
    context
        .start_runtime(provider.clone(), activities(), orchestrations(), dispatchers)
        .await;
    let client = Client::new(provider);
    let mut outcome = Outcome::default();
    // A small one first: pools fill and plans settle.
    for (instance, input) in [("warm-up", 5), (MEASURED, input)] {
        outcome.values.clear();
        let end = watch.observe(instance, Moment::End);
        let clock = Instant::now();
        client
            .start_orchestration(instance, orchestration, input.to_string())
            .await?;
        match timeout(context.scale.limit, end).await {
            Ok(at) => outcome.set("seconds", (at? - clock).as_secs_f64()),
            Err(_) => {
                outcome.cut = true;
                break;
            }
        }
    }
    outcome.errors = watch.errors.count();
    outcome.error = watch.errors.first();
    Ok((client, outcome))
}

pub struct ContinueAsNew;

#[async_trait]
impl Workload for ContinueAsNew {
    fn title(&self) -> &'static str {
        "Continue-as-new"
    }

    fn about(&self) -> &'static str {
        "One orchestration that continues as new 100 times, on one node with 4/4 dispatchers."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("a chain of 100", 100.0)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric::higher("rate", "executions/s")] }
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let count = context.scale.pick(100, 5);
        let (client, mut outcome) = run(context, 4, "Chain", count).await?;
        match outcome.values.remove("seconds") {
            Some(seconds) => outcome.set("rate", count as f64 / seconds),
            None => {
                let so_far = client.list_executions(MEASURED).await?.len();
                outcome.set("rate", so_far as f64 / context.scale.limit.as_secs_f64());
            }
        }
        Ok(outcome)
    }
}

pub struct FanOut;

#[async_trait]
impl Workload for FanOut {
    fn title(&self) -> &'static str {
        "Fan-out"
    }

    fn about(&self) -> &'static str {
        "One orchestration that schedules 1,000 activities at once and waits for all, on one node with 8/8 dispatchers: from \
         the start until the last turn is committed."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("1,000 activities", 1000.0)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric::lower("seconds", "seconds")] }
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let count = context.scale.pick(1000, 20);
        Ok(run(context, 8, "FanOut", count).await?.1)
    }
}
