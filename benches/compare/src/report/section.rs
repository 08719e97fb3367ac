//! The part of the report about one workload.

use super::canvas::Labels;
use super::chart::{self, Bar, Curve};
use super::text;
use super::view::View;
use crate::candidates::Candidate;
use crate::record::Run;
use crate::workloads::{Chart, Metric, Name, Shape, Workload};

/// More metrics than this are folded away behind the first.
const SHOWN: usize = 3;

/// A picture that belongs to the report.
pub struct Picture {
    pub file: String,
    pub svg: String,
}

fn has_ratio(candidates: &[Candidate]) -> bool {
    candidates.contains(&Candidate::Postgres) && candidates.iter().any(|candidate| candidate.is_peer())
}

fn header(first: &str, candidates: &[Candidate]) -> Vec<String> {
    let mut header = vec![first.to_string()];
    header.extend(candidates.iter().map(|candidate| match candidate.is_ours() {
        true => format!("**{}**", candidate.name()),
        false => candidate.name().to_string(),
    }));
    if has_ratio(candidates) {
        header.push("ratio".to_string());
    }
    header
}

/// A candidate's value, with its relation to the candidate's own baseline where there is one.
fn cell(view: &View<'_>, workload: &dyn Workload, point: &str, candidate: Candidate, metric: &Metric) -> String {
    let mut text = text::spread(view.spread(point, candidate, metric.key));
    let own = workload.baseline(point).filter(|baseline| *baseline != point);
    if let Some(baseline) = own
        && let Some(with) = view.median(point, candidate, metric.key)
        && let Some(without) = view.median(baseline, candidate, metric.key)
        && without > 0.0
    {
        text = format!("{text}, {} own", text::ratio(Some(with / without)));
    }
    if view.cut(point, candidate) {
        text.push_str(" †");
    }
    // Once for each point is enough.
    let first = workload.metrics().first().is_some_and(|first| first.key == metric.key);
    match view.errors(point, candidate) {
        errors if errors > 0 && first => format!("{text}, errors: {errors}"),
        _ => text,
    }
}

fn row(view: &View<'_>, workload: &dyn Workload, label: String, point: &str, metric: &Metric) -> Vec<String> {
    let candidates = view.candidates();
    let mut row = vec![label];
    row.extend(
        candidates
            .iter()
            .map(|candidate| cell(view, workload, point, *candidate, metric)),
    );
    if has_ratio(&candidates) {
        row.push(text::ratio(view.ratio(point, metric)));
    }
    row
}

fn tables(view: &View<'_>, workload: &dyn Workload) -> String {
    let points = view.points();
    let metrics: Vec<&Metric> = workload
        .metrics()
        .iter()
        .filter(|metric| {
            view.measurements()
                .iter()
                .any(|one| one.outcome.values.contains_key(metric.key))
        })
        .collect();
    let candidates = view.candidates();
    let several = |metrics: &[&Metric]| {
        let rows: Vec<Vec<String>> = points
            .iter()
            .flat_map(|(point, _)| metrics.iter().map(move |metric| (*point, *metric)))
            .map(|(point, metric)| row(view, workload, format!("{point}: {}", metric.title), point, metric))
            .collect();
        text::table(&header("", &candidates), &rows)
    };
    match (points.as_slice(), metrics.as_slice()) {
        (_, []) => {
            let rows: Vec<Vec<String>> = points
                .iter()
                .filter_map(|(point, _)| {
                    let metric = workload.metrics().first()?;
                    Some(row(view, workload, (*point).to_string(), point, metric))
                })
                .collect();
            text::table(&header("", &candidates), &rows)
        }
        ([(point, _)], metrics) => {
            let rows: Vec<Vec<String>> = metrics
                .iter()
                .map(|metric| row(view, workload, metric.title.to_string(), point, metric))
                .collect();
            text::table(&header(point, &candidates), &rows)
        }
        (points, [first, rest @ ..]) if rest.is_empty() || metrics.len() > SHOWN => {
            let rows: Vec<Vec<String>> = points
                .iter()
                .map(|(point, _)| row(view, workload, (*point).to_string(), point, first))
                .collect();
            let mut text = text::table(&header(first.title, &candidates), &rows);
            if !rest.is_empty() {
                text.push_str("\n<details><summary>Latencies and costs</summary>\n\n");
                text.push_str(&several(rest));
                text.push_str("\n</details>\n");
            }
            text
        }
        (_, metrics) => several(metrics),
    }
}

