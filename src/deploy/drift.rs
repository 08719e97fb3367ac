//! How a schema differs from what this release deploys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

/// Objects that are missing, extra or changed, by kind and name.
#[derive(Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the command says how to put it right")
)]
pub(crate) struct Drift {
    pub(crate) missing: Vec<String>,
    pub(crate) extra: Vec<String>,
    pub(crate) changed: Vec<Change>,
    /// The lines of what is extra, by name.
    pub(super) extra_lines: BTreeMap<String, Vec<String>>,
    /// Extra functions with the types that make them unique, by name.
    pub(super) extra_functions: Vec<(String, String)>,
    /// Extensions, whether they can be moved, and extra objects that belong to them.
    pub(super) extensions: BTreeMap<String, bool>,
    pub(super) members: BTreeSet<String>,
    /// Why nobody could tell what the views say.
    views_unknown: Option<&'static str>,
}

/// An object that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the command says how to put it right")
)]
pub(crate) struct Change {
    pub(crate) name: String,
    /// As a line of the description; empty for the body of a view.
    pub(crate) expected: String,
    pub(crate) found: String,
}

#[cfg(feature = "cli")]
impl Change {
    /// Whether it is a function as it should be, but that PUBLIC may execute it.
    pub(super) fn only_opens(&self) -> bool {
        let (found, expected) = (self.found.rsplit_once(" | "), self.expected.rsplit_once(" | "));
        let (Some((found, body)), Some((expected, expected_body))) = (found, expected) else {
            return false;
        };
        // What kind of function it is comes last, and its name and types, which can contain anything, before.
        let closed = found
            .rsplit_once(" PUBLIC")
            .map(|(before, after)| format!("{before}{after}"));
        self.name.starts_with("function ") && body == expected_body && closed.as_deref() == Some(expected)
    }
}

impl Drift {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.changed.is_empty()
    }

    #[cfg(feature = "cli")]
    pub(crate) fn views_unknown(&self) -> Option<&'static str> {
        self.views_unknown
    }

    /// Whether tables, or what belongs to them, are not as they should be; the record of deployments aside.
    #[cfg(feature = "cli")]
    pub(super) fn concerns_tables(&self) -> bool {
        self.names().filter(|name| of_view(name).is_none()).any(|name| {
            let Object { kind, name, .. } = Object::parse(name);
            matches!(kind, "table" | "column" | "constraint") && name != "deployment"
        })
    }

    pub(crate) fn changed_names(&self) -> Vec<String> {
        self.changed.iter().map(|change| change.name.clone()).collect()
    }

    /// Functions of ours that PUBLIC may execute.
    #[cfg(feature = "cli")]
    pub(crate) fn open_to_public(&self) -> Vec<&str> {
        let functions = self.changed.iter().filter_map(|change| {
            let name = change.name.strip_prefix("function ")?;
            // Behind the signature, which can contain anything: what kind of function it is.
            let is_open = |line: &str| {
                let kind = line.rsplit(" | ").nth(1).unwrap_or_default();
                kind.split(' ').any(|word| word == "PUBLIC")
            };
            change.found.lines().any(is_open).then_some(name)
        });
        functions.collect()
    }

    /// Adds views whose body differs, or why that cannot be told.
    pub(super) fn add_views(&mut self, views: Result<Vec<String>, &'static str>) {
        self.views_unknown = views.as_ref().err().copied();
        for view in views.unwrap_or_default() {
            let name = format!("view {view}");
            // A view can differ in both ways.
            if self.changed.iter().all(|change| change.name != name) {
                self.changed.push(Change {
                    name,
                    expected: String::new(),
                    found: String::new(),
                });
            }
        }
        self.changed.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Whether functions, views or triggers are not as they should be: what a deployment puts right.
    pub(super) fn can_be_repaired(&self) -> bool {
        self.views_unknown.is_some()
            || self.names().any(|name| {
                matches!(name.split_once(' '), Some(("function" | "trigger", _))) || of_view(name).is_some()
            })
    }

    /// Whether a view has to be created, or created anew.
    pub(super) fn concerns_view(&self, view: &str) -> bool {
        self.views_unknown.is_some() || self.differs_in_view(view)
    }

    /// Whether a view of ours is missing or changed. A column that is missing in it is one reason.
    pub(crate) fn differs_in_view(&self, view: &str) -> bool {
        let extra = self.extra.iter().map(String::as_str);
        self.names().chain(extra).any(|name| of_view(name) == Some(view))
    }

    pub(super) fn concerns_triggers(&self) -> bool {
        self.names().any(|name| name.starts_with("trigger "))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let changed = self.changed.iter().map(|change| change.name.as_str());
        self.missing.iter().map(String::as_str).chain(changed)
    }
}

/// The view of ours that an object is, or belongs to.
pub(super) fn of_view(object: &str) -> Option<&str> {
    static VIEWS: LazyLock<Vec<&str>> = LazyLock::new(|| names(super::EXPECTED, "view").collect());
    let object = Object::parse(object);
    (matches!(object.kind, "view" | "column") && VIEWS.contains(&object.name)).then_some(object.name)
}

/// The beginning of a line: `kind name` or `kind name.part`, the names as SQL spells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the command says how to put it right")
)]
pub(super) struct Object<'a> {
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    /// Empty if it is not part of something.
    pub(super) part: &'a str,
    /// The rest of the line.
    pub(super) definition: &'a str,
    length: usize,
}

