//! Turns while somebody holds an old snapshot, so that nothing dead can be removed.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use super::calls::{TurnLoop, load_of, outcome_of};
use super::{Metric, Point, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::load;
use crate::record::Outcome;
use crate::server;

const CALLERS: usize = 4;
/// Seconds at either end that are compared.
const EDGE: usize = 5;

fn mean(seconds: &[u64]) -> Option<f64> {
    (!seconds.is_empty()).then(|| seconds.iter().sum::<u64>() as f64 / seconds.len() as f64)
}

pub struct Snapshot;

#[async_trait]
impl Workload for Snapshot {
    fn title(&self) -> &'static str {
        "A long-held snapshot"
    }

    fn about(&self) -> &'static str {
        "The loop of *Turns* with 4 callers for 30 seconds while another connection holds a REPEATABLE READ snapshot, so that \
         dead rows pile up. Instances are started through a provider of its own, as by another process. The rate in the first and in the last 5 seconds, and for 5 seconds after the snapshot was \
         released."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("4 callers", CALLERS as f64)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("first", "turns/s, first 5 s"),
                Metric::higher("last", "turns/s, last 5 s"),
                Metric::higher("kept", "last ÷ first"),
                Metric::higher("released", "turns/s, after release"),
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
        // As another process: every fetch has to look for what it put there.
        let enqueuer = context.open().await?;
        let turns = |label| TurnLoop::enqueued_by(enqueuer.clone(), provider.clone(), label);
        let holder = server::connect(context.url).await?;
        holder
            .batch_execute("begin isolation level repeatable read; select count(*) from pg_class")
            .await?;
        let window = Duration::from_secs_f64(context.scale.pick(30.0, 0.5));
        let load = load_of(context.scale, CALLERS, window);
        let mut held = load::run(load, turns("held"), None).await;
        holder.batch_execute("commit").await?;
        let window = Duration::from_secs_f64(context.scale.pick(5.0, 0.3));
        let load = load_of(context.scale, CALLERS, window);
        let released = load::run(load, turns("released"), None).await;

        let mut outcome = outcome_of(&mut held);
        outcome.errors += released.errors;
        outcome.error = outcome.error.or(released.error.clone());
        outcome.cut |= released.cut;
        if context.scale.smoke {
            // Too short for edges.
            outcome.set("first", held.rate());
            outcome.set("last", held.rate());
        } else {
            outcome.set("first", held.seconds.get(..EDGE).and_then(mean));
            let edge = held.seconds.len().saturating_sub(EDGE);
            outcome.set("last", held.seconds.get(edge..).and_then(mean));
        }
        let (first, last) = (
            outcome.values.get("first").copied(),
            outcome.values.get("last").copied(),
        );
        outcome.set("kept", first.zip(last).map(|(first, last)| last / first));
        outcome.set("released", released.rate());
        Ok(outcome)
    }
}
