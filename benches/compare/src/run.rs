//! Measures everything that was asked for, candidates interleaved.

use std::io::IsTerminal;
use std::time::Instant;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::timeout;

use crate::candidates::Candidate;
use crate::cli::{RunArgs, Scale};
use crate::context::Context;
use crate::machine;
use crate::record::{Line, Measurement, Outcome, Results};
use crate::report;
use crate::server::Server;
use crate::workloads::{Name, Point};

const HOW_TO_START: &str = "\
no server to measure on: DATABASE_URL is not set. `scripts/compare` starts a throwaway one; so does
    PG_DURABLE=1 scripts/with-postgres cargo run --release -p compare -- [OPTIONS]";

/// One measurement that is to be made.
struct Step {
    name: Name,
    point: Point,
    candidate: Candidate,
    repetition: u32,
}

/// The order of measurements: workload by workload; in each, repetition by repetition and point by point, all candidates
/// directly after one another, every time beginning with the next, so that whatever changes on the machine meets all.
fn plan(args: &RunArgs, scale: &Scale) -> Vec<Step> {
    let asked = if args.smoke { 1 } else { args.repetitions };
    let mut steps = Vec::new();
    for name in args.workloads() {
        let workload = name.workload();
        let mut candidates = args.candidates();
        if !candidates.contains(&Candidate::Server) {
            candidates.push(Candidate::Server);
        }
        candidates.retain(|candidate| workload.takes_part(*candidate, scale));
        if candidates.is_empty() {
            continue;
        }
        let mut points = workload.points(scale);
        points.retain(|point| args.points.as_ref().is_none_or(|part| point.name.contains(part)));
        for repetition in 0..asked {
            for (index, point) in points.iter().enumerate() {
                let mut order = candidates.clone();
                order.rotate_left((repetition as usize + index) % candidates.len());
                order.retain(|candidate| repetition < workload.repetitions(*candidate, asked));
                steps.extend(order.into_iter().map(|candidate| Step {
                    name,
                    point: point.clone(),
                    candidate,
                    repetition,
                }));
            }
        }
    }
    steps
}

/// Progress on a terminal, plain lines elsewhere.
struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
}