impl<'a> Object<'a> {
    pub(super) fn parse(line: &'a str) -> Self {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, rest) = identifier(rest);
        let (part, rest) = rest.strip_prefix('.').map_or(("", rest), identifier);
        Self {
            kind,
            name,
            part,
            definition: rest.trim_start(),
            length: line.len() - rest.len(),
        }
    }
}

/// An identifier, quoted or not, and what follows it.
pub(super) fn identifier(text: &str) -> (&str, &str) {
    let end = match text.strip_prefix('"') {
        None => text.find([' ', '.', '(']).unwrap_or(text.len()),
        Some(quoted) => {
            let mut end = 0;
            loop {
                match quoted[end..].find('"') {
                    None => break text.len(),
                    // Two of them stand for one.
                    Some(at) if quoted[end + at + 1..].starts_with('"') => end += at + 2,
                    Some(at) => break end + at + 2,
                }
            }
        }
    };
    text.split_at(end)
}

/// The table that the line of an index names.
#[cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the command says how to put it right")
)]
pub(super) fn indexed_table(line: &str) -> Option<&str> {
    let definition = Object::parse(line).definition.strip_prefix("CREATE ")?;
    let definition = definition.strip_prefix("UNIQUE ").unwrap_or(definition);
    let (_, rest) = identifier(definition.strip_prefix("INDEX ")?);
    let rest = rest.strip_prefix(" ON ")?;
    Some(identifier(rest.strip_prefix("ONLY ").unwrap_or(rest)).0)
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (what, names) in [
            ("missing", &self.missing),
            ("extra", &self.extra),
            ("changed", &self.changed_names()),
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
            Some(found) if found != lines => drift.changed.push(Change {
                name: name.clone(),
                expected: lines.iter().copied().collect::<Vec<_>>().join("\n"),
                found: found.iter().copied().collect::<Vec<_>>().join("\n"),
            }),
            Some(_) => {}
        }
    }
    for (name, lines) in actual.iter().filter(|(name, _)| !expected.contains_key(*name)) {
        let lines = lines.iter().map(|line| line.to_string()).collect();
        drift.extra.push(name.clone());
        drift.extra_lines.insert(name.clone(), lines);
    }
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
        .map(Object::parse)
        .filter(move |object| object.kind == kind)
        .map(|object| object.name)
}

/// The columns of a relation, by name: `name type…`.
#[cfg(feature = "cli")]
pub(super) fn columns<'a>(expected: &'a str, relation: &str) -> Vec<&'a str> {
    let prefix = format!("column {relation}.");
    let mut columns: Vec<&str> = expected.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
    columns.sort_by_key(|column| column.split(' ').next());
    columns
}

/// Overloads share a name, so a name can have several lines.
fn by_name<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut objects: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        let name = &line[..Object::parse(line).length];
        objects.entry(name.to_string()).or_default().insert(line);
    }
    objects
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
    fn names_can_contain_anything() {
        let actual = lines(EXPECTED).into_iter().chain(lines(
            "column t.\"a b\" integer\ntable \"t with\" with x=1\nfunction \"f(\"() returns void | sql | 1\n\
             index \"t.\"\"x\"\"\" CREATE INDEX \"t.\"\"x\"\"\" ON \"t with\" USING btree (a)",
        ));
        let drift = compare(EXPECTED, &actual.collect::<Vec<_>>());
        assert_eq!(
            drift.to_string(),
            "extra: column t.\"a b\", function \"f(\", index \"t.\"\"x\"\"\", table \"t with\""
        );
        let index = &drift.extra_lines["index \"t.\"\"x\"\"\""][0];
        assert_eq!(indexed_table(index), Some("\"t with\""));
        // Never from a server, but it must not panic.
        assert_eq!(identifier("\"open"), ("\"open", ""));
        assert_eq!(identifier("\"open\"\""), ("\"open\"\"", ""));
        assert_eq!(identifier("\""), ("\"", ""));
    }

    #[test]
    fn an_overload_changes_its_function() {
        let actual = lines(&format!("{EXPECTED}\nfunction f() returns void | sql | 3"));
        assert_eq!(compare(EXPECTED, &actual).to_string(), "changed: function f");
    }

    #[cfg(feature = "cli")]
    #[test]
    fn functions_that_public_may_execute_are_named() {
        let expected = "function f(p text) returns void | sql | 1\nfunction g() returns void | sql | 2";
        let actual = "function f(p text) returns void | sql stable PUBLIC set jit=off | 1\n\
                      function g() returns \"a | PUBLIC | b\" | sql | 2";
        let drift = compare(expected, &lines(actual));
        assert_eq!(drift.changed_names(), ["function f", "function g"]);
        assert_eq!(drift.open_to_public(), ["f"]);
        // A revoke is enough for what differs in nothing else.
        let opened = |found: &str| compare(expected, &lines(found)).changed[0].only_opens();
        assert!(opened("function f(p text) returns void | sql PUBLIC | 1"));
        assert!(!opened("function f(p text) returns void | sql PUBLIC | 3"));
        assert!(!opened(actual));
    }

    #[test]
    fn objects_have_names_and_functions_signatures() {
        assert_eq!(names(EXPECTED, "table").collect::<Vec<_>>(), ["t"]);
        assert_eq!(names(EXPECTED, "function").collect::<Vec<_>>(), ["f"]);
        let signatures: Vec<_> = signatures(EXPECTED).collect();
        assert_eq!(signatures, [("f", "f(p integer) returns void")]);
    }
}