/// What went wrong, candidate by candidate.
fn troubles(view: &View<'_>) -> String {
    let mut text = String::new();
    for (point, _) in view.points() {
        for candidate in view.candidates() {
            let errors = view.errors(point, candidate);
            let first = view.at(point, candidate).find_map(|one| one.outcome.error.as_deref());
            if errors > 0 {
                let first = first.map(text::code).unwrap_or_default();
                let name = candidate.name();
                text.push_str(&format!("- {name}, {point}: errors: {errors}, the first: {first}\n"));
            }
        }
    }
    if view.measurements().iter().any(|one| one.outcome.cut) {
        text.push_str("- † cut short by the time limit: as of then.\n");
    }
    text
}

fn bar(view: &View<'_>, point: &str, candidate: Candidate, key: &str) -> Option<Bar> {
    view.spread(point, candidate, key).map(|spread| Bar {
        candidate,
        value: spread.median,
        min: spread.min,
        max: spread.max,
    })
}

fn bars_at(view: &View<'_>, point: &str, key: &str) -> Vec<Bar> {
    let candidates = view.candidates();
    candidates
        .into_iter()
        .filter_map(|candidate| bar(view, point, candidate, key))
        .collect()
}

/// A line for each candidate that has points to connect.
fn curves(view: &View<'_>, points: impl Fn(Candidate) -> Vec<(f64, f64)>) -> Vec<Curve> {
    let candidates = view.candidates().into_iter();
    candidates
        .map(|candidate| Curve {
            candidate,
            points: points(candidate),
        })
        .filter(|curve| !curve.points.is_empty())
        .collect()
}

fn draw(view: &View<'_>, chosen: &Chart) -> Option<String> {
    let labels = Labels {
        title: chosen.title,
        x: chosen.x,
        y: chosen.y,
    };
    match chosen.shape {
        Shape::Bars => {
            let groups: Vec<(String, Vec<Bar>)> = view
                .points()
                .into_iter()
                .filter(|(point, _)| point.contains(chosen.points))
                .map(|(point, _)| (point.to_string(), bars_at(view, point, chosen.metric)))
                .collect();
            chart::bars(&labels, &groups)
        }
        Shape::Metrics(metrics) => {
            let (point, _) = *view.points().first()?;
            let groups: Vec<(String, Vec<Bar>)> = metrics
                .iter()
                .map(|(key, label)| ((*label).to_string(), bars_at(view, point, key)))
                .collect();
            chart::bars(&labels, &groups)
        }
        Shape::Lines => {
            let all = curves(view, |candidate| {
                let points = view.points().into_iter();
                points
                    .filter_map(|(point, x)| Some((x, view.median(point, candidate, chosen.metric)?)))
                    .collect()
            });
            chart::lines(&labels, &all, true)
        }
        Shape::Series(seconds) => {
            let all = curves(view, |candidate| {
                let series = view
                    .measurements()
                    .iter()
                    .filter(|one| one.candidate == candidate)
                    .find_map(|one| one.outcome.series.get(chosen.metric));
                let minute = |position: usize| (position as f64 + 0.5) * f64::from(seconds) / 60.0;
                let values = series.into_iter().flatten().enumerate();
                values.map(|(position, value)| (minute(position), *value)).collect()
            });
            chart::lines(&labels, &all, false)
        }
    }
}

/// The section, or nothing if the workload was not measured.
pub fn section(name: Name, view: &View<'_>, run: Option<&Run>, several_runs: bool) -> Option<(String, Vec<Picture>)> {
    if view.is_empty() {
        return None;
    }
    let workload = name.workload();
    let mut text = format!("## {}\n\n{}\n\n", workload.title(), workload.about());
    if several_runs && let Some(run) = run {
        text.push_str(&format!("Measured {}, commit {}.\n\n", run.date, run.commit));
    }
    text.push_str(&tables(view, workload));
    let troubles = troubles(view);
    if !troubles.is_empty() {
        text.push_str(&format!("\n{troubles}"));
    }
    let mut pictures = Vec::new();
    for (index, chart) in workload.charts().iter().enumerate() {
        let Some(svg) = draw(view, chart) else { continue };
        let file = match index {
            0 => format!("{}.svg", name.as_str()),
            _ => format!("{}-{}.svg", name.as_str(), index + 1),
        };
        text.push_str(&format!("\n![{}]({file})\n", chart.title));
        pictures.push(Picture { file, svg });
    }
    Some((text, pictures))
}
