//! What is measured. Each workload knows its points, how to measure one, and how its results are to be read.

pub mod backlog;
mod calls;
mod fan_in;
mod floor;
mod history;
mod idle;
mod latency;
pub mod memory;
mod nodes;
mod prepare;
pub mod prune;
mod snapshot;
mod steady;
mod stress;
mod whole;

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::record::Outcome;

/// All workloads, in the order of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Orchestration turns through the trait: enqueue a start, fetch, ack
    Turns,
    /// Activities through the trait: enqueue, fetch, ack with a completion
    Activities,
    /// Enqueueing activities
    Enqueue,
    /// Completions from many workers into one instance
    FanIn,
    /// The framework's stress test: parallel orchestrations
    Stress,
    /// The framework's stress test: large payloads
    LargePayload,
    /// 1, 2 and 4 nodes on one schema
    Nodes,
    /// One orchestration at a time on an idle system, a timer, an external event
    Latency,
    /// What nodes without work cost
    Idle,
    /// A turn of an instance with a long history
    History,
    /// A chain of executions
    ContinueAsNew,
    /// One orchestration with many activities at once
    FanOut,
    /// Turns and activities beside work that cannot be taken now
    Backlog,
    /// Turns while somebody holds an old snapshot
    Snapshot,
    /// Deleting 100,000 finished instances beside work
    Prune,
    /// Turns for many minutes (see --steady-minutes)
    Steady,
    /// Memory of a process that has touched many histories
    Memory,
    /// What the server itself can do
    Floor,
}

impl Name {
    pub const ALL: [Self; 18] = [
        Self::Turns,
        Self::Activities,
        Self::Enqueue,
        Self::FanIn,
        Self::Stress,
        Self::LargePayload,
        Self::Nodes,
        Self::Latency,
        Self::Idle,
        Self::History,
        Self::ContinueAsNew,
        Self::FanOut,
        Self::Backlog,
        Self::Snapshot,
        Self::Prune,
        Self::Steady,
        Self::Memory,
        Self::Floor,
    ];

    /// As on the command line and in the results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Activities => "activities",
            Self::Enqueue => "enqueue",
            Self::FanIn => "fan-in",
            Self::Stress => "stress",
            Self::LargePayload => "large-payload",
            Self::Nodes => "nodes",
            Self::Latency => "latency",
            Self::Idle => "idle",
            Self::History => "history",
            Self::ContinueAsNew => "continue-as-new",
            Self::FanOut => "fan-out",
            Self::Backlog => "backlog",
            Self::Snapshot => "snapshot",
            Self::Prune => "prune",
            Self::Steady => "steady",
            Self::Memory => "memory",
            Self::Floor => "floor",
        }
    }

    pub fn workload(self) -> &'static dyn Workload {
        match self {
            Self::Turns => &calls::Turns,
            Self::Activities => &calls::Activities,
            Self::Enqueue => &calls::Enqueue,
            Self::FanIn => &fan_in::FanIn,
            Self::Stress => &stress::Stress,
            Self::LargePayload => &stress::LargePayload,
            Self::Nodes => &nodes::Nodes,
            Self::Latency => &latency::Latency,
            Self::Idle => &idle::Idle,
            Self::History => &history::History,
            Self::ContinueAsNew => &whole::ContinueAsNew,
            Self::FanOut => &whole::FanOut,
            Self::Backlog => &backlog::Backlog,
            Self::Snapshot => &snapshot::Snapshot,
            Self::Prune => &prune::Prune,
            Self::Steady => &steady::Steady,
            Self::Memory => &memory::Memory,
            Self::Floor => &floor::Floor,
        }
    }
}

/// One configuration of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub name: String,
    /// The number that changes from point to point.
    pub x: f64,
}

impl Point {
    pub fn new(name: impl Into<String>, x: f64) -> Self {
        Self { name: name.into(), x }
    }

