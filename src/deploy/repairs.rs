//! What puts each difference right.
//!
//! A deployment replaces functions, views and triggers. Tables it leaves alone: they hold data, so what was changed by
//! hand is undone by hand, with the statement that is named here.

use std::collections::BTreeSet;

use super::EXPECTED;
use super::drift::{self, Change, Drift};
use crate::schema_name::{SchemaName, quote_identifier};

/// One difference, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// What differs, and how.
    pub(crate) message: String,
    /// For psql or a shell.
    pub(crate) command: String,
    pub(crate) is_index: bool,
    /// Whether it only is in the way: nothing of ours is missing or changed.
    pub(crate) is_extra: bool,
}

/// One for each object. What is part of a missing or extra relation is not named as well.
pub(crate) fn repairs(drift: &Drift, schema: &SchemaName) -> Vec<Repair> {
    let place = Place { schema };
    let relations = |names: &[String]| -> BTreeSet<String> {
        names
            .iter()
            .filter_map(|name| Some(relation(name)?.to_string()))
            .collect()
    };
    let (missing, extra) = (relations(&drift.missing), relations(&drift.extra));
    let mut views = BTreeSet::new();
    let mut repairs = Vec::new();
    let mut add = |message: String, command: String, object: &str, is_extra: bool| {
        repairs.push(Repair {
            message,
            command,
            is_index: object.starts_with("index "),
            is_extra,
        });
    };
    for object in &drift.missing {
        if part_of(object).is_some_and(|relation| missing.contains(relation)) {
            continue;
        }
        match drift::of_view(object) {
            Some(view) if part_of(object).is_some() => drop(views.insert(view)),
            _ => add(format!("missing: {object}"), place.create(object), object, false),
        }
    }
    for change in &drift.changed {
        match drift::of_view(&change.name) {
            Some(view) => drop(views.insert(view)),
            None => add(describe(change), place.change(change), &change.name, false),
        }
    }
    for object in &drift.extra {
        if part_of(object).is_some_and(|relation| extra.contains(relation)) || index_of(object, &extra, drift) {
            continue;
        }
        match drift::of_view(object) {
            Some(view) => drop(views.insert(view)),
            None => add(format!("not ours: {object}"), place.remove(object), object, true),
        }
    }
    for view in views {
        add(format!("changed: view {view}"), place.apply(), "", false);
    }
    repairs
}

/// Functions are known by what they do, which nobody wants to read here.
fn describe(change: &Change) -> String {
    let Change { name, expected, found } = change;
    let rest = |line: &str| line.strip_prefix(name.as_str()).unwrap_or(line).trim().to_string();
    match name.split(' ').next() {
        Some("function") => format!("changed: {name}"),
        _ if found.ends_with(" INVALID") => format!("invalid: {name}"),
        _ => format!(
            "changed: {name} is {:?}, and should be {:?}",
            rest(found),
            rest(expected)
        ),
    }
}

/// The relation that an object is.
fn relation(object: &str) -> Option<&str> {
    match object.split_once(' ')? {
        ("table" | "view", name) => Some(name),
        _ => None,
    }
}

/// The relation that an object is a part of.
fn part_of(object: &str) -> Option<&str> {
    match object.split_once(' ')? {
        ("column" | "constraint" | "trigger", name) => name.split('.').next(),
        ("index", name) => expected_line(object)?
            .split_once(&format!("{name} ON "))?
            .1
            .split(' ')
            .next(),
        _ => None,
    }
}

/// Whether an index is one of a relation that is not ours either.
fn index_of(object: &str, relations: &BTreeSet<String>, drift: &Drift) -> bool {
    object.starts_with("index ")
        && drift
            .index_tables
            .iter()
            .any(|(index, table)| index == object && relations.contains(table))
}

fn expected_line(object: &str) -> Option<&'static str> {
    EXPECTED.lines().find(|line| {
        line.strip_prefix(object)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// What follows the name of an object.
fn definition(object: &str) -> &'static str {
    expected_line(object).map_or("", |line| line[object.len()..].trim_start())
}

struct Place<'a> {
    schema: &'a SchemaName,
}

