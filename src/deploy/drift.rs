//! How a schema differs from what this release deploys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Objects that are missing, extra or changed, by kind and name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drift {
    pub(crate) missing: Vec<String>,
    pub(crate) extra: Vec<String>,
    pub(crate) changed: Vec<String>,
}

impl Drift {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (what, names) in [
            ("missing", &self.missing),
            ("extra", &self.extra),
            ("changed", &self.changed),
        ] {
            if !names.is_empty() {
                let separator = if first { "" } else { "; " };
                write!(f, "{separator}{what}: {}", names.join(", "))?;
                first = false;
            }
        }
        Ok(())
    }
}

/// Compares descriptions, a line an object: `kind name…`.
pub(super) fn compare(expected: &str, actual: &[String]) -> Drift {
    let expected = by_name(expected.lines());
    let actual = by_name(actual.iter().map(String::as_str));
    let mut drift = Drift::default();
    for (name, lines) in &expected {
        match actual.get(name) {
            None => drift.missing.push(name.clone()),
            Some(found) if found != lines => drift.changed.push(name.clone()),
            Some(_) => {}
        }
    }
    drift.extra = actual
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .cloned()
        .collect();
    drift
}

/// Functions by name, each with its signature: `name(arguments) returns result`.
pub(super) fn signatures(expected: &str) -> impl Iterator<Item = (&str, &str)> {
    expected.lines().filter_map(|line| {
        let signature = line.strip_prefix("function ")?.split(" | ").next()?;
        Some((signature.split_once('(')?.0, signature))
    })
}

/// The names of all objects of a kind.
pub(super) fn names<'a>(expected: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    expected
        .lines()
        .filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' ')?.split([' ', '(']).next())
}

/// Overloads share a name, so a name can have several lines.
fn by_name<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut objects: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        let name = match function_name(line) {
            Some(name) => format!("function {name}"),
            None => line.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" "),
        };
        objects.entry(name).or_default().insert(line);
    }
    objects
}

fn function_name(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix("function ")?.split_once('(')?;
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: &str = "column t.a integer\nfunction f(p integer) returns void | sql | 1\ntable t";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_string).collect()
    }

    #[test]
    fn differences_are_named() {
        assert!(compare(EXPECTED, &lines(EXPECTED)).is_empty());
        let actual = lines("column t.a bigint\ntable t\ntable u\nfunction g() returns void | sql | 2");
        assert_eq!(
            compare(EXPECTED, &actual).to_string(),
            "missing: function f; extra: function g, table u; changed: column t.a"
        );
    }

    #[test]
    fn an_overload_changes_its_function() {
        let actual = lines(&format!("{EXPECTED}\nfunction f() returns void | sql | 3"));
        assert_eq!(compare(EXPECTED, &actual).to_string(), "changed: function f");
    }

    #[test]
    fn objects_have_names_and_functions_signatures() {
        assert_eq!(names(EXPECTED, "table").collect::<Vec<_>>(), ["t"]);
        assert_eq!(names(EXPECTED, "function").collect::<Vec<_>>(), ["f"]);
        let signatures: Vec<_> = signatures(EXPECTED).collect();
        assert_eq!(signatures, [("f", "f(p integer) returns void")]);
    }
}
