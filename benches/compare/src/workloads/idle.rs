//! What nodes cost that have nothing to do.

use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use duroxide::provider_stress_tests::{create_default_activities, create_default_orchestrations};
use tokio::time::sleep;

use super::{Metric, Point, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::process::CpuTimes;
use crate::record::Outcome;

const DISPATCHERS: usize = 4;

pub struct Idle;

#[async_trait]
impl Workload for Idle {
    fn title(&self) -> &'static str {
        "Idle nodes"
    }

    fn about(&self) -> &'static str {
        "Nodes with 4/4 dispatchers, default options and nothing to do, for 30 seconds after they have settled. Statements \
         are what clients sent, from pg_stat_statements. Transactions are the same number where no explicit transaction was \
         among them, and come from pg_stat_database otherwise, which also counts autovacuum's. CPU is in per cent of one \
         processor; that of the client includes this program, which sleeps."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        Point::numbered(scale.pick(&[1, 4], &[2]), "node", "nodes")
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::lower("transactions", "transactions/s at the server"),
                Metric::lower("transactions_per_node", "transactions/s a node"),
                Metric::lower("statements", "statements/s at the server"),
                Metric::lower("client_cpu_percent", "client CPU, %"),
                Metric::lower("server_cpu_percent", "server CPU, %"),
            ]
        }
    }

    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        !matches!(candidate, Candidate::Server | Candidate::Sqlite)
    }

    /// What happens on a schedule does not vary.
    fn most_repetitions(&self) -> u32 {
        1
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let mut watches = Vec::new();
        for _ in 0..point.count() {
            let (provider, watch) = context.open_watched().await?;
            watches.push(watch);
            context
                .start_runtime(
                    provider,
                    create_default_activities(0),
                    create_default_orchestrations(),
                    DISPATCHERS,
                )
                .await;
        }
        // An idle backend reports its statistics after ten seconds: what starting up cost must be in before the count
        // begins.
        sleep(Duration::from_secs_f64(context.scale.pick(11.0, 0.2))).await;
        let processes = context.server.processes();
        let clock = Instant::now();
        let (before, cpu_before) = (context.server.counters().await?, CpuTimes::now(processes));
        sleep(Duration::from_secs_f64(context.scale.pick(30.0, 0.3))).await;
        let (after, cpu_after) = (context.server.counters().await?, CpuTimes::now(processes));
        let seconds = clock.elapsed().as_secs_f64();

        let mut outcome = Outcome {
            errors: watches.iter().map(|watch| watch.errors.count()).sum(),
            error: watches.iter().find_map(|watch| watch.errors.first()),
            ..Outcome::default()
        };
        let change = |after: Option<i64>, before: Option<i64>| Some((after? - before?) as f64 / seconds);
        let statements = change(after.statements, before.statements);
        let explicit = change(after.begins, before.begins).is_none_or(|begins| begins > 0.0);
        let transactions = match statements {
            Some(statements) if !explicit => Some(statements),
            _ => change(Some(after.transactions), Some(before.transactions)),
        };
        outcome.set("statements", statements);
        outcome.set("transactions", transactions);
        outcome.set("transactions_per_node", transactions.map(|rate| rate / point.x));
        let percent = |milliseconds: Option<f64>| milliseconds.map(|used| used / 10.0 / seconds);
        outcome.set("client_cpu_percent", percent(cpu_after.client_ms_since(&cpu_before)));
        outcome.set("server_cpu_percent", percent(cpu_after.server_ms_since(&cpu_before)));
        Ok(outcome)
    }
}