impl Place<'_> {
    fn apply(&self) -> String {
        format!("duroxide-postgres --schema {} schema apply", self.schema.as_str())
    }

    /// With the schema. Ours need no quotes.
    fn named(&self, name: &str) -> String {
        let plain = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let name = if plain {
            name.to_string()
        } else {
            quote_identifier(name)
        };
        format!("{}.{name}", self.schema.quoted())
    }

    fn create(&self, object: &str) -> String {
        let (kind, name) = object.split_once(' ').unwrap_or((object, ""));
        let (table, part) = name.split_once('.').unwrap_or((name, ""));
        let definition = definition(object);
        match kind {
            "table" => format!(
                "pg_restore --schema={} --table={name} --dbname=\"$DATABASE_URL\" BACKUP",
                self.schema.as_str()
            ),
            "column" => format!(
                "alter table {} add column {part} {};",
                self.named(table),
                Column::parse(definition).declaration()
            ),
            "constraint" => format!("alter table {} add constraint {part} {definition};", self.named(table)),
            "index" => {
                let concurrently = definition.replacen(" INDEX ", " INDEX CONCURRENTLY ", 1);
                format!(
                    "{};",
                    concurrently.replacen(" ON ", &format!(" ON {}.", self.schema.quoted()), 1)
                )
            }
            _ => self.apply(),
        }
    }

    fn change(&self, change: &Change) -> String {
        let (kind, name) = change.name.split_once(' ').unwrap_or((&change.name, ""));
        let (table, part) = name.split_once('.').unwrap_or((name, ""));
        let rest = |line: &str| {
            line.strip_prefix(change.name.as_str())
                .unwrap_or(line)
                .trim()
                .to_string()
        };
        let (expected, found) = (rest(&change.expected), rest(&change.found));
        match kind {
            "table" => format!("alter table {} {};", self.named(name), options(&expected, &found)),
            "column" => format!(
                "alter table {} {};",
                self.named(table),
                Column::parse(&found).changes(part, &Column::parse(&expected))
            ),
            "constraint" => format!(
                "alter table {} drop constraint {part}, add constraint {part} {expected};",
                self.named(table)
            ),
            "index" if found.ends_with(" INVALID") && found.strip_suffix(" INVALID") == Some(expected.as_str()) => {
                format!("reindex index concurrently {};", self.named(name))
            }
            // Once it is gone, it is missing.
            "index" => format!("drop index concurrently {};", self.named(name)),
            _ => self.apply(),
        }
    }

    fn remove(&self, object: &str) -> String {
        let (kind, name) = object.split_once(' ').unwrap_or((object, ""));
        let (table, part) = name.split_once('.').unwrap_or((name, ""));
        let part = quote_identifier(part);
        match kind {
            "table" | "view" | "function" => format!("alter {kind} {} set schema public;", self.named(name)),
            "index" => format!("drop index concurrently {};", self.named(name)),
            "trigger" => format!("drop trigger {part} on {};", self.named(table)),
            _ => format!("alter table {} drop {kind} {part};", self.named(table)),
        }
    }
}

/// `with a=1 b=2`, or nothing.
fn options(expected: &str, found: &str) -> String {
    let list = |text: &str| -> Vec<String> {
        let text = text.strip_prefix("with ").unwrap_or(text);
        text.split_whitespace().map(str::to_string).collect()
    };
    let (expected, found) = (list(expected), list(found));
    let key = |option: &String| option.split('=').next().unwrap_or_default().to_string();
    let set: Vec<String> = expected
        .iter()
        .filter(|option| !found.contains(option))
        .cloned()
        .collect();
    let reset: Vec<String> = found
        .iter()
        .map(key)
        .filter(|name| !expected.iter().any(|option| key(option) == *name))
        .collect();
    let mut actions = Vec::new();
    if !set.is_empty() {
        actions.push(format!("set ({})", set.join(", ")));
    }
    if !reset.is_empty() {
        actions.push(format!("reset ({})", reset.join(", ")));
    }
    actions.join(", ")
}

/// A column as the description has it: `type collate c not null identity default …`.
struct Column<'a> {
    kind: &'a str,
    not_null: bool,
    identity: Option<&'static str>,
    default: Option<&'a str>,
}

