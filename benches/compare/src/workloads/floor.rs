//! What the server itself can do, by `pgbench`: durable commits, round trips, and the turns that its functions allow.

use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use tokio::process::Command;

use super::{Chart, Metric, Point, Shape, Workload};
use crate::candidates::{Candidate, Store};
use crate::cli::Scale;
use crate::context::Context;
use crate::record::Outcome;

/// What the functions have set, for the same statements without them: young tables have no statistics.
const BARE: &str = "-c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c plan_cache_mode=force_generic_plan";

pub struct Floor;

#[async_trait]
impl Workload for Floor {
    fn title(&self) -> &'static str {
        "The floor"
    }

    fn about(&self) -> &'static str {
        "What the server can do at best, by `pgbench` with prepared statements and as many connections. *Durable commits*: one \
         insert of a tiny row into a table with a primary key. *Round trips*: `select 1`. *Least turns*: what every turn needs, \
         two such commits (enqueue and ack) and a round trip (fetch), and nothing else. *Turns by pgbench*: the turn of *Turns* with \
         the functions of duroxide-postgres, called one by one: no batching, and hardly any client. *Bare*: the rows of a turn of *Turns* \
         or of an activity of *Activities* written and claimed by three plain statements, without functions, checks, retries or safety \
         against races, for as many at once as there are connections: half of them by each of two callers."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        Point::numbered(scale.pick(&[1, 4, 16, 64], &[4]), "connection", "connections")
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "durable commits/s"),
                Metric::higher("round_trips", "round trips/s"),
                Metric::higher("least_turns", "least turns/s"),
                Metric::higher("turns", "turns by pgbench/s"),
                Metric::higher("bare_turns", "bare turns/s"),
                Metric::higher("bare_activities", "bare activities/s"),
            ]
        }
    }

    fn charts(&self) -> &'static [Chart] {
        &[Chart {
            metric: "rate",
            title: "The floor: durable commits of one tiny row per second",
            x: "connections",
            y: "commits/s",
            shape: Shape::Bars,
            points: "",
        }]
    }

    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        candidate == Candidate::Server
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let schema = format!("\"{}\"", context.store.place());
        Store::existing(Candidate::Postgres, context.url, context.store.place())
            .deploy()
            .await?;
        let server = context.server;
        server
            .execute(&format!(
                "create table {schema}.rows (id bigint generated always as identity primary key, n int not null)"
            ))
            .await
            .context("cannot create a table")?;
        let connections = point.count();
        let insert = format!("insert into {schema}.rows (n) values (1);\n");
        let trip = "select 1;\n";

        let mut outcome = Outcome::default();
        outcome.set("rate", pgbench(context, connections, &insert, "").await?.rate);
        outcome.set("round_trips", pgbench(context, connections, trip, "").await?.rate);
        let least = format!("{insert}{trip}{insert}");
        outcome.set("least_turns", pgbench(context, connections, &least, "").await?.rate);

        let turn = include_str!("turn.sql").replace("SCHEMA", &schema);
        let done = pgbench(context, connections, &turn, "").await?;
        // A script that finds every turn taken by others ends without one.
        let turns = format!("select count(*) from {schema}.instances");
        let turns: i64 = server.client().query_one(&turns, &[]).await?.get(0);
        outcome.set("turns", done.rate * turns as f64 / done.scripts);

        let callers = connections.min(2);
        let batch = connections / callers;
        for (metric, script, made) in [
            ("bare_turns", include_str!("bare_turn.sql"), "instances"),
            (
                "bare_activities",
                include_str!("bare_activity.sql"),
                "orchestrator_queue",
            ),
        ] {
            let empty = [
                "mailboxes",
                "instances",
                "executions",
                "history",
                "worker_queue",
                "orchestrator_queue",
            ]
            .map(|table| format!("{schema}.{table}"));
            server.execute(&format!("truncate {}", empty.join(", "))).await?;
            let script = script.replace("SCHEMA", &schema).replace("BATCH", &batch.to_string());
            let done = pgbench(context, callers, &script, BARE).await?;
            let made = format!("select count(*) from {schema}.{made}");
            let made: i64 = server.client().query_one(&made, &[]).await?.get(0);
            outcome.set(metric, done.rate * made as f64 / done.scripts);
        }
        Ok(outcome)
    }
}

/// What pgbench did.
#[derive(Debug, PartialEq)]
struct Done {
    scripts: f64,
    /// How many of them a second.
    rate: f64,
}

async fn pgbench(context: &Context<'_>, connections: usize, script: &str, options: &str) -> Result<Done> {
    let mut file = tempfile::NamedTempFile::new().context("a file for pgbench's script")?;
    file.write_all(script.as_bytes())?;
    let seconds = context.scale.window(0.3).as_secs().max(1);
    let output = Command::new("pgbench")
        .args(["--no-vacuum", "--protocol", "prepared"])
        .args(["--client", &connections.to_string()])
        .args(["--jobs", &connections.min(2).to_string()])
        .args(["--time", &seconds.to_string(), "--file"])
        .arg(file.path())
        .arg(context.url)
        .env("PGOPTIONS", options)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start pgbench, which is installed beside the server's programs")?;
    match done(&String::from_utf8_lossy(&output.stdout)) {
        Some(done) if output.status.success() => Ok(done),
        _ => bail!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

/// Read from what pgbench prints.
fn done(printed: &str) -> Option<Done> {
    let figure = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Done {
        scripts: figure("number of transactions actually processed: ")?,
        rate: figure("tps = ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_pgbench_prints() {
        let printed = "number of transactions actually processed: 8930\nnumber of failed transactions: 0 (0.000%)\n\
                       latency average = 0.112 ms\ntps = 8924.5 (without initial connection time)\n";
        let expected = Done {
            scripts: 8930.0,
            rate: 8924.5,
        };
        assert_eq!(done(printed), Some(expected));
        assert_eq!(done("pgbench: error"), None);
    }
}
