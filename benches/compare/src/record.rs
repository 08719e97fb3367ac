//! What is kept of a run: JSON lines, one per measurement, and one about the run before its first.
//!
//! Results are appended as they come, so that a run that is interrupted keeps what it has, and several runs of a few
//! workloads each make one report.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::candidates::Candidate;

/// File name of the raw results, beside the report.
pub const RESULTS: &str = "results.jsonl";

/// Everything about a run that a reader needs to judge its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: String,
    /// UTC.
    pub date: String,
    /// Of this repository; with a mark when files differ from it.
    pub commit: String,
    pub smoke: bool,
    pub repetitions: u32,
    pub seconds: f64,
    pub limit_seconds: f64,
    pub pool_size: usize,
    pub cpu: String,
    pub cores: usize,
    pub memory_gb: f64,
    pub system: String,
    pub server: String,
    pub settings: Vec<(String, String)>,
    pub versions: Vec<(String, String)>,
}

/// One candidate, one point of one workload, once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub values: BTreeMap<String, f64>,
    /// Values over time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
    /// Calls or orchestrations that failed.
    #[serde(default)]
    pub errors: u64,
    /// The first error, or why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time limit ended it: values are as of then.
    #[serde(default)]
    pub cut: bool,
}

impl Outcome {
    /// Notes a value; one that could not be had is left out.
    pub fn set(&mut self, key: &str, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.values.insert(key.to_string(), value);
        }
    }

    /// One that only has an error to show.
    pub fn failed(error: &str) -> Self {
        Self {
            errors: 1,
            error: Some(error.to_string()),
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub run: String,
    pub workload: String,
    pub point: String,
    /// The number that changes from point to point.
    pub x: f64,
    pub candidate: Candidate,
    pub repetition: u32,
    /// How long it took with preparation and cleaning up, in seconds.
    #[serde(default)]
    pub took: f64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    Run(Run),
    Measurement(Measurement),
}

/// The file that results are appended to.
pub struct Results {
    file: File,
}

impl Results {
    pub fn open(folder: &Path, fresh: bool) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(RESULTS);
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .append(!fresh)
            .truncate(fresh)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file })
    }

    pub fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        Ok(self.file.write_all(text.as_bytes())?)
    }
}

/// Reads what [`Results`] wrote.
pub fn read(folder: &Path) -> Result<Vec<Line>> {
    let path: PathBuf = folder.join(RESULTS);
    let file = File::open(&path).with_context(|| {
        format!(
            "no results in {}: measure first, or name the folder with --out",
            path.display()
        )
    })?;
    let mut lines = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        if !line.trim().is_empty() {
            lines.push(
                serde_json::from_str(&line)
                    .with_context(|| format!("{}, line {}: not a result", path.display(), number + 1))?,
            );
        }
    }
    Ok(lines)
}

/// Results of several runs, made into one: each workload as the latest run that measured it left it. Runs of the same
/// workload are never mixed: they may be of different code.
#[derive(Debug, Default)]
pub struct Merged {
    /// Those that something is left of, oldest first.
    pub runs: Vec<Run>,
    pub measurements: Vec<Measurement>,
}

impl Merged {
    pub fn new(lines: Vec<Line>) -> Self {
        let mut runs = Vec::new();
        let mut measurements: Vec<Measurement> = Vec::new();
        for line in lines {
            match line {
                Line::Run(run) => runs.push(run),
                Line::Measurement(measurement) => measurements.push(measurement),
            }
        }
        let latest: BTreeMap<String, String> = measurements
            .iter()
            .map(|measurement| (measurement.workload.clone(), measurement.run.clone()))
            .collect();
        measurements.retain(|measurement| latest.get(&measurement.workload) == Some(&measurement.run));
        let used: BTreeSet<&String> = latest.values().collect();
        runs.retain(|run| used.contains(&run.id));
        Self { runs, measurements }
    }

