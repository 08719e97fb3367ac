//! The table at the head of the report.

use super::text;
use super::view::View;
use crate::candidates::Candidate;
use crate::record::Merged;
use crate::workloads::{Metric, Name, backlog};

/// A line of the summary: some points and metrics of one workload, side by side.
struct Line {
    label: &'static str,
    workload: Name,
    /// Point and metric of each figure.
    figures: &'static [(&'static str, Metric)],
    /// Ratios are to the candidate's own figure at that point rather than to a peer's.
    own: Option<&'static str>,
}

const fn line(label: &'static str, workload: Name, figures: &'static [(&'static str, Metric)]) -> Line {
    Line {
        label,
        workload,
        figures,
        own: None,
    }
}

const fn own(label: &'static str, figures: &'static [(&'static str, Metric)], baseline: &'static str) -> Line {
    Line {
        label,
        workload: Name::Backlog,
        figures,
        own: Some(baseline),
    }
}

const RATE: Metric = Metric::higher("rate", "rate");
const FETCH_P50: Metric = Metric::lower("fetch_p50_ms", "fetch p50");
const FETCH_P99: Metric = Metric::lower("fetch_p99_ms", "fetch p99");
const TURNS: &str = backlog::BASELINE;
const ACTIVITIES: &str = backlog::ACTIVITY_BASELINE;
const MANY: &str = backlog::MANY;

const LINES: &[Line] = &[
    line(
        "turns/s at 1 / 4 / 16 / 64 callers",
        Name::Turns,
        &[
            ("1 caller", RATE),
            ("4 callers", RATE),
            ("16 callers", RATE),
            ("64 callers", RATE),
        ],
    ),
    line(
        "fetch p50 / p99 at 16 callers, ms, enqueued by another process",
        Name::Backlog,
        &[(MANY, FETCH_P50), (MANY, FETCH_P99)],
    ),
    line(
        "activities/s at 1 / 4 / 16 / 64 callers",
        Name::Activities,
        &[
            ("1 caller", RATE),
            ("4 callers", RATE),
            ("16 callers", RATE),
            ("64 callers", RATE),
        ],
    ),
    line(
        "`enqueue_for_worker`/s, 16 callers",
        Name::Enqueue,
        &[("16 callers", RATE)],
    ),
    line(
        "stress, 5 activities of 0 ms, 20 in flight: 2/2, 8/8, 32/32, orchestrations/s",
        Name::Stress,
        &[
            ("2/2, 0 ms, 20 in flight", RATE),
            ("8/8, 0 ms, 20 in flight", RATE),
            ("32/32, 0 ms, 20 in flight", RATE),
        ],
    ),
    line(
        "stress, 5 activities of 10 ms, 100 in flight, 8/8, orchestrations/s",
        Name::Stress,
        &[("8/8, 10 ms, 100 in flight", RATE)],
    ),
    line(
        "stress, large payloads, orchestrations/s",
        Name::LargePayload,
        &[("1/1, 5 in flight", RATE)],
    ),
    line(
        "1 / 2 / 4 nodes of 4/4, 100 in flight, orchestrations/s",
        Name::Nodes,
        &[("1 node", RATE), ("2 nodes", RATE), ("4 nodes", RATE)],
    ),
    line(
        "hello-world latency on an idle system, p50 / p99, ms",
        Name::Latency,
        &[
            ("1 node, 4/4", Metric::lower("finished_p50_ms", "")),
            ("1 node, 4/4", Metric::lower("finished_p99_ms", "")),
        ],
    ),
    line(
        "`Client::wait_for_orchestration` of it, p50, ms",
        Name::Latency,
        &[("1 node, 4/4", Metric::lower("waited_p50_ms", ""))],
    ),
    line(
        "timer of 100 ms late by / event to end, p50, ms",
        Name::Latency,
        &[
            ("1 node, 4/4", Metric::lower("timer_p50_ms", "")),
            ("1 node, 4/4", Metric::lower("event_p50_ms", "")),
        ],
    ),
    line(
        "idle runtime with 4/4, transactions/s at the server",
        Name::Idle,
        &[("1 node", Metric::lower("transactions", ""))],
    ),
    line(
        "turn with 100 / 1,000 / 5,000 / 10,000 events of history, ms",
        Name::History,
        &[
            ("100 events", Metric::lower("turn_ms", "")),
            ("1000 events", Metric::lower("turn_ms", "")),
            ("5000 events", Metric::lower("turn_ms", "")),
            ("10000 events", Metric::lower("turn_ms", "")),
        ],
    ),
    line(
        "continue-as-new, executions/s",
        Name::ContinueAsNew,
        &[("a chain of 100", RATE)],
    ),
    line(
        "fan-out and fan-in of 1,000 activities, s",
        Name::FanOut,
        &[("1,000 activities", Metric::lower("seconds", ""))],
    ),
    line(
        "completions into one instance from 16 callers, /s",
        Name::FanIn,
        &[("16 callers", RATE)],
    ),
    own(
        "fetch p50 beside 20k messages of one locked instance, ms",
        &[("turns, 20k messages on one locked instance", FETCH_P50)],
        TURNS,
    ),
    own(
        "fetch p50 beside 500 locked instances x 20 messages, ms",
        &[("turns, 500 locked instances with 20 messages each", FETCH_P50)],
        TURNS,
    ),
    own(
        "turns/s beside 50k / 100k future timers",
        &[("turns, 50k future timers", RATE), ("turns, 100k future timers", RATE)],
        TURNS,
    ),
    own(
        "turns/s beside 50k ready instances of an incompatible version",
        &[("turns, 50k ready instances of an incompatible version", RATE)],
        TURNS,
    ),
    own(
        "turns/s beside 1,000 messages for instances never started",
        &[("turns, 1,000 messages for instances never started", RATE)],
        TURNS,
    ),
    own(
        "activities/s beside 100k of foreign tags and sessions",
        &[("activities, 100k of foreign tags and sessions", RATE)],
        ACTIVITIES,
    ),
    line(
        "turns/s under a held snapshot: first / last 5 s of 30",
        Name::Snapshot,
        &[
            ("4 callers", Metric::higher("first", "")),
            ("4 callers", Metric::higher("last", "")),
        ],
    ),
    line(
        "WAL bytes per turn (2 events, 1 activity), 1 / 16 callers",
        Name::Turns,
        &[
            ("1 caller", Metric::lower("wal_bytes", "")),
            ("16 callers", Metric::lower("wal_bytes", "")),
        ],
    ),
    line(
        "client memory for 10,000 live histories, MiB",
        Name::Memory,
        &[("10,000 histories", Metric::neither("growth_mib", ""))],
    ),
];

fn joined(texts: Vec<String>) -> String {
    if texts.iter().all(|text| text == text::MISSING) {
        return text::MISSING.to_string();
    }
    texts.join(" / ")
}

/// The whole table; lines of which nothing was measured are left out.
pub fn table(merged: &Merged) -> String {
    const COLUMNS: [Candidate; 3] = [Candidate::Pg, Candidate::PgOpt, Candidate::Postgres];
    let mut rows = Vec::new();
    for line in LINES {
        let view = View::new(merged, line.workload.as_str());
        let values = |candidate: Candidate| {
            let of = |(point, metric): &(&str, Metric)| view.median(point, candidate, metric.key);
            line.figures.iter().map(of).collect::<Vec<Option<f64>>>()
        };
        if COLUMNS
            .iter()
            .all(|candidate| values(*candidate).iter().all(Option::is_none))
        {
            continue;
        }
        let mut row = vec![line.label.to_string()];
        for candidate in COLUMNS {
            let shown = |value: Option<f64>| value.map_or(text::MISSING.to_string(), text::number);
            let mut cell = joined(values(candidate).into_iter().map(shown).collect());
            if line.figures.iter().any(|(point, _)| view.errors(point, candidate) > 0) {
                cell.push_str(" (errors)");
            }
            row.push(if candidate.is_ours() {
                format!("**{cell}**")
            } else {
                cell
            });
        }
        let ratios = line.figures.iter().map(|(point, metric)| match line.own {
            None => text::ratio(view.ratio(point, metric)),
            Some(baseline) => {
                let median = |point| view.median(point, Candidate::Postgres, metric.key);
                text::ratio(
                    median(point)
                        .zip(median(baseline))
                        .map(|(with, without)| with / without),
                )
            }
        });
        let mut ratio = joined(ratios.collect());
        if line.own.is_some() && ratio != text::MISSING {
            ratio.push_str(" own");
        }
        row.push(ratio);
        rows.push(row);
    }
    let header = [
        "workload",
        "duroxide-pg",
        "duroxide-pg-opt",
        "duroxide-postgres",
        "ratio",
    ];
    text::table(&header.map(str::to_string), &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::record;
    use crate::record::tests::measurement;
    use clap::Parser;

    #[test]
    fn every_line_names_points_and_metrics_that_exist() {
        let scale = Cli::parse_from(["compare"]).run.scale();
        for line in LINES {
            let workload = line.workload.workload();
            let points: Vec<String> = workload.points(&scale).into_iter().map(|point| point.name).collect();
            let named = line.figures.iter().map(|(point, _)| *point).chain(line.own);
            for point in named {
                assert!(
                    points.iter().any(|known| known == point),
                    "{}: no point {point}",
                    line.label
                );
            }
            for (_, metric) in line.figures {
                let known = workload.metrics().iter().find(|known| known.key == metric.key);
                assert_eq!(known.map(|known| known.better), Some(metric.better), "{}", line.label);
            }
        }
    }

    #[test]
    fn figures_stand_side_by_side_and_gaps_are_marked() {
        let one = |point, candidate, rate| record::Line::Measurement(measurement("r", "turns", point, candidate, rate));
        let merged = Merged::new(vec![
            one("1 caller", Candidate::Pg, 300.0),
            one("1 caller", Candidate::Postgres, 900.0),
            one("4 callers", Candidate::Postgres, 1500.0),
        ]);
        let text = table(&merged);
        assert!(
            text.contains("| 300 / – / – / – | – | **900 / 1,500 / – / –** | 3.00x / – / – / – |"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3);
    }
}
