//! Turns, activities and enqueues straight through the trait, without a runtime.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use duroxide::providers::{DispatcherCapabilityFilter, Provider, TagFilter};

use super::{Chart, Metric, Point, Shape, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::items;
use crate::load::{self, Load, LoadResult, Recorder, Work};
use crate::record::Outcome;

/// Instances that each caller's activities belong to.
const INSTANCES_PER_CALLER: u64 = 50;

/// What the names of instances begin with whose turns can run.
const PREFIX: &str = "turn-";
/// For how long a turn that nobody should have got is put aside.
const ASIDE: Duration = Duration::from_secs(3600);

/// Each round starts a new instance and runs its first turn, or somebody else's.
pub struct TurnLoop {
    provider: Arc<dyn Provider>,
    enqueuer: Arc<dyn Provider>,
    label: &'static str,
    filter: DispatcherCapabilityFilter,
}

impl TurnLoop {
    /// Loops on the same store need different labels, because every instance is new.
    pub fn new(provider: Arc<dyn Provider>, label: &'static str) -> Arc<Self> {
        Self::enqueued_by(Arc::clone(&provider), provider, label)
    }

    /// Instances are started through a provider of its own, as by a client in another process.
    pub fn enqueued_by(enqueuer: Arc<dyn Provider>, provider: Arc<dyn Provider>, label: &'static str) -> Arc<Self> {
        Arc::new(Self {
            provider,
            enqueuer,
            label,
            filter: items::runtime_filter(),
        })
    }
}

#[async_trait]
impl Work for TurnLoop {
    async fn once(&self, caller: usize, round: u64, recorder: &Recorder) {
        let start = items::start(&format!("{PREFIX}{}-{caller}-{round}", self.label));
        let enqueue = self.enqueuer.enqueue_for_orchestrator(start, None);
        if recorder.call("enqueue", enqueue).await.is_none() {
            return;
        }
        while recorder.running() {
            let fetch = self
                .provider
                .fetch_orchestration_item(items::LOCK, Duration::ZERO, Some(&self.filter));
            let Some((item, token, _)) = recorder.fetch(fetch).await else {
                continue;
            };
            if !item.instance.starts_with(PREFIX) {
                recorder.fail(&format!("was given a turn of {}, which cannot run", item.instance));
                let abandon = self.provider.abandon_orchestration_item(&token, Some(ASIDE), true);
                recorder.call("abandon", abandon).await;
                continue;
            }
            let ack = self.provider.ack_orchestration_item(
                &token,
                item.execution_id,
                items::first_events(&item.instance),
                vec![items::activity(&item.instance, 2)],
                vec![],
                items::first_metadata(),
                vec![],
            );
            if recorder.call("ack", ack).await.is_some() {
                recorder.done();
            }
            return;
        }
    }
}

/// Each round enqueues an activity and runs it, or somebody else's.
pub struct ActivityLoop {
    pub provider: Arc<dyn Provider>,
    /// What activities are enqueued through; another one, as by another process, or the same.
    pub enqueuer: Arc<dyn Provider>,
}

fn next_activity(caller: usize, round: u64) -> duroxide::providers::WorkItem {
    items::activity(
        &format!("activity-{caller}-{}", round % INSTANCES_PER_CALLER),
        round + 2,
    )
}

#[async_trait]
impl Work for ActivityLoop {
    async fn once(&self, caller: usize, round: u64, recorder: &Recorder) {
        let enqueue = self.enqueuer.enqueue_for_worker(next_activity(caller, round));
        if recorder.call("enqueue", enqueue).await.is_none() {
            return;
        }
        let session = items::runtime_session(caller);
        while recorder.running() {
            let fetch =
                self.provider
                    .fetch_work_item(items::LOCK, Duration::ZERO, Some(&session), &TagFilter::DefaultOnly);
            let Some((item, token, _)) = recorder.fetch(fetch).await else {
                continue;
            };
            let ack = self.provider.ack_work_item(&token, items::completion_of(item));
            if recorder.call("ack", ack).await.is_some() {
                recorder.done();
            }
            return;
        }
    }
}

struct EnqueueLoop {
    provider: Arc<dyn Provider>,
}

#[async_trait]
impl Work for EnqueueLoop {
    async fn once(&self, caller: usize, round: u64, recorder: &Recorder) {
        let enqueue = self.provider.enqueue_for_worker(next_activity(caller, round));
        if recorder.call("enqueue", enqueue).await.is_some() {
            recorder.done();
        }
    }
}

/// A load on `callers` callers with the usual warm-up and grace.
pub fn load_of(scale: &Scale, callers: usize, window: Duration) -> Load {
    Load {
        callers,
        warm_up: scale.warm_up(),
        window,
        grace: scale.limit.saturating_sub(window).max(Duration::from_secs(1)) / 4,
    }
}

/// Rate, latencies and errors of a load.
pub fn outcome_of(result: &mut LoadResult) -> Outcome {
    let mut outcome = Outcome {
        errors: result.errors,
        error: result.error.clone(),
        cut: result.cut,
        ..Outcome::default()
    };
    outcome.set("rate", result.rate());
    for call in ["enqueue", "fetch", "ack"] {
        outcome.set(&format!("{call}_p50_ms"), result.percentile_ms(call, 50.0));
        outcome.set(&format!("{call}_p99_ms"), result.percentile_ms(call, 99.0));
        // Not in the report, but tells a stall from slowness.
        outcome.set(&format!("{call}_max_ms"), result.percentile_ms(call, 100.0));
    }
    outcome.set("empty_fetches", result.empty_fetches_per_round());
    outcome.set("client_cpu_ms", result.client_cpu_ms_per_round());
    outcome
}

/// One load on one provider, with what it cost the server.
async fn measure(
    context: &Context<'_>,
    callers: usize,
    window: Duration,
    work: impl FnOnce(Arc<dyn Provider>) -> Arc<dyn Work>,
) -> Result<Outcome> {
    let on_server = context.candidate().uses_server();
    let before = context.server.counters().await?;
    let work = work(context.open().await?);
    let processes = context.server.processes().filter(|_| on_server);
    let mut result = load::run(load_of(context.scale, callers, window), work, processes).await;
    let after = context.counters_after_close().await?;

    let mut outcome = outcome_of(&mut result);
    if on_server && result.total > 0 {
        let per_round = |amount: i64| amount as f64 / result.total as f64;
        outcome.set("wal_bytes", per_round(after.wal - before.wal));
        outcome.set("commits", per_round(after.commits - before.commits));
        outcome.set("rows_read", per_round(after.rows_read - before.rows_read));
        outcome.set("server_cpu_ms", result.server_cpu_ms_per_round());
    }
    Ok(outcome)
}

fn callers(scale: &Scale) -> Vec<Point> {
    Point::numbered(scale.pick(&[1, 4, 16, 64], &[4]), "caller", "callers")
}

pub struct Turns;

#[async_trait]
impl Workload for Turns {
    fn title(&self) -> &'static str {
        "Turns"
    }

    fn about(&self) -> &'static str {
        "Callers share one provider. Each starts a new instance (`enqueue_for_orchestrator`), fetches a turn with the filter \
         the runtime uses and no waiting, and acks it with two events, one activity and the runtime's metadata. WAL, \
         commits, rows (read from tables and indexes) and CPU are per turn; commits and rows include what the connections \
         cost to open. Empty fetches are those that found nothing although something was there or about to be."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        callers(scale)
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "turns/s"),
                Metric::lower("enqueue_p50_ms", "enqueue p50, ms"),
                Metric::lower("enqueue_p99_ms", "enqueue p99, ms"),
                Metric::lower("fetch_p50_ms", "fetch p50, ms"),
                Metric::lower("fetch_p99_ms", "fetch p99, ms"),
                Metric::lower("ack_p50_ms", "ack p50, ms"),
                Metric::lower("ack_p99_ms", "ack p99, ms"),
                Metric::neither("empty_fetches", "empty fetches a turn"),
                Metric::lower("wal_bytes", "WAL bytes a turn"),
                Metric::lower("commits", "commits a turn"),
                Metric::lower("rows_read", "rows read a turn"),
                Metric::lower("client_cpu_ms", "client CPU a turn, ms"),
                Metric::lower("server_cpu_ms", "server CPU a turn, ms"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[
            Chart {
                metric: "rate",
                title: "Turns per second",
                x: "concurrent callers",
                y: "turns/s",
                shape: Shape::Bars,
                points: "",
            },
            Chart {
                metric: "fetch_p99_ms",
                title: "99th percentile of a fetch",
                x: "concurrent callers",
                y: "ms",
                shape: Shape::Bars,
                points: "",
            },
        ]
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let window = context.scale.window(1.0);
        measure(context, point.count(), window, |provider| {
            TurnLoop::new(provider, "all")
        })
        .await
    }
}