    /// The run that a workload was measured in.
    pub fn run_of(&self, workload: &str) -> Option<&Run> {
        let first = self.of(workload).next()?;
        self.runs.iter().find(|run| run.id == first.run)
    }

    pub fn of<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements
            .iter()
            .filter(move |measurement| measurement.workload == workload)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn run(id: &str) -> Run {
        Run {
            id: id.to_string(),
            date: "2025-01-01 00:00 UTC".to_string(),
            commit: "abc".to_string(),
            smoke: false,
            repetitions: 3,
            seconds: 10.0,
            limit_seconds: 60.0,
            pool_size: 16,
            cpu: "a CPU".to_string(),
            cores: 2,
            memory_gb: 8.0,
            system: "Linux".to_string(),
            server: "PostgreSQL 17".to_string(),
            settings: vec![("fsync".to_string(), "on".to_string())],
            versions: vec![("duroxide".to_string(), "0.1.32".to_string())],
        }
    }

    pub fn measurement(run: &str, workload: &str, point: &str, candidate: Candidate, rate: f64) -> Measurement {
        let mut outcome = Outcome::default();
        outcome.set("rate", rate);
        Measurement {
            run: run.to_string(),
            workload: workload.to_string(),
            point: point.to_string(),
            x: 1.0,
            candidate,
            repetition: 0,
            took: 1.0,
            outcome,
        }
    }

    #[test]
    fn later_runs_replace_the_workloads_they_measured_and_no_others() {
        let one = |run: &str, workload: &str, rate| {
            Line::Measurement(measurement(run, workload, "p", Candidate::Postgres, rate))
        };
        let merged = Merged::new(vec![
            Line::Run(run("first")),
            one("first", "turns", 1.0),
            one("first", "idle", 2.0),
            Line::Run(run("second")),
            one("second", "turns", 3.0),
            one("second", "turns", 4.0),
        ]);
        let rates = |workload| -> Vec<f64> {
            merged
                .of(workload)
                .map(|measurement| measurement.outcome.values["rate"])
                .collect()
        };
        assert_eq!(rates("turns"), [3.0, 4.0]);
        assert_eq!(rates("idle"), [2.0]);
        assert_eq!(merged.run_of("turns").map(|run| run.id.as_str()), Some("second"));
        assert_eq!(merged.run_of("idle").map(|run| run.id.as_str()), Some("first"));
        assert_eq!(merged.run_of("nodes"), None);
        assert_eq!(merged.runs.len(), 2);
    }

    #[test]
    fn a_run_of_which_nothing_is_left_is_forgotten() {
        let merged = Merged::new(vec![
            Line::Run(run("first")),
            Line::Measurement(measurement("first", "turns", "p", Candidate::Pg, 1.0)),
            Line::Run(run("second")),
            Line::Measurement(measurement("second", "turns", "p", Candidate::Pg, 2.0)),
        ]);
        assert_eq!(merged.runs.len(), 1);
        assert_eq!(merged.runs[0].id, "second");
    }

    #[test]
    fn what_is_written_is_read_again() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut line = measurement("r", "turns", "4 callers", Candidate::PgOpt, 12.5);
        line.outcome.series.insert("rates".to_string(), vec![1.0, 2.0]);
        line.outcome.error = Some("it \"broke\"\n".to_string());
        let written = vec![Line::Run(run("r")), Line::Measurement(line)];
        let mut results = Results::open(folder.path(), true)?;
        results.append(&written[0])?;
        drop(results);
        Results::open(folder.path(), false)?.append(&written[1])?;
        assert_eq!(read(folder.path())?, written);
        assert!(read(&folder.path().join("elsewhere")).is_err());
        Ok(())
    }

    #[test]
    fn values_that_could_not_be_had_are_left_out() {
        let mut outcome = Outcome::default();
        outcome.set("a", 1.0);
        outcome.set("b", None);
        outcome.set("c", f64::NAN);
        assert_eq!(outcome.values.keys().collect::<Vec<_>>(), ["a"]);
    }
}
