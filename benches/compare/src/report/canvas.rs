//! What charts are drawn with: a canvas that writes SVG, axes, colours.
//!
//! The background is opaque, so that charts can be read on a light and on a dark page.

use std::fmt::Write;

use super::text;
use crate::candidates::Candidate;

pub const WIDTH: f64 = 860.0;
pub const LEFT: f64 = 80.0;
pub const RIGHT: f64 = 20.0;
/// Where the highest and the lowest value of the scale are.
pub const TOP: f64 = 84.0;
pub const ZERO: f64 = 340.0;
const LINE_HEIGHT: f64 = 14.0;
pub const INK: &str = "#1f2328";
const FAINT: &str = "#d1d9e0";
const GREY: &str = "#59636e";

/// Colours that colour-blind readers can tell apart.
pub fn colour(candidate: Candidate) -> &'static str {
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

pub struct Canvas {
    body: String,
    height: f64,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Canvas {
    /// With room for `lines` of text at each tick of the axis below.
    pub fn new(labels: &Labels<'_>, candidates: &[Candidate], lines: usize) -> Self {
        let below = ZERO + 16.0 + LINE_HEIGHT * lines as f64;
        let mut canvas = Self {
            body: String::new(),
            height: if labels.x.is_empty() { below } else { below + 22.0 },
        };
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
            below + 8.0,
            13.0,
            "middle",
            GREY,
            labels.x,
            "",
        );
        let middle = (TOP + ZERO) / 2.0;
        let turned = format!("transform=\"rotate(-90 22 {middle})\"");
        canvas.text(22.0, middle, 13.0, "middle", GREY, labels.y, &turned);
        canvas
    }

    pub fn shape(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{shape}");
    }

    #[allow(clippy::too_many_arguments)]
    pub fn text(&mut self, x: f64, y: f64, size: f64, anchor: &str, fill: &str, text: &str, more: &str) {
        let text = escape(text);
        self.shape(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{fill}\" {more}>{text}</text>"
        ));
    }

    /// A line across, with its value at the left.
    pub fn grid_line(&mut self, y: f64, label: &str) {
        let right = WIDTH - RIGHT;
        self.shape(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"{FAINT}\"/>"
        ));
        self.text(LEFT - 8.0, y + 4.0, 12.0, "end", GREY, label, "");
    }

    /// A name below; it breaks into lines at commas.
    pub fn tick(&mut self, x: f64, name: &str) {
        for (line, part) in name.split(", ").enumerate() {
            let y = ZERO + 18.0 + LINE_HEIGHT * line as f64;
            self.text(x, y, 12.0, "middle", INK, part, "");
        }
    }

    pub fn finish(self) -> String {
        let height = self.height;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
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
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Axis {
    pub fn linear(highest: f64, from: f64, to: f64) -> Self {
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
    pub fn logarithmic(lowest: f64, highest: f64, from: f64, to: f64) -> Self {
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

    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    pub fn ticks(&self) -> Vec<f64> {
        let mut ticks = vec![self.low];
        let step = step(self.high);
        while let Some(last) = ticks.last().copied().filter(|last| *last < self.high * 0.999) {
            ticks.push(if self.logarithmic { last * 10.0 } else { last + step });
        }
        ticks
    }
}

/// Short enough for an axis.
pub fn tick_label(value: f64) -> String {
    if value >= 1000.0 || value == value.round() {
        return text::number(value.round())
            .trim_end_matches(".00")
            .trim_end_matches(".0")
            .to_string();
    }
    let label = format!("{value:.4}");
    label.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
