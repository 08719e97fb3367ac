//! Numbers and words as the report writes them.

use crate::statistics::Spread;

/// What is shown where nothing was measured.
pub const MISSING: &str = "–";

/// Three significant digits or all of the integer part, with thousands separated.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.01 => 3,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text.as_str(), None),
    };
    let mut grouped = String::new();
    for (position, digit) in whole.chars().enumerate() {
        let left = whole.len() - position;
        if position > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match fraction {
        Some(fraction) => format!("{grouped}.{fraction}"),
        None => grouped,
    }
}

/// The median, and the range when there were several.
pub fn spread(spread: Option<Spread>) -> String {
    match spread {
        None => MISSING.to_string(),
        Some(Spread { median, count: 1, .. }) => number(median),
        Some(Spread { median, min, max, .. }) => format!("{} ({}–{})", number(median), number(min), number(max)),
    }
}

pub fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => MISSING.to_string(),
        Some(0.0) => "0x".to_string(),
        Some(ratio) if ratio >= 10.0 => format!("{ratio:.0}x"),
        Some(ratio) if ratio >= 0.1 => format!("{ratio:.2}x"),
        Some(ratio) => format!("{ratio:.3}x"),
    }
}

/// An error message as one short line of Markdown code.
pub fn code(message: &str) -> String {
    const LONGEST: usize = 200;
    let mut line: String = message
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('`', "'");
    if line.chars().count() > LONGEST {
        line = line.chars().take(LONGEST).collect::<String>() + "…";
    }
    format!("`{line}`")
}

/// A table; the first column is text, the others are numbers.
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header);
    let rule: Vec<String> = (0..header.len())
        .map(|column| if column == 0 { "---" } else { "---:" }.to_string())
        .collect();
    text.push_str(&line(&rule));
    for row in rows {
        text.push_str(&line(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_sensible_precision() {
        for (value, text) in [
            (0.0, "0"),
            (0.0012, "0.0012"),
            (0.4567, "0.457"),
            (2.345, "2.35"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-123_456.0, "-123,456"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_single_value_has_no_range() {
        assert_eq!(spread(None), "–");
        assert_eq!(spread(Spread::of([5.0])), "5.00");
        assert_eq!(spread(Spread::of([5.0, 4.0, 6.5])), "5.00 (4.00–6.50)");
    }

    #[test]
    fn ratios_have_an_x() {
        assert_eq!(ratio(None), "–");
        assert_eq!(ratio(Some(12.3)), "12x");
        assert_eq!(ratio(Some(2.345)), "2.35x");
        assert_eq!(ratio(Some(0.0312)), "0.031x");
    }

    #[test]
    fn messages_fit_into_a_line() {
        assert_eq!(code("a\n  `b`"), "`a 'b'`");
        assert!(code(&"x".repeat(1000)).chars().count() < 210);
    }

    #[test]
    fn tables_have_a_rule_and_one_line_a_row() {
        let cells = |texts: [&str; 2]| texts.map(str::to_string).to_vec();
        let text = table(&cells(["a", "b"]), &[cells(["x", "1"])]);
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| x | 1 |\n");
    }
}
