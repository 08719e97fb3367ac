//! What deleting 100,000 finished instances costs those that run.

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use duroxide::provider_stress_tests::{create_default_activities, create_default_orchestrations};
use duroxide::providers::TagFilter;
use duroxide::{Client, Event, EventKind};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::prepare::{self, Turn};
use super::{Metric, Point, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::items;
use crate::load::Errors;
use crate::lock_waits::LockWaits;
use crate::record::Outcome;
use crate::statistics::percentile;
use crate::watched::{Call, Moment, Watch};

const TEMPLATE: &str = "template";
const DISPATCHERS: usize = 8;
const IN_FLIGHT: usize = 20;
const ALONE: &str = "no prune";
const KILLED: &str = "killed once";
const PATIENCE: Duration = Duration::from_secs(60);

/// How the command is called inside this program: `main` looks for it.
pub const PROGRAM: &str = "duroxide-postgres";

/// A finished instance of 10 events and two values.
fn finished_turn() -> Turn {
    let mut turn = Turn::first(TEMPLATE);
    turn.events.extend(items::more_events(TEMPLATE, 3, 5));
    let value = |key: &str| EventKind::KeyValueSet {
        key: key.to_string(),
        value: "x".repeat(50),
        last_updated_at_ms: 1,
    };
    let output = "done".to_string();
    let last = [
        value("a"),
        value("b"),
        EventKind::OrchestrationCompleted { output: output.clone() },
    ];
    let events = last.into_iter().zip(8..);
    turn.events
        .extend(events.map(|(kind, id)| Event::with_event_id(id, TEMPLATE, 1, None, kind)));
    turn.metadata.status = Some("Completed".to_string());
    turn.metadata.output = Some(output);
    turn
}

/// Many of them, that ended one after the other, two days ago.
async fn prepare_finished(context: &Context<'_>, count: usize) -> Result<()> {
    let provider = context.open().await?;
    prepare::start(&*provider, TEMPLATE, finished_turn()).await?;
    prepare::copy_instance(context, TEMPLATE, count).await?;
    let sql = format!(
        "update \"{}\".executions set completed_at = completed_at - interval '2 days' - random() * interval '1 day'",
        context.store.place()
    );
    context.server.execute(&sql).await?;
    prepare::settle(context).await
}

/// Orchestrations that are started and awaited until somebody says that it is enough.
struct Load {
    client: Client,
    watch: Arc<Watch>,
    enough: AtomicBool,
    errors: Errors,
}

impl Load {
    async fn keep_one(&self, number: usize) {
        for round in 0.. {
            if self.enough.load(Ordering::Relaxed) {
                return;
            }
            let instance = format!("load-{number}-{round}");
            let end = self.watch.observe(&instance, Moment::End);
            let clock = Instant::now();
            let started = self
                .client
                .start_orchestration(&instance, "FanoutOrchestration", r#"{"task_count":5}"#);
            if let Err(error) = started.await {
                self.errors.add(&format!("{instance} was not started: {error}"));
                sleep(Duration::from_millis(10)).await;
                continue;
            }
            match timeout(PATIENCE, end).await {
                Ok(Ok(at)) => self.watch.sample(Call::Whole, at - clock),
                _ => self
                    .errors
                    .add(&format!("{instance} was lost: not completed in {PATIENCE:?}")),
            }
        }
    }
}

/// The command, in a process of its own.
fn spawn(context: &Context<'_>, batch: usize) -> Result<Child> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command
        .arg0(PROGRAM)
        .args(["--schema", context.store.place(), "--json"])
        .args([
            "prune",
            "instances",
            "--older-than",
            "1d",
            "--batch-size",
            &batch.to_string(),
        ])
        .env("DATABASE_URL", context.url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the command")
}

/// How many it says it has deleted.
async fn finish(child: Child) -> Result<i64> {
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        bail!("prune failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).context("prune did not answer with JSON")?;
    said["instances"].as_i64().context("prune did not say how many")
}

async fn finished_left(context: &Context<'_>) -> Result<i64> {
    let sql = format!(
        "select count(*) as compare_probe from \"{}\".instances where instance_id like '{TEMPLATE}%'",
        context.store.place()
    );
    Ok(context.server.client().query_one(&sql, &[]).await?.get(0))
}

/// Rows of instances that are gone.
async fn orphans(context: &Context<'_>) -> Result<i64> {
    let schema = context.store.place();
    let tables = ["executions", "history", "kv_store", "kv_delta", "mailboxes"].map(|table| {
        format!(
            "select from \"{schema}\".{table} as t where t.instance_id like '{TEMPLATE}%' and not exists \
             (select from \"{schema}\".instances as i where i.instance_id = t.instance_id)"
        )
    });
    let sql = format!(
        "select count(*) as compare_probe from ({}) as orphan",
        tables.join(" union all ")
    );
    Ok(context.server.client().query_one(&sql, &[]).await?.get(0))
}

/// Prunes to the end; at one point the process is killed when a third is done, and started again.
async fn prune(context: &Context<'_>, point: &Point, all: i64, outcome: &mut Outcome) -> Result<()> {
    let mut child = spawn(context, point.count())?;
    if point.name == KILLED {
        while finished_left(context).await? > all * 2 / 3 {
            if child.try_wait()?.is_some() {
                bail!("prune ended before it was killed");
            }
            sleep(Duration::from_millis(context.scale.pick(50, 2))).await;
        }
        child.kill().await?;
        let torn = orphans(context).await?;
        if torn > 0 {
            bail!("{torn} rows of deleted instances are left after the kill");
        }
        outcome.set("deleted_at_kill", (all - finished_left(context).await?) as f64);
        child = spawn(context, point.count())?;
    }
    let said = finish(child).await?;
    let left = finished_left(context).await?;
    if left > 0 || (point.name != KILLED && said != all) {
        bail!("{left} instances are left of {all}, {said} were deleted");
    }
    Ok(())
}

pub struct Prune;

#[async_trait]
impl Workload for Prune {
    fn title(&self) -> &'static str {
        "Pruning beside work"
    }

    fn about(&self) -> &'static str {
        "100,000 finished instances of 10 events and two values each, on a node with 8/8 dispatchers that runs orchestrations of 5 \
         activities (which take no time), 20 in flight. Without and with `duroxide-postgres prune instances` beside it, a \
         process of its own, in batches of several sizes; once, in batches of 500, it is killed with SIGKILL when a third is done, and run again. \
         Figures are of the time that `prune` runs, or of 30 seconds without it. Calls are timed around the provider; *fetch* is a \
         probe that asks for activities of a tag that none has, every 10 ms: a fetch of the runtime also waits for work. Lock waits \
         are sessions of the runtime that wait for a lock, looked for every 10 ms. No orchestration may be lost."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        let mut points = vec![Point::new(ALONE, 0.0)];
        points.extend(
            scale
                .pick(&[100, 500, 2000][..], &[50][..])
                .iter()
                .map(|&batch| Point::new(format!("batches of {batch}"), batch as f64)),
        );
        // Few at a time where there are few, so that it does not end before it is killed.
        points.push(Point::new(KILLED, scale.pick(500.0, 1.0)));
        points
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "orchestrations/s"),
                Metric::lower("whole_p50_ms", "orchestration, p50, ms"),
                Metric::lower("whole_p99_ms", "orchestration, p99, ms"),
                Metric::lower("enqueue_p50_ms", "enqueue, p50, ms"),
                Metric::lower("enqueue_p99_ms", "enqueue, p99, ms"),
                Metric::lower("fetch_p50_ms", "fetch, p50, ms"),
                Metric::lower("fetch_p99_ms", "fetch, p99, ms"),
                Metric::lower("ack_p50_ms", "ack of a turn, p50, ms"),
                Metric::lower("ack_p99_ms", "ack of a turn, p99, ms"),
                Metric::lower("activity_ack_p50_ms", "ack of an activity, p50, ms"),
                Metric::lower("activity_ack_p99_ms", "ack of an activity, p99, ms"),
                Metric::lower("lock_waiting", "sessions of the runtime that wait for a lock, mean"),
                Metric::lower("lock_wait_max_ms", "longest lock wait seen, ms"),
                Metric::neither("prune_lock_waiting", "share of the time that prune waits for a lock"),
                Metric::neither("prune_seconds", "prune takes, s"),
                Metric::higher("prune_rate", "instances deleted/s"),
                Metric::neither("deleted_at_kill", "deleted when it was killed"),
            ]
        }
    }

    fn baseline(&self, _point: &str) -> Option<&'static str> {
        Some(ALONE)
    }

    /// The peers have no such command.
    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        candidate.is_ours()
    }

    fn most_repetitions(&self) -> u32 {
        1
    }

    fn backstop(&self, scale: &Scale) -> Duration {
        scale.limit * scale.pick(20, 3)
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        prepare_finished(context, context.scale.pick(100_000, 300)).await?;
        let all = finished_left(context).await?;
        let (provider, watch) = context.open_watched().await?;
        let (activities, orchestrations) = (create_default_activities(0), create_default_orchestrations());
        context
            .start_runtime(provider.clone(), activities, orchestrations, DISPATCHERS)
            .await;
        let load = Arc::new(Load {
            client: Client::new(provider),
            watch: watch.clone(),
            enough: AtomicBool::new(false),
            errors: Errors::default(),
        });
        let mut running = JoinSet::new();
        for number in 0..IN_FLIGHT {
            let load = load.clone();
            running.spawn(async move { load.keep_one(number).await });
        }
        let probe = context.open().await?;
        let probed = load.clone();
        running.spawn(async move {
            let nobody = TagFilter::tags(["nobody"]);
            while !probed.enough.load(Ordering::Relaxed) {
                let clock = Instant::now();
                let fetched = probe.fetch_work_item(items::LOCK, Duration::ZERO, None, &nobody);
                match fetched.await {
                    Ok(None) => probed.watch.sample(Call::Fetch, clock.elapsed()),
                    Ok(Some(_)) => probed.errors.add("the probe was given work"),
                    Err(error) => probed.errors.add(&error.to_string()),
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        sleep(context.scale.warm_up() * 4).await;

        let mut outcome = Outcome::default();
        let waits = LockWaits::watch(context.url).await?;
        watch.record(true);
        let (completed, clock) = (watch.completed(), Instant::now());
        let pruned = if point.name == ALONE {
            sleep(context.scale.window(3.0)).await;
            Ok(())
        } else {
            prune(context, point, all, &mut outcome).await
        };
        let took = clock.elapsed().as_secs_f64();
        let completed = watch.completed() - completed;
        watch.record(false);
        load.enough.store(true, Ordering::Relaxed);
        let seen = waits.end().await;
        // Each ends with its last orchestration, which has its own patience.
        while running.join_next().await.is_some() {}

        pruned?;
        let seen = seen?;
        outcome.set("rate", completed as f64 / took);
        for (call, key) in [
            (Call::Whole, "whole"),
            (Call::Enqueue, "enqueue"),
            (Call::Fetch, "fetch"),
            (Call::Ack, "ack"),
            (Call::ActivityAck, "activity_ack"),
        ] {
            let mut samples = watch.samples(call);
            for percent in [50.0, 99.0] {
                let value = percentile(&mut samples, percent).map(|microseconds| f64::from(microseconds) / 1000.0);
                outcome.set(&format!("{key}_p{percent}_ms"), value);
            }
        }
        outcome.set("lock_waiting", seen.waiting);
        outcome.set("lock_wait_max_ms", seen.longest_ms);
        if point.name != ALONE {
            outcome.set("prune_lock_waiting", seen.other_waiting);
            outcome.set("prune_seconds", took);
            outcome.set("prune_rate", all as f64 / took);
        }
        outcome.errors = load.errors.count() + watch.errors.count();
        outcome.error = load.errors.first().or(watch.errors.first());
        Ok(outcome)
    }
}
