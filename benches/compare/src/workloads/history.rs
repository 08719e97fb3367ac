//! What a turn costs when the history is long.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use async_trait::async_trait;
use duroxide::providers::{ExecutionMetadata, Provider};

use super::prepare::{self, Turn};
use super::{Chart, Metric, Point, Shape, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::items;
use crate::record::Outcome;
use crate::statistics::median;

const INSTANCE: &str = "long";
/// Events that one ack adds while the history grows.
const GROWTH: u64 = 500;
const TURNS: usize = 25;
const COLD_TURNS: usize = 3;

/// One turn that finds a history of `length` events and adds `growth`: how long its fetch and its ack took.
async fn turn(provider: &dyn Provider, length: u64, growth: u64) -> Result<(Duration, Duration)> {
    provider
        .enqueue_for_orchestrator(items::external_event(INSTANCE), None)
        .await?;
    let clock = Instant::now();
    let (item, token) = prepare::fetch(provider, items::LOCK).await?;
    let fetch = clock.elapsed();
    if item.history.len() as u64 != length {
        bail!("a history of {} events where {length} were written", item.history.len());
    }
    let turn = Turn {
        events: items::more_events(INSTANCE, length + 1, growth),
        metadata: ExecutionMetadata::default(),
        ..Turn::default()
    };
    let clock = Instant::now();
    prepare::ack(provider, &token, turn).await?;
    Ok((fetch, clock.elapsed()))
}

fn milliseconds(durations: &[Duration]) -> Option<f64> {
    let values: Vec<f64> = durations.iter().map(|took| took.as_secs_f64() * 1000.0).collect();
    median(&values)
}

pub struct History;

#[async_trait]
impl Workload for History {
    fn title(&self) -> &'static str {
        "Long histories"
    }

    fn about(&self) -> &'static str {
        "One instance whose history has grown to that many events; then 25 turns, one after the other: an external event \
         arrives, the turn is fetched and acked with two more events. Median of fetch and ack together. *Cold* is the first \
         turn through a provider that was just opened, and so includes opening a connection; median of three. Each fetch is \
         checked to return the whole history."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        Point::numbered(scale.pick(&[100, 1000, 5000, 10_000], &[100]), "event", "events")
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::lower("turn_ms", "turn, ms"),
                Metric::lower("fetch_ms", "of which fetch, ms"),
                Metric::lower("cold_ms", "cold turn, ms"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "turn_ms",
            title: "A turn with a long history",
            x: "events of history",
            y: "ms a turn",
            shape: Shape::Lines,
            points: "",
        }]
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let provider = context.open().await?;
        prepare::start(&*provider, INSTANCE, Turn::first(INSTANCE)).await?;
        let (mut length, target) = (2, point.count() as u64);
        while length < target {
            let growth = GROWTH.min(target - length);
            turn(&*provider, length, growth).await?;
            length += growth;
        }
        prepare::settle(context).await?;

        let mut outcome = Outcome::default();
        let (mut fetches, mut turns) = (Vec::new(), Vec::new());
        let end = Instant::now() + context.scale.limit;
        for number in 0..context.scale.pick(TURNS, 5) + 1 {
            if Instant::now() >= end {
                outcome.cut = true;
                break;
            }
            let (fetch, ack) = turn(&*provider, length, 2).await?;
            length += 2;
            // The first one warms up whatever there is to warm up.
            if number > 0 {
                fetches.push(fetch);
                turns.push(fetch + ack);
            }
        }
        outcome.set("turn_ms", milliseconds(&turns));
        outcome.set("fetch_ms", milliseconds(&fetches));

        let mut cold = Vec::new();
        for _ in 0..context.scale.pick(COLD_TURNS, 1) {
            let fresh = context.open().await?;
            let (fetch, ack) = turn(&*fresh, length, 2).await?;
            length += 2;
            cold.push(fetch + ack);
        }
        outcome.set("cold_ms", milliseconds(&cold));
        Ok(outcome)
    }
}
