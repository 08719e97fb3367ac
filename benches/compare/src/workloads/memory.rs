//! Memory of a process that has touched many histories.
//!
//! Measured in a process of its own: an allocator does not give back what another candidate has freed, and what it gets
//! from there would not show.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use duroxide::providers::{ExecutionMetadata, Provider};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::prepare::{self, Turn};
use super::{Metric, Point, Workload};
use crate::candidates::{Candidate, Store};
use crate::cli::{MemoryArgs, Scale};
use crate::context::Context;
use crate::items;
use crate::process::own_resident_bytes;
use crate::record::Outcome;

const TEMPLATE: &str = "template";
const EVENTS: u64 = 20;
const CALLERS: usize = 4;
/// Touched before the memory is noted for the first time.
const WARM_UP: u64 = 100;
const MIB: f64 = 1024.0 * 1024.0;

pub struct Memory;

#[async_trait]
impl Workload for Memory {
    fn title(&self) -> &'static str {
        "Client memory"
    }

    fn about(&self) -> &'static str {
        "10,000 instances with 20 events of history and a message each. A process of its own touches every one of them once: \
         fetches its turn, acks it with one more event, and reads its history. By how much its resident memory has grown \
         since the first hundred. The peers keep nothing of a history; here it is a setting, 64 MiB."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("10,000 histories", 10_000.0)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::neither("histories", "histories touched"),
                Metric::neither("growth_mib", "growth of resident memory, MiB"),
                Metric::neither("resident_mib", "resident memory in the end, MiB"),
            ]
        }
    }

    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        !matches!(candidate, Candidate::Server | Candidate::Sqlite)
    }

    fn most_repetitions(&self) -> u32 {
        1
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let provider = context.open().await?;
        let mut turn = Turn::first(TEMPLATE);
        turn.events.extend(items::more_events(TEMPLATE, 3, EVENTS - 2));
        prepare::start(&*provider, TEMPLATE, turn).await?;
        provider
            .enqueue_for_orchestrator(items::external_event(TEMPLATE), None)
            .await?;
        prepare::copy_instance(context, TEMPLATE, context.scale.pick(10_000, 200)).await?;
        prepare::settle(context).await?;
        drop(provider);
        context.close().await;

        let candidate = clap::ValueEnum::to_possible_value(&context.candidate()).context("not a provider")?;
        let output = Command::new(std::env::current_exe()?)
            .args(["memory-of", "--candidate", candidate.get_name()])
            .args(["--schema", context.store.place()])
            .args(["--seconds", &(context.scale.limit / 3).as_secs_f64().to_string()])
            .env("DATABASE_URL", context.url)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot start a process")?;
        if !output.status.success() {
            bail!("the process failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("the process did not answer with a result")
    }
}

/// Touches whatever is ready, `CALLERS` at a time, until nothing is, `most` are touched or the time is over.
async fn touch(provider: &Arc<dyn Provider>, most: u64, end: Instant) -> Result<u64> {
    let touched = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (provider, touched) = (provider.clone(), touched.clone());
        callers.spawn(async move {
            let filter = items::runtime_filter();
            let mut empty = 0;
            while touched.load(Ordering::Relaxed) < most && empty < 20 && Instant::now() < end {
                let fetch = provider.fetch_orchestration_item(items::LOCK, Duration::ZERO, Some(&filter));
                let Some((item, token, _)) = fetch.await? else {
                    empty += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                empty = 0;
                let turn = Turn {
                    events: items::more_events(&item.instance, item.history.len() as u64 + 1, 1),
                    metadata: ExecutionMetadata::default(),
                    ..Turn::default()
                };
                prepare::ack(&*provider, &token, turn).await?;
                let read = provider.read(&item.instance).await?;
                if read.len() != item.history.len() + 1 {
                    bail!("read {} events after {}", read.len(), item.history.len());
                }
                touched.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    while let Some(finished) = callers.join_next().await {
        finished.context("a caller ended early")??;
    }
    Ok(touched.load(Ordering::Relaxed))
}

/// What the process of its own does.
pub async fn measure_here(args: &MemoryArgs) -> Result<Outcome> {
    let node = Store::existing(args.candidate, &args.database_url, &args.schema)
        .open()
        .await?;
    let provider = node.provider();
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    touch(&provider, WARM_UP, end).await?;
    let before = own_resident_bytes();
    let histories = touch(&provider, u64::MAX, end).await?;
    let after = own_resident_bytes();

    let mut outcome = Outcome {
        cut: Instant::now() >= end,
        ..Outcome::default()
    };
    outcome.set("histories", histories as f64);
    let mib = |bytes: u64| bytes as f64 / MIB;
    outcome.set(
        "growth_mib",
        before
            .zip(after)
            .map(|(before, after)| mib(after.saturating_sub(before))),
    );
    outcome.set("resident_mib", after.map(mib));
    Ok(outcome)
}