    pub fn count(&self) -> usize {
        self.x as usize
    }

    /// `x` things each.
    pub fn numbered(counts: &[usize], one: &str, many: &str) -> Vec<Self> {
        counts
            .iter()
            .map(|&count| Self::new(format!("{count} {}", if count == 1 { one } else { many }), count as f64))
            .collect()
    }
}

/// Which direction is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
    /// Neither: no ratio is shown.
    Neither,
}

/// A value of a workload's [`Outcome`]s, and how to read it.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub key: &'static str,
    pub title: &'static str,
    pub better: Better,
}

impl Metric {
    pub const fn higher(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            better: Better::Higher,
        }
    }

    pub const fn lower(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            better: Better::Lower,
        }
    }

    pub const fn neither(key: &'static str, title: &'static str) -> Self {
        Self {
            key,
            title,
            better: Better::Neither,
        }
    }
}

/// A picture of one metric.
#[derive(Debug, Clone, Copy)]
pub struct Chart {
    pub metric: &'static str,
    pub title: &'static str,
    /// What the points are.
    pub x: &'static str,
    /// What the values are.
    pub y: &'static str,
    pub shape: Shape,
    /// Only points whose names contain this.
    pub points: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A group of bars for each point.
    Bars,
    /// A group of bars for each of these metrics, by key and label; of the first point.
    Metrics(&'static [(&'static str, &'static str)]),
    /// A line for each candidate over `Point::x`, both axes logarithmic.
    Lines,
    /// A line for each candidate from a series of the outcome: values over time, this many seconds apart.
    Series(u32),
}

#[async_trait]
pub trait Workload: Sync {
    fn title(&self) -> &'static str;

    /// How it is measured, for the report.
    fn about(&self) -> &'static str;

    fn points(&self, scale: &Scale) -> Vec<Point>;

    fn metrics(&self) -> &'static [Metric];

    fn charts(&self) -> &'static [Chart] {
        &[]
    }

    /// The point whose values a point's are to be compared with, candidate by candidate.
    fn baseline(&self, _point: &str) -> Option<&'static str> {
        None
    }

    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        candidate != Candidate::Server
    }

    /// How often it is measured at most: less for what takes long.
    fn most_repetitions(&self) -> u32 {
        u32::MAX
    }

    /// SQLite is a point of reference, not a rival: once is enough.
    fn repetitions(&self, candidate: Candidate, asked: u32) -> u32 {
        match candidate {
            Candidate::Sqlite => 1,
            _ => asked.min(self.most_repetitions()),
        }
    }

    /// When to give up on a measurement that has not even cut itself short: something hangs that never should.
    fn backstop(&self, scale: &Scale) -> Duration {
        scale.limit * 3
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_command_line() {
        for name in Name::ALL {
            let value = name.to_possible_value().expect("no workload is hidden");
            assert_eq!(value.get_name(), name.as_str());
        }
        assert_eq!(Name::ALL.len(), Name::value_variants().len());
    }

    #[test]
    fn charts_show_metrics_that_exist() {
        for name in Name::ALL {
            let workload = name.workload();
            for chart in workload.charts() {
                let known = workload.metrics().iter().any(|metric| metric.key == chart.metric);
                assert!(known || matches!(chart.shape, Shape::Series(_)), "{}", chart.title);
            }
        }
    }

    #[test]
    fn point_names_are_unique() {
        for name in Name::ALL {
            for smoke in [false, true] {
                let arguments: &[&str] = if smoke { &["compare", "--smoke"] } else { &["compare"] };
                let scale = <crate::cli::Cli as clap::Parser>::parse_from(arguments).run.scale();
                let mut points: Vec<String> = name.workload().points(&scale).into_iter().map(|p| p.name).collect();
                let count = points.len();
                points.sort();
                points.dedup();
                assert_eq!(points.len(), count, "{}", name.as_str());
            }
        }
    }
}
