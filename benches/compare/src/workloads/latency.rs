//! How long one orchestration takes when nothing else happens.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use tokio::time::{sleep, timeout};

use super::{Chart, Metric, Point, Shape, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::record::Outcome;
use crate::statistics::percentile;
use crate::watched::{Moment, Watch};

const DISPATCHERS: usize = 4;
const TIMER: Duration = Duration::from_millis(100);
/// Whatever takes longer than this counts as failed.
const PATIENCE: Duration = Duration::from_secs(5);

fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("Greet", |_: ActivityContext, name: String| async move {
            Ok(format!("Hello, {name}!"))
        })
        .build()
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Hello", |context: OrchestrationContext, name: String| async move {
            context.schedule_activity("Greet", name).await
        })
        .register("Timer", |context: OrchestrationContext, _: String| async move {
            context.schedule_timer(TIMER).await;
            Ok(String::new())
        })
        .register("Event", |context: OrchestrationContext, _: String| async move {
            Ok(context.schedule_wait("Go").await)
        })
        .build()
}

/// What is timed, and how often.
#[derive(Clone, Copy)]
enum Probe {
    /// From start until the last turn is committed.
    Finished,
    /// From start until `Client::wait_for_orchestration` returns.
    Waited,
    /// From start until the last turn is committed, less the time of the timer.
    Timer,
    /// From raising an event until the last turn is committed.
    Event,
}

struct Bench<'a> {
    client: Client,
    watch: &'a Watch,
    /// For one series.
    limit: Duration,
}

impl Bench<'_> {
    async fn moment(&self, observed: tokio::sync::oneshot::Receiver<Instant>) -> Result<Instant> {
        let at = timeout(PATIENCE, observed).await.context("not finished in time")?;
        at.context("nobody watches any more")
    }

    async fn once(&self, probe: Probe, instance: &str) -> Result<Duration> {
        Ok(match probe {
            Probe::Finished => {
                let end = self.watch.observe(instance, Moment::End);
                let clock = Instant::now();
                self.client.start_orchestration(instance, "Hello", "World").await?;
                self.moment(end).await? - clock
            }
            Probe::Waited => {
                let clock = Instant::now();
                self.client.start_orchestration(instance, "Hello", "World").await?;
                let status = self.client.wait_for_orchestration(instance, PATIENCE).await?;
                let took = clock.elapsed();
                if !matches!(status, OrchestrationStatus::Completed { .. }) {
                    bail!("{instance} ended as {status:?}");
                }
                took
            }
            Probe::Timer => {
                let end = self.watch.observe(instance, Moment::End);
                let clock = Instant::now();
                self.client.start_orchestration(instance, "Timer", "").await?;
                (self.moment(end).await? - clock).saturating_sub(TIMER)
            }
            Probe::Event => {
                let waiting = self.watch.observe(instance, Moment::Turn);
                self.client.start_orchestration(instance, "Event", "").await?;
                self.moment(waiting).await?;
                sleep(Duration::from_millis(20)).await;
                let end = self.watch.observe(instance, Moment::End);
                let clock = Instant::now();
                self.client.raise_event(instance, "Go", "now").await?;
                self.moment(end).await? - clock
            }
        })
    }

    /// Times `count` of them, as far as the time allows, and notes the percentiles under `key`.
    async fn series(&self, probe: Probe, key: &str, count: usize, outcome: &mut Outcome) {
        let end = Instant::now() + self.limit;
        let mut samples = Vec::with_capacity(count);
        for number in 0..count {
            if Instant::now() >= end {
                outcome.cut = true;
                break;
            }
            match self.once(probe, &format!("{key}-{number}")).await {
                Ok(took) => samples.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX)),
                Err(error) => {
                    outcome.errors += 1;
                    outcome.error.get_or_insert_with(|| format!("{error:#}"));
                }
            }
            // A pause of changing length: the next start must not fall into step with anybody's polling.
            sleep(Duration::from_millis(5 + (number as u64 * 37) % 50)).await;
        }
        for percent in [50.0, 99.0] {
            let value = percentile(&mut samples, percent).map(|microseconds| f64::from(microseconds) / 1000.0);
            outcome.set(&format!("{key}_p{percent}_ms"), value);
        }
    }
}

pub struct Latency;

#[async_trait]
impl Workload for Latency {
    fn title(&self) -> &'static str {
        "Latency on an idle system"
    }

    fn about(&self) -> &'static str {
        "One node with 4/4 dispatchers and otherwise default options; one orchestration at a time, with pauses of changing \
         length between them. *Finished* is the time from the call that starts a hello-world (one activity) until the ack of \
         its last turn returns, from when on everybody can see it; the same wrapper around each provider notes that moment, \
         because polling for it would be less exact and the system would not be idle. *Waited* is the time until \
         `Client::wait_for_orchestration` returns, which polls the history with growing pauses. *Timer* is the time from the \
         start of an orchestration that sleeps 100 ms until it has finished, less those 100 ms. *Event* is the time from \
         raising an event until the orchestration that waits for it has finished."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("1 node, 4/4", 1.0)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::lower("finished_p50_ms", "hello-world finished, p50, ms"),
                Metric::lower("finished_p99_ms", "hello-world finished, p99, ms"),
                Metric::lower("waited_p50_ms", "hello-world waited for, p50, ms"),
                Metric::lower("waited_p99_ms", "hello-world waited for, p99, ms"),
                Metric::lower("timer_p50_ms", "timer of 100 ms late by, p50, ms"),
                Metric::lower("timer_p99_ms", "timer of 100 ms late by, p99, ms"),
                Metric::lower("event_p50_ms", "event to end, p50, ms"),
                Metric::lower("event_p99_ms", "event to end, p99, ms"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "finished_p50_ms",
            title: "Latency on an idle system, median",
            x: "",
            y: "ms",
            shape: Shape::Metrics(&[
                ("finished_p50_ms", "hello-world, finished"),
                ("waited_p50_ms", "hello-world, waited for"),
                ("timer_p50_ms", "timer, late by"),
                ("event_p50_ms", "event, to end"),
            ]),
            points: "",
        }]
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let (provider, watch) = context.open_watched().await?;
        context
            .start_runtime(provider.clone(), activities(), orchestrations(), DISPATCHERS)
            .await;
        let bench = Bench {
            client: Client::new(provider),
            watch: &watch,
            limit: context.scale.limit / 2,
        };
        let scale = context.scale;
        // Pools fill and plans settle.
        bench
            .series(Probe::Waited, "warm-up", scale.pick(10, 1), &mut Outcome::default())
            .await;
        let mut outcome = Outcome::default();
        for (probe, key, count) in [
            (Probe::Finished, "finished", scale.pick(100, 2)),
            (Probe::Waited, "waited", scale.pick(100, 1)),
            (Probe::Timer, "timer", scale.pick(40, 1)),
            (Probe::Event, "event", scale.pick(50, 1)),
        ] {
            // Polling makes SQLite slow here, and it is only there for reference.
            let count = if context.candidate() == Candidate::Sqlite {
                count / 4
            } else {
                count
            };
            bench.series(probe, key, count.max(1), &mut outcome).await;
        }
        outcome.errors += watch.errors.count();
        outcome.error = watch.errors.first().or(outcome.error);
        Ok(outcome)
    }
}
