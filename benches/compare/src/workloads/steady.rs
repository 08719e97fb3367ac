//! Turns for many minutes: does it stay flat?

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use super::calls::{TurnLoop, load_of, outcome_of};
use super::{Chart, Metric, Point, Shape, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::load;
use crate::record::Outcome;

const CALLERS: usize = 4;
/// Seconds that one value of the chart stands for.
const BUCKET: u32 = 10;
const MIB: f64 = 1024.0 * 1024.0;

fn buckets(seconds: &[u64], size: usize) -> Vec<f64> {
    let whole = seconds.chunks_exact(size);
    whole
        .map(|chunk| chunk.iter().sum::<u64>() as f64 / size as f64)
        .collect()
}

pub struct Steady;

#[async_trait]
impl Workload for Steady {
    fn title(&self) -> &'static str {
        "Steady load"
    }

    fn about(&self) -> &'static str {
        "The loop of *Turns* with 4 callers for many minutes: the rate in each 10 seconds, the first and the last minute, and \
         how big the tables are in the end."
    }

    /// None unless it was asked for.
    fn points(&self, scale: &Scale) -> Vec<Point> {
        let asked = scale.smoke || !scale.steady.is_zero();
        let point = Point::new("4 callers", scale.steady.as_secs_f64() / 60.0);
        asked.then_some(point).into_iter().collect()
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::neither("minutes", "minutes"),
                Metric::higher("rate", "turns/s"),
                Metric::higher("first", "turns/s, first minute"),
                Metric::higher("last", "turns/s, last minute"),
                Metric::lower("fetch_p99_ms", "fetch p99, ms"),
                Metric::lower("ack_p99_ms", "ack p99, ms"),
                Metric::neither("tables_mib", "tables and indexes in the end, MiB"),
                Metric::lower("bytes_per_turn", "of which bytes a turn"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "rates",
            title: "Turns per second under steady load",
            x: "minutes",
            y: "turns/s",
            shape: Shape::Series(BUCKET),
            points: "",
        }]
    }

    fn takes_part(&self, candidate: Candidate, scale: &Scale) -> bool {
        candidate.is_ours() || (scale.steady_all && candidate != Candidate::Server)
    }

    fn most_repetitions(&self) -> u32 {
        1
    }

    fn backstop(&self, scale: &Scale) -> Duration {
        scale.steady + scale.limit * 2
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let provider = context.open().await?;
        let window = context.scale.pick(context.scale.steady, Duration::from_secs(2));
        let load = load_of(context.scale, CALLERS, window);
        let mut result = load::run(load, TurnLoop::new(provider, "all"), None).await;
        let mut outcome = outcome_of(&mut result);
        outcome.set("minutes", window.as_secs_f64() / 60.0);
        let rates = buckets(&result.seconds, context.scale.pick(BUCKET as usize, 1));
        let minute = 6.min(rates.len());
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        outcome.set("first", mean(&rates[..minute]));
        outcome.set("last", mean(&rates[rates.len() - minute..]));
        outcome.series.insert("rates".to_string(), rates);
        if context.candidate().uses_server() {
            let mut total = 0;
            for (table, bytes) in context.server.table_sizes(context.store.place()).await? {
                outcome.set(&format!("size_mib_{table}"), bytes as f64 / MIB);
                total += bytes;
            }
            outcome.set("tables_mib", total as f64 / MIB);
            outcome.set("bytes_per_turn", total as f64 / result.total as f64);
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::buckets;

    #[test]
    fn buckets_are_rates_and_drop_a_fraction_at_the_end() {
        assert_eq!(buckets(&[1, 3, 5, 7, 9], 2), [2.0, 6.0]);
        assert!(buckets(&[1], 2).is_empty());
    }
}
