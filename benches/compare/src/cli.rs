//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::candidates::Candidate;
use crate::workloads::Name;

/// Measures duroxide-postgres beside duroxide-pg, duroxide-pg-opt and the SQLite provider.
///
/// All candidates run interleaved on one PostgreSQL server, each measurement on a fresh schema after a checkpoint.
/// Results are appended to results.jsonl as they come; the report (README.md and charts) is rendered from that file, and
/// runs of different workloads are merged into one report. Start it with `scripts/compare`, which provides a throwaway
/// server with default durability. Everything but `steady` takes about 50 minutes; a machine that does nothing else is
/// needed for figures that mean something.
#[derive(Debug, Parser)]
#[command(name = "compare", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Renders the report again from the results there are, without measuring
    Report(ReportArgs),
    /// Touches many histories and prints the memory it took: a process of its own for the workload `memory`
    #[command(hide = true)]
    MemoryOf(MemoryArgs),
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folder with results.jsonl; the report is written beside it
    #[arg(long, value_name = "DIR", default_value = "benches/report")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct MemoryArgs {
    #[arg(long)]
    pub candidate: Candidate,
    #[arg(long)]
    pub schema: String,
    #[arg(long)]
    pub seconds: f64,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// What to measure, separated by commas [default: everything]
    #[arg(long, short, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub workloads: Vec<Name>,
    /// Only the points of them whose names contain this, as they stand in the report: "8/8, 0 ms", "4 nodes".
    ///
    /// In the report a workload is always one run: its other points are gone. Use --out to keep them.
    #[arg(long, short, value_name = "TEXT")]
    pub points: Option<String>,
    /// Who takes part, separated by commas [default: everybody]
    #[arg(long, short, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub candidates: Vec<Candidate>,
    /// How often each point is measured; some costly workloads and reference columns have fewer
    #[arg(long, short, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// How long one point of `turns` is measured, in seconds; other workloads take a share of it
    #[arg(long, short, default_value_t = 10.0, value_name = "S", value_parser = positive)]
    pub seconds: f64,
    /// When a measurement that does not end by itself is cut short, in seconds
    #[arg(long, default_value_t = 60.0, value_name = "S", value_parser = positive)]
    pub limit: f64,
    /// Minutes of steady load for the workload `steady`; 0 skips it
    #[arg(long, default_value_t = 0.0, value_name = "N", value_parser = not_negative)]
    pub steady_minutes: f64,
    /// Measure `steady` for all candidates, not only for duroxide-postgres
    #[arg(long)]
    pub steady_all: bool,
    /// Run everything once, a second or less each: shows that it works, measures nothing
    #[arg(long)]
    pub smoke: bool,
    /// Folder for results and report [default: benches/report, with --smoke target/compare-smoke]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Forget earlier results instead of merging with them
    #[arg(long)]
    pub fresh: bool,
    /// Accept a server that is not durable (fsync, synchronous_commit or full_page_writes off)
    #[arg(long)]
    pub allow_unsafe: bool,
    /// The server to measure on
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("must not be negative".to_string())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match not_negative(text)? {
        0.0 => Err("must be greater than 0".to_string()),
        number => Ok(number),
    }
}

impl RunArgs {
    pub fn workloads(&self) -> Vec<Name> {
        let chosen = |name: &Name| self.workloads.is_empty() || self.workloads.contains(name);
        Name::ALL.into_iter().filter(chosen).collect()
    }

    pub fn candidates(&self) -> Vec<Candidate> {
        let chosen = |candidate: &Candidate| self.candidates.is_empty() || self.candidates.contains(candidate);
        Candidate::ALL.into_iter().filter(chosen).collect()
    }

    pub fn out(&self) -> PathBuf {
        let usual = if self.smoke {
            "target/compare-smoke"
        } else {
            "benches/report"
        };
        self.out.clone().unwrap_or_else(|| PathBuf::from(usual))
    }

    pub fn scale(&self) -> Scale {
        Scale {
            smoke: self.smoke,
            seconds: self.seconds,
            limit: Duration::from_secs_f64(if self.smoke { self.limit.min(20.0) } else { self.limit }),
            steady: Duration::from_secs_f64(self.steady_minutes * 60.0),
            steady_all: self.steady_all,
        }
    }
}

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Scale {
    pub smoke: bool,
    seconds: f64,
    /// For one measurement.
    pub limit: Duration,
    pub steady: Duration,
    pub steady_all: bool,
}

impl Scale {
    /// One of two amounts.
    pub fn pick<T>(&self, full: T, smoke: T) -> T {
        if self.smoke { smoke } else { full }
    }

    /// `share` of the seconds a point is measured.
    pub fn window(&self, share: f64) -> Duration {
        Duration::from_secs_f64(self.pick(self.seconds * share, 0.3))
    }

    pub fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.pick(0.5, 0.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_choose_and_nothing_means_all() {
        let cli = Cli::parse_from(["compare", "--workloads", "idle,turns", "--candidates", "pg-opt"]);
        assert_eq!(cli.run.workloads(), [Name::Turns, Name::Idle]);
        assert_eq!(cli.run.candidates(), [Candidate::PgOpt]);
        let cli = Cli::parse_from(["compare"]);
        assert_eq!(cli.run.workloads().len(), Name::ALL.len());
        assert!(Cli::try_parse_from(["compare", "--seconds", "0"]).is_err());
    }
}