impl Progress {
    fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {elapsed} of about {duration}  {wide_msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            bar,
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn say(&self, line: &str) {
        if self.on_terminal {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }
}

fn describe(step: &Step, outcome: &Outcome) -> String {
    let metrics = step.name.workload().metrics();
    let shown = metrics.iter().find_map(|metric| {
        let value = outcome.values.get(metric.key)?;
        Some(format!("{} {}", report::number(*value), metric.title))
    });
    let mut line = format!(
        "{:<15} {:<28} {:<18} {}",
        step.name.as_str(),
        step.point.name,
        step.candidate.name(),
        shown.as_deref().unwrap_or("no result")
    );
    if outcome.cut {
        line.push_str(", cut short");
    }
    if outcome.errors > 0 {
        let ours = if step.candidate.is_ours() { "!!! " } else { "" };
        let first = outcome.error.as_deref().unwrap_or("unknown");
        line = format!("{ours}{line}, errors: {} ({first})", outcome.errors);
    }
    line
}

async fn measure(step: &Step, url: &str, server: &Server, scale: &Scale) -> (Outcome, Option<String>) {
    server.checkpoint().await;
    let context = match Context::new(step.candidate, url, server, scale).await {
        Ok(context) => context,
        Err(error) => return (Outcome::failed(&format!("{error:#}")), None),
    };
    let workload = step.name.workload();
    let backstop = workload.backstop(scale);
    let outcome = match timeout(backstop, workload.measure(&context, &step.point)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::failed(&format!("{error:#}")),
        Err(_) => Outcome::failed(&format!("no result within {:.0} s", backstop.as_secs_f64())),
    };
    let trouble = context.finish().await.err().map(|error| format!("{error:#}"));
    (outcome, trouble)
}

/// Measures, and writes the report. Whether duroxide-postgres came through without errors.
pub async fn run(args: &RunArgs) -> Result<bool> {
    let url = args.database_url.as_deref().context(HOW_TO_START)?;
    let server = Server::connect(url).await?;
    if !args.allow_unsafe {
        server.require_durable().await?;
    }
    if !server.counts_statements() {
        eprintln!("pg_stat_statements cannot be used on this server: statements are not counted");
    }
    let scale = args.scale();
    let steps = plan(args, &scale);
    let folder = args.out();
    // A smoke test starts anew: nobody wants its figures beside others.
    let mut results = Results::open(&folder, args.fresh || args.smoke)?;
    let run = machine::describe(args, &server).await?;
    let id = run.id.clone();
    results.append(&Line::Run(run))?;

    let clock = Instant::now();
    let progress = Progress::new(steps.len());
    let mut own_errors = Vec::new();
    for step in steps {
        let Step {
            name, point, candidate, ..
        } = &step;
        let message = format!("{}, {}: {}", name.as_str(), point.name, candidate.name());
        progress.bar.set_message(message.clone());
        let begun = Instant::now();
        let (outcome, trouble) = measure(&step, url, &server, &scale).await;
        progress.say(&describe(&step, &outcome));
        if let Some(trouble) = trouble {
            progress.say(&format!("could not clean up after {message}: {trouble}"));
        }
        if candidate.is_ours() && outcome.errors > 0 {
            own_errors.push(describe(&step, &outcome));
        }
        progress.bar.inc(1);
        results.append(&Line::Measurement(Measurement {
            run: id.clone(),
            workload: name.as_str().to_string(),
            point: step.point.name,
            x: step.point.x,
            candidate: step.candidate,
            repetition: step.repetition,
            took: begun.elapsed().as_secs_f64(),
            outcome,
        }))?;
    }
    progress.bar.finish_and_clear();
    let report = report::render(&folder)?;
    eprintln!(
        "{:.0} s; the report is {}",
        clock.elapsed().as_secs_f64(),
        report.display()
    );
    if !own_errors.is_empty() {
        eprintln!("\nduroxide-postgres had errors:");
        for line in &own_errors {
            eprintln!("  {line}");
        }
    }
    Ok(own_errors.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn steps(arguments: &[&str]) -> Vec<Step> {
        let cli = crate::cli::Cli::parse_from(arguments);
        plan(&cli.run, &cli.run.scale())
    }

    #[test]
    fn candidates_take_turns_to_be_first() {
        let steps = steps(&["compare", "-w", "turns", "-c", "postgres,pg,pg-opt", "-r", "3"]);
        let firsts: Vec<Candidate> = steps.chunks(3).map(|group| group[0].candidate).collect();
        assert_eq!(steps.len(), 3 * 4 * 3);
        for candidate in [Candidate::Postgres, Candidate::Pg, Candidate::PgOpt] {
            assert_eq!(firsts.iter().filter(|first| **first == candidate).count(), 4);
        }
        for group in steps.chunks(3) {
            assert!(group.iter().all(|step| step.point == group[0].point));
        }
    }

    #[test]
    fn references_are_measured_once_and_the_floor_by_the_server_alone() {
        let sqlite = |step: &&Step| step.candidate == Candidate::Sqlite;
        assert_eq!(steps(&["compare", "-w", "turns"]).iter().filter(sqlite).count(), 4);
        let floor = steps(&["compare", "-w", "floor", "-c", "postgres"]);
        assert!(!floor.is_empty());
        assert!(floor.iter().all(|step| step.candidate == Candidate::Server));
    }

    #[test]
    fn steady_load_has_to_be_asked_for() {
        assert!(steps(&["compare", "-w", "steady"]).is_empty());
        assert_eq!(steps(&["compare", "-w", "steady", "--steady-minutes", "1"]).len(), 1);
        let all = steps(&["compare", "-w", "steady", "--steady-minutes", "1", "--steady-all"]);
        assert_eq!(all.len(), 4);
    }
}
