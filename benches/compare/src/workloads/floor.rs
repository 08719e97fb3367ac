//! What the server itself can do: the least that a durable commit and a round trip cost.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use duroxide::providers::ProviderError;
use tokio_postgres::{Client, Statement};

use super::calls::load_of;
use super::{Chart, Metric, Point, Shape, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::load::{self, Recorder, Work};
use crate::record::Outcome;
use crate::server;

/// A connection for each caller, and a statement prepared on it.
struct Statements {
    connections: Vec<(Client, Statement)>,
}

#[async_trait]
impl Work for Statements {
    async fn once(&self, caller: usize, _round: u64, recorder: &Recorder) {
        let (client, statement) = &self.connections[caller];
        let call = async {
            let executed = client.execute(statement, &[]).await;
            executed.map_err(|error| ProviderError::permanent("statement", error.to_string()))
        };
        if recorder.call("statement", call).await.is_some() {
            recorder.done();
        }
    }
}

async fn statements(context: &Context<'_>, callers: usize, sql: &str) -> Result<Arc<Statements>> {
    let mut connections = Vec::new();
    for _ in 0..callers {
        let client = server::connect(context.url).await?;
        let statement = client.prepare(sql).await?;
        connections.push((client, statement));
    }
    Ok(Arc::new(Statements { connections }))
}

pub struct Floor;

#[async_trait]
impl Workload for Floor {
    fn title(&self) -> &'static str {
        "The floor"
    }

    fn about(&self) -> &'static str {
        "What the server can do at best, without any provider: transactions of one insert of a tiny row into a table with a \
         primary key, and round trips of `select 1`, each on as many connections, with prepared statements. A turn needs at \
         least two durable commits (enqueue and ack), an activity as well."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        Point::numbered(scale.pick(&[1, 4, 16, 64], &[4]), "connection", "connections")
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "durable commits/s"),
                Metric::lower("commit_p50_ms", "commit p50, ms"),
                Metric::lower("commit_p99_ms", "commit p99, ms"),
                Metric::higher("round_trips", "round trips/s"),
                Metric::lower("round_trip_p50_ms", "round trip p50, ms"),
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
        let schema = context.store.place();
        let server = context.server;
        server
            .execute(&format!(
                "create schema \"{schema}\";
                 create table \"{schema}\".rows (id bigint generated always as identity primary key, n int not null)"
            ))
            .await
            .context("cannot create a table")?;
        let load = load_of(context.scale, point.count(), context.scale.window(0.2));
        let insert = format!("insert into \"{schema}\".rows (n) values (1)");
        let work = statements(context, point.count(), &insert).await?;
        let mut commits = load::run(load, work, None).await;
        let work = statements(context, point.count(), "select 1").await?;
        let load = load_of(context.scale, point.count(), context.scale.window(0.1));
        let mut trips = load::run(load, work, None).await;

        let mut outcome = Outcome {
            errors: commits.errors + trips.errors,
            error: commits.error.clone().or(trips.error.clone()),
            cut: commits.cut || trips.cut,
            ..Outcome::default()
        };
        outcome.set("rate", commits.rate());
        outcome.set("commit_p50_ms", commits.percentile_ms("statement", 50.0));
        outcome.set("commit_p99_ms", commits.percentile_ms("statement", 99.0));
        outcome.set("round_trips", trips.rate());
        outcome.set("round_trip_p50_ms", trips.percentile_ms("statement", 50.0));
        Ok(outcome)
    }
}