pub struct Activities;

#[async_trait]
impl Workload for Activities {
    fn title(&self) -> &'static str {
        "Activities"
    }

    fn about(&self) -> &'static str {
        "Callers share one provider. Each enqueues an activity (`enqueue_for_worker`) for one of its 50 instances, fetches one \
         as the runtime's workers do (default tags, a session owner each, no waiting) and acks it with a completion. Nobody \
         takes the completions, and the instances were never started."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        callers(scale)
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "activities/s"),
                Metric::lower("enqueue_p50_ms", "enqueue p50, ms"),
                Metric::lower("enqueue_p99_ms", "enqueue p99, ms"),
                Metric::lower("fetch_p50_ms", "fetch p50, ms"),
                Metric::lower("fetch_p99_ms", "fetch p99, ms"),
                Metric::lower("ack_p50_ms", "ack p50, ms"),
                Metric::lower("ack_p99_ms", "ack p99, ms"),
                Metric::neither("empty_fetches", "empty fetches an activity"),
                Metric::lower("wal_bytes", "WAL bytes an activity"),
                Metric::lower("commits", "commits an activity"),
                Metric::lower("rows_read", "rows read an activity"),
                Metric::lower("client_cpu_ms", "client CPU an activity, ms"),
                Metric::lower("server_cpu_ms", "server CPU an activity, ms"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "rate",
            title: "Activities per second",
            x: "concurrent callers",
            y: "activities/s",
            shape: Shape::Bars,
            points: "",
        }]
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let window = context.scale.window(0.3);
        measure(context, point.count(), window, |provider| {
            let enqueuer = Arc::clone(&provider);
            Arc::new(ActivityLoop { provider, enqueuer })
        })
        .await
    }
}

pub struct Enqueue;

#[async_trait]
impl Workload for Enqueue {
    fn title(&self) -> &'static str {
        "Enqueue"
    }

    fn about(&self) -> &'static str {
        "Callers share one provider and do nothing but `enqueue_for_worker`."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        callers(scale)
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "enqueues/s"),
                Metric::lower("enqueue_p50_ms", "p50, ms"),
                Metric::lower("enqueue_p99_ms", "p99, ms"),
                Metric::lower("wal_bytes", "WAL bytes an enqueue"),
                Metric::lower("commits", "commits an enqueue"),
                Metric::lower("server_cpu_ms", "server CPU an enqueue, ms"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "rate",
            title: "Enqueued activities per second",
            x: "concurrent callers",
            y: "enqueues/s",
            shape: Shape::Bars,
            points: "",
        }]
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let window = context.scale.window(0.2);
        measure(context, point.count(), window, |provider| {
            Arc::new(EnqueueLoop { provider })
        })
        .await
    }
}
