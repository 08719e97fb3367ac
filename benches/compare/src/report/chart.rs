//! Bars by group, and lines.

use std::fmt::Write;

use super::canvas::{Axis, Canvas, INK, LEFT, Labels, RIGHT, TOP, WIDTH, ZERO, colour, tick_label};
use super::text;
use crate::candidates::Candidate;

/// One candidate's bar in a group.
#[derive(Clone, Copy)]
pub struct Bar {
    pub candidate: Candidate,
    pub value: f64,
    pub min: f64,
    pub max: f64,
}

/// One candidate's line.
pub struct Curve {
    pub candidate: Candidate,
    pub points: Vec<(f64, f64)>,
}

fn present(candidates: impl Iterator<Item = Candidate> + Clone) -> Vec<Candidate> {
    let order = Candidate::ALL.into_iter();
    order
        .filter(|candidate| candidates.clone().any(|one| one == *candidate))
        .collect()
}

/// A group of bars for each name; names break into lines at commas.
pub fn bars(labels: &Labels<'_>, groups: &[(String, Vec<Bar>)]) -> Option<String> {
    let all = groups.iter().flat_map(|(_, bars)| bars.iter());
    let highest = all.clone().map(|bar| bar.max).fold(0.0, f64::max);
    if highest <= 0.0 {
        return None;
    }
    let candidates = present(all.map(|bar| bar.candidate));
    let lines = groups
        .iter()
        .map(|(name, _)| name.split(", ").count())
        .max()
        .unwrap_or(1);
    let mut canvas = Canvas::new(labels, &candidates, lines);
    let axis = Axis::linear(highest, ZERO, TOP);
    for value in axis.ticks() {
        canvas.grid_line(axis.at(value), &tick_label(value));
    }
    let group_width = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let bar_width = (group_width * 0.8 / candidates.len() as f64).min(64.0);
    let label_size = if bar_width < 26.0 { 8.5 } else { 11.0 };
    for (index, (name, bars)) in groups.iter().enumerate() {
        let middle = LEFT + group_width * (index as f64 + 0.5);
        let first = middle - bar_width * candidates.len() as f64 / 2.0;
        for bar in bars {
            let Some(place) = candidates.iter().position(|candidate| *candidate == bar.candidate) else {
                continue;
            };
            let x = first + bar_width * place as f64;
            let (y, zero) = (axis.at(bar.value), axis.at(0.0));
            canvas.shape(format_args!(
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                x + 1.0,
                bar_width - 2.0,
                zero - y,
                colour(bar.candidate)
            ));
            let centre = x + bar_width / 2.0;
            if bar.max > bar.min {
                canvas.shape(format_args!(
                    "<line x1=\"{centre:.1}\" y1=\"{:.1}\" x2=\"{centre:.1}\" y2=\"{:.1}\" stroke=\"{INK}\" stroke-width=\"1.2\"/>",
                    axis.at(bar.min),
                    axis.at(bar.max)
                ));
            }
            let above = axis.at(bar.max.max(bar.value)) - 4.0;
            canvas.text(centre, above, label_size, "middle", INK, &text::number(bar.value), "");
        }
        canvas.tick(middle, name);
    }
    Some(canvas.finish())
}

/// A line for each candidate.
pub fn lines(labels: &Labels<'_>, curves: &[Curve], logarithmic: bool) -> Option<String> {
    let all = curves.iter().flat_map(|curve| curve.points.iter());
    let usable = |value: &f64| value.is_finite() && (!logarithmic || *value > 0.0);
    let range = |values: Vec<f64>| -> Option<(f64, f64)> {
        let values: Vec<f64> = values.into_iter().filter(|value| usable(value)).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        Some((low, values.iter().copied().reduce(f64::max)?))
    };
    let (left, right) = range(all.clone().map(|point| point.0).collect())?;
    let (low, high) = range(all.map(|point| point.1).collect())?;
    let (from, to) = (LEFT + 20.0, WIDTH - RIGHT - 20.0);
    let (x, y) = if logarithmic {
        (
            Axis::logarithmic(left, right, from, to),
            Axis::logarithmic(low, high, ZERO, TOP),
        )
    } else {
        (Axis::linear(right, from, to), Axis::linear(high, ZERO, TOP))
    };
    let mut canvas = Canvas::new(labels, &present(curves.iter().map(|curve| curve.candidate)), 1);
    for value in y.ticks() {
        canvas.grid_line(y.at(value), &tick_label(value));
    }
    // Few points are marked and named, and are what the axis shows.
    let mut marked: Vec<f64> = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.0)
        .collect();
    marked.sort_by(f64::total_cmp);
    marked.dedup();
    let few = marked.len() <= 8;
    for value in if few { marked.clone() } else { x.ticks() } {
        canvas.tick(x.at(value), &tick_label(value));
    }
    for curve in curves {
        let stroke = colour(curve.candidate);
        let mut path = String::new();
        for (position, point) in curve.points.iter().enumerate() {
            let command = if position == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1} ", x.at(point.0), y.at(point.1));
            if few {
                canvas.shape(format_args!(
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{stroke}\"/>",
                    x.at(point.0),
                    y.at(point.1)
                ));
            }
        }
        canvas.shape(format_args!(
            "<path d=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            path.trim_end()
        ));
    }
    for at in marked.into_iter().filter(|_| few) {
        name_values(&mut canvas, curves, at, &x, &y);
    }
    Some(canvas.finish())
}

/// Writes all values at one place of the axis, none over another.
fn name_values(canvas: &mut Canvas, curves: &[Curve], at: f64, x: &Axis, y: &Axis) {
    let mut values: Vec<(f64, Candidate)> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| (*point, curve.candidate)))
        .filter(|(point, _)| point.0 == at)
        .map(|(point, candidate)| (point.1, candidate))
        .collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut free = TOP - 20.0;
    for (value, candidate) in values {
        let place = (y.at(value) - 8.0).max(free);
        let style = "font-weight=\"600\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"";
        canvas.text(
            x.at(at),
            place,
            11.0,
            "middle",
            colour(candidate),
            &text::number(value),
            style,
        );
        free = place + 12.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels {
        title: "a < b & c",
        x: "x",
        y: "y",
    };

    fn bar(candidate: Candidate, value: f64) -> Bar {
        Bar {
            candidate,
            value,
            min: value * 0.9,
            max: value * 1.1,
        }
    }

    #[test]
    fn bars_have_names_values_and_a_legend() {
        let groups = vec![
            (
                "1 caller".to_string(),
                vec![bar(Candidate::Pg, 300.0), bar(Candidate::Postgres, 900.0)],
            ),
            ("4 callers".to_string(), vec![bar(Candidate::Postgres, 1500.0)]),
        ];
        let svg = bars(&LABELS, &groups).expect("there are values");
        for text in [
            "a &lt; b &amp; c",
            "1 caller",
            "4 callers",
            "1,500",
            "duroxide-pg<",
            "duroxide-postgres<",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("SQLite"));
        assert!(svg.contains("fill=\"#ffffff\""));
        assert!(bars(&LABELS, &[]).is_none());
    }

    #[test]
    fn lines_need_values() {
        let curve = Curve {
            candidate: Candidate::Postgres,
            points: vec![(100.0, 1.0), (1000.0, 2.0)],
        };
        assert!(lines(&LABELS, &[curve], true).is_some_and(|svg| svg.contains("<path")));
        assert!(lines(&LABELS, &[], false).is_none());
    }
}