impl<'a> Column<'a> {
    fn parse(text: &'a str) -> Self {
        let (text, default) = match text.split_once(" default ") {
            Some((text, default)) => (text, Some(default)),
            None => (text, None),
        };
        let (text, identity) = if let Some(text) = text.strip_suffix(" identity always") {
            (text, Some("generated always as identity"))
        } else if let Some(text) = text.strip_suffix(" identity") {
            (text, Some("generated by default as identity"))
        } else {
            (text, None)
        };
        Self {
            kind: text.strip_suffix(" not null").unwrap_or(text),
            not_null: text.ends_with(" not null"),
            identity,
            default,
        }
    }

    fn declaration(&self) -> String {
        let mut text = self.kind.to_string();
        if self.not_null {
            text.push_str(" not null");
        }
        if let Some(identity) = self.identity {
            text.push_str(&format!(" {identity}"));
        }
        if let Some(default) = self.default {
            text.push_str(&format!(" default {default}"));
        }
        text
    }

    fn changes(&self, name: &str, expected: &Column<'_>) -> String {
        let mut actions = Vec::new();
        if self.identity.is_some() && self.identity != expected.identity {
            actions.push("drop identity".to_string());
        }
        if self.kind != expected.kind {
            let kind = expected.kind.split(" collate ").next().unwrap_or_default();
            actions.push(format!("type {} using {name}::{kind}", expected.kind));
        }
        if self.not_null != expected.not_null {
            actions.push(format!("{} not null", if expected.not_null { "set" } else { "drop" }));
        }
        if self.default != expected.default {
            actions.push(match expected.default {
                Some(default) => format!("set default {default}"),
                None => "drop default".to_string(),
            });
        }
        if let Some(identity) = expected.identity
            && self.identity != expected.identity
        {
            actions.push(format!("add {identity}"));
        }
        let actions: Vec<String> = actions
            .into_iter()
            .map(|action| format!("alter column {name} {action}"))
            .collect();
        actions.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands for a schema that looks like this.
    fn commands(change: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let actual: Vec<String> = EXPECTED.lines().filter_map(change).collect();
        let schema = SchemaName::new("s").expect("a name");
        let repairs = repairs(&drift::compare(EXPECTED, &actual), &schema);
        repairs.into_iter().map(|repair| repair.command).collect()
    }

    fn replaced(from: &str, to: &str) -> Vec<String> {
        assert!(EXPECTED.contains(from), "{from}");
        commands(|line| Some(line.replace(from, to)))
    }

    #[test]
    fn a_table_is_changed_back() {
        assert_eq!(
            replaced(
                "column history.ack_id uuid",
                "column history.ack_id text not null default 'x'::text"
            ),
            [
                "alter table \"s\".history alter column ack_id type uuid using ack_id::uuid, \
                 alter column ack_id drop not null, alter column ack_id drop default;"
            ]
        );
        assert_eq!(
            replaced(
                "column mailboxes.history_epoch bigint not null identity always",
                "column mailboxes.history_epoch bigint not null"
            ),
            ["alter table \"s\".mailboxes alter column history_epoch add generated always as identity;"]
        );
        assert_eq!(
            replaced(
                "table executions with fillfactor=90",
                "table executions with autovacuum_enabled=false"
            ),
            ["alter table \"s\".executions set (fillfactor=90), reset (autovacuum_enabled);"]
        );
        assert_eq!(
            replaced("PRIMARY KEY (session_id)", "PRIMARY KEY (owner_id)"),
            ["alter table \"s\".sessions drop constraint sessions_pkey, \
                 add constraint sessions_pkey PRIMARY KEY (session_id);"]
        );
    }

    #[test]
    fn what_is_gone_with_its_table_is_not_named_as_well() {
        let gone = commands(|line| (!line.contains("sessions")).then(|| line.to_string()));
        assert!(
            gone.contains(&"pg_restore --schema=s --table=sessions --dbname=\"$DATABASE_URL\" BACKUP".to_string()),
            "{gone:?}"
        );
        assert!(
            gone.iter().all(|command| !command.starts_with("alter table")),
            "{gone:?}"
        );
    }
}
