//! Charts, drawn by hand: bars by group, and lines.
//!
//! The background is opaque, so that they can be read on a light and on a dark page.

use std::fmt::Write;

use super::text;
use crate::candidates::Candidate;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 84.0;
const INK: &str = "#1f2328";
const FAINT: &str = "#d1d9e0";
const GREY: &str = "#59636e";

/// Colours that colour-blind readers can tell apart.
fn colour(candidate: Candidate) -> &'static str {
    match candidate {
        Candidate::Postgres => "#0072b2",
        Candidate::Pg => "#e69f00",
        Candidate::PgOpt => "#009e73",
        Candidate::Sqlite => "#8c959f",
        Candidate::Server => "#56b4e9",
    }
}

/// Words around a chart.
pub struct Labels<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

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

struct Canvas {
    body: String,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Canvas {
    fn new(labels: &Labels<'_>, candidates: &[Candidate]) -> Self {
        let mut canvas = Self { body: String::new() };
        canvas.text(LEFT, 30.0, 17.0, "start", INK, labels.title, "font-weight=\"600\"");
        let mut x = LEFT;
        for candidate in candidates {
            let fill = colour(*candidate);
            canvas.shape(format_args!(
                "<rect x=\"{x:.1}\" y=\"46\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{fill}\"/>"
            ));
            canvas.text(x + 18.0, 56.5, 13.0, "start", INK, candidate.name(), "");
            x += 44.0 + candidate.name().len() as f64 * 7.2;
        }
        canvas.text(
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 12.0,
            13.0,
            "middle",
            GREY,
            labels.x,
            "",
        );
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let turned = format!("transform=\"rotate(-90 22 {middle})\"");
        canvas.text(22.0, middle, 13.0, "middle", GREY, labels.y, &turned);
        canvas
    }

    fn shape(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{shape}");
    }

    #[allow(clippy::too_many_arguments)]
    fn text(&mut self, x: f64, y: f64, size: f64, anchor: &str, fill: &str, text: &str, more: &str) {
        let text = escape(text);
        self.shape(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{fill}\" {more}>{text}</text>"
        ));
    }

    /// A line across, with its value at the left.
    fn grid_line(&mut self, y: f64, label: &str) {
        let right = WIDTH - RIGHT;
        self.shape(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"{FAINT}\"/>"
        ));
        self.text(LEFT - 8.0, y + 4.0, 12.0, "end", GREY, label, "");
    }

    fn tick(&mut self, x: f64, label: &str) {
        self.text(x, HEIGHT - BOTTOM + 18.0, 12.0, "middle", INK, label, "");
    }

    fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#ffffff\" stroke=\"{FAINT}\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A round step so that about five of them reach `highest`.
fn step(highest: f64) -> f64 {
    let rough = (highest / 5.0).max(f64::MIN_POSITIVE);
    let magnitude = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * magnitude >= rough);
    factor.unwrap_or(10.0) * magnitude
}

/// Where values are on an axis.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn linear(highest: f64, from: f64, to: f64) -> Self {
        let step = step(highest);
        let high = ((highest / step).ceil() * step).max(step);
        Self {
            low: 0.0,
            high,
            logarithmic: false,
            from,
            to,
        }
    }

    /// From a power of ten to a power of ten.
    fn logarithmic(lowest: f64, highest: f64, from: f64, to: f64) -> Self {
        let low = 10_f64.powf(lowest.log10().floor());
        let high = 10_f64.powf(highest.log10().ceil());
        Self {
            low,
            high: if high > low { high } else { low * 10.0 },
            logarithmic: true,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = vec![self.low];
        let step = step(self.high);
        while let Some(last) = ticks.last().copied().filter(|last| *last < self.high * 0.999) {
            ticks.push(if self.logarithmic { last * 10.0 } else { last + step });
        }
        ticks
    }
}

/// Short enough for an axis.
fn tick_label(value: f64) -> String {
    if value >= 1000.0 || value == value.round() {
        return text::number(value.round())
            .trim_end_matches(".00")
            .trim_end_matches(".0")
            .to_string();
    }
    let label = format!("{value:.4}");
    label.trim_end_matches('0').trim_end_matches('.').to_string()
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
    let mut canvas = Canvas::new(labels, &candidates);
    let axis = Axis::linear(highest, HEIGHT - BOTTOM, TOP);
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
        for (line, part) in name.split(", ").enumerate() {
            canvas.text(
                middle,
                HEIGHT - BOTTOM + 18.0 + 14.0 * line as f64,
                12.0,
                "middle",
                INK,
                part,
                "",
            );
        }
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
    let (from, to) = (LEFT, WIDTH - RIGHT - 10.0);
    let (bottom, top) = (HEIGHT - BOTTOM, TOP);
    let (x, y) = if logarithmic {
        (
            Axis::logarithmic(left, right, from, to),
            Axis::logarithmic(low, high, bottom, top),
        )
    } else {
        (Axis::linear(right, from, to), Axis::linear(high, bottom, top))
    };
    let mut canvas = Canvas::new(labels, &present(curves.iter().map(|curve| curve.candidate)));
    for value in y.ticks() {
        canvas.grid_line(y.at(value), &tick_label(value));
    }
    for value in x.ticks() {
        canvas.tick(x.at(value), &tick_label(value));
    }
    for curve in curves {
        let stroke = colour(curve.candidate);
        let mut path = String::new();
        for (position, point) in curve.points.iter().enumerate() {
            let command = if position == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1} ", x.at(point.0), y.at(point.1));
        }
        canvas.shape(format_args!(
            "<path d=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            path.trim_end()
        ));
        // Single values are marked and named where there is room.
        if curve.points.len() <= 8 {
            for point in &curve.points {
                let (x, y) = (x.at(point.0), y.at(point.1));
                canvas.shape(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{stroke}\"/>"
                ));
                canvas.text(x, y - 8.0, 11.0, "middle", INK, &text::number(point.1), "");
            }
        }
    }
    Some(canvas.finish())
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
    fn steps_are_round() {
        for (highest, expected) in [(10.0, 2.0), (1600.0, 500.0), (0.7, 0.2), (1200.0, 250.0), (5.0, 1.0)] {
            assert!((step(highest) - expected).abs() < 1e-9, "{highest}: {}", step(highest));
        }
    }

    #[test]
    fn axes_place_values() {
        let linear = Axis::linear(100.0, 0.0, 50.0);
        assert_eq!((linear.at(0.0), linear.at(linear.high)), (0.0, 50.0));
        let logarithmic = Axis::logarithmic(3.0, 900.0, 0.0, 30.0);
        assert!((logarithmic.at(10.0) - 10.0).abs() < 1e-9);
        assert_eq!(logarithmic.ticks().len(), 4);
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
