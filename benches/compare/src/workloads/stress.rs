//! The framework's own stress tests, as the framework runs them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use async_trait::async_trait;
use duroxide::provider_stress_tests::large_payload::{LargePayloadConfig, run_large_payload_test_with_config};
use duroxide::provider_stress_tests::parallel_orchestrations::{
    ProviderStressFactory, run_parallel_orchestrations_test_with_config,
};
use duroxide::provider_stress_tests::{StressTestConfig, StressTestResult};
use duroxide::providers::Provider;
use tokio::time::timeout;

use super::{Chart, Metric, Point, Shape, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::record::Outcome;
use crate::watched::Watch;

/// Activities of each orchestration.
const ACTIVITIES: usize = 5;

struct Configuration {
    concurrency: usize,
    delay_ms: u64,
    in_flight: usize,
}

impl Configuration {
    fn name(&self) -> String {
        let Self {
            concurrency,
            delay_ms,
            in_flight,
        } = self;
        format!("{concurrency}/{concurrency}, {delay_ms} ms, {in_flight} in flight")
    }
}

fn configurations() -> Vec<Configuration> {
    let mut all = Vec::new();
    for delay_ms in [0, 10] {
        for in_flight in [20, 100] {
            for concurrency in [2, 8, 32] {
                all.push(Configuration {
                    concurrency,
                    delay_ms,
                    in_flight,
                });
            }
        }
    }
    all
}

struct Factory(Arc<dyn Provider>);

#[async_trait]
impl ProviderStressFactory for Factory {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        self.0.clone()
    }
}

/// Runs one of the framework's tests, or as much of it as the time limit allows: the watch knows how many orchestrations
/// were completed by then.
async fn run<E: std::fmt::Display>(
    watch: &Watch,
    limit: Duration,
    test: impl Future<Output = Result<StressTestResult, E>>,
) -> Result<Outcome> {
    let clock = Instant::now();
    let mut outcome = Outcome::default();
    match timeout(limit, test).await {
        Ok(result) => {
            let result = result.map_err(|error| anyhow!("{error}"))?;
            outcome.set("rate", result.orch_throughput);
            outcome.set("launched", result.launched as f64);
            outcome.set("failed", result.failed as f64);
            outcome.errors = result.failed as u64;
            if result.failed > 0 {
                outcome.error = Some(format!(
                    "{} of {} orchestrations did not complete",
                    result.failed, result.launched
                ));
            }
        }
        Err(_) => {
            outcome.cut = true;
            outcome.set("rate", watch.completed() as f64 / clock.elapsed().as_secs_f64());
        }
    }
    outcome.errors += watch.errors.count();
    outcome.error = watch.errors.first().or(outcome.error);
    Ok(outcome)
}

fn seconds(scale: &Scale, share: f64) -> u64 {
    // The framework counts in whole seconds.
    (scale.window(share).as_secs_f64().round() as u64).max(1)
}

pub struct Stress;

#[async_trait]
impl Workload for Stress {
    fn title(&self) -> &'static str {
        "Stress: parallel orchestrations"
    }

    fn about(&self) -> &'static str {
        "duroxide's own stress test (`run_parallel_orchestrations_test_with_config`) on one node: orchestrations that fan out \
         to 5 activities. `8/8` means 8 orchestration and 8 worker dispatchers; the milliseconds are how long an activity \
         takes. What the test itself allows: it sleeps for 1 ms after each start, which is 2.1 ms by tokio's timer, so no store exceeds \
         480 orchestrations a second; activities of 0 and 10 ms sleep for 1.1 and 11.1 ms, so that 2 and 8 workers cannot exceed 370 and \
         145. Its rate includes waiting for the last ones, in steps of 100 ms."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        let all = configurations();
        all.iter()
            .take(scale.pick(all.len(), 1))
            .enumerate()
            .map(|(index, configuration)| Point::new(configuration.name(), index as f64))
            .collect()
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "orchestrations/s"),
                Metric::neither("failed", "failed orchestrations"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        const DISPATCHERS: Chart = Chart {
            metric: "rate",
            title: "",
            x: "dispatchers, time of an activity, orchestrations in flight",
            y: "orchestrations/s",
            shape: Shape::Bars,
            points: "",
        };
        &[
            Chart {
                title: "duroxide's stress test: orchestrations of 5 activities that take no time",
                points: ", 0 ms",
                ..DISPATCHERS
            },
            Chart {
                title: "duroxide's stress test: orchestrations of 5 activities of 10 ms",
                points: ", 10 ms",
                ..DISPATCHERS
            },
        ]
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let all = configurations();
        let configuration = all.get(point.count()).context("no such configuration")?;
        let (provider, watch) = context.open_watched().await?;
        let factory = Factory(provider);
        let config = StressTestConfig {
            max_concurrent: configuration.in_flight,
            duration_secs: seconds(context.scale, 0.3),
            tasks_per_instance: ACTIVITIES,
            activity_delay_ms: configuration.delay_ms,
            orch_concurrency: configuration.concurrency,
            worker_concurrency: configuration.concurrency,
            wait_timeout_secs: context.scale.limit.as_secs(),
        };
        let test = run_parallel_orchestrations_test_with_config(&factory, config);
        run(&watch, context.scale.limit, test).await
    }
}

pub struct LargePayload;

#[async_trait]
impl Workload for LargePayload {
    fn title(&self) -> &'static str {
        "Stress: large payloads"
    }

    fn about(&self) -> &'static str {
        "duroxide's own stress test with payloads of 10, 50 and 100 KB (`run_large_payload_test_with_config`, its default \
         configuration): 5 orchestrations in flight, each of about 30 activities one after the other and 5 \
         sub-orchestrations, on one orchestration and one worker dispatcher. Its rate includes waiting for the last ones."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("1/1, 5 in flight", 1.0)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "orchestrations/s"),
                Metric::neither("failed", "failed orchestrations"),
            ]
        }
    }

    fn most_repetitions(&self) -> u32 {
        1
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let (provider, watch) = context.open_watched().await?;
        let factory = Factory(provider);
        let mut config = LargePayloadConfig::default();
        config.base.duration_secs = seconds(context.scale, 1.0);
        config.base.wait_timeout_secs = context.scale.limit.as_secs();
        if context.scale.smoke {
            config.activity_count = 3;
            config.sub_orch_count = 1;
            config.base.max_concurrent = 1;
        }
        let test = run_large_payload_test_with_config(&factory, config);
        run(&watch, context.scale.limit, test).await
    }
}
