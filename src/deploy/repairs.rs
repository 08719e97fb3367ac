//! What puts each difference right.
//!
//! A deployment replaces functions, views and triggers. Tables it leaves alone: they hold data, so what was changed by
//! hand is undone by hand, with the statement that is named here.

mod away;
mod table;

use std::collections::BTreeSet;

use super::EXPECTED;
use super::drift::{self, Change, Drift, Object};
use super::records::as_the_rest;
use crate::schema_name::SchemaName;
use crate::shell::{command, quoted};
use table::{Column, options};

/// One difference, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// What differs, and how.
    pub(crate) message: String,
    /// For psql or a shell.
    pub(crate) command: String,
    pub(crate) is_index: bool,
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
    let renamed = renamed(drift);
    let mut views = BTreeSet::new();
    let mut repairs = Vec::new();
    let mut add = |message: String, command: String, object: &str| {
        repairs.push(Repair {
            message,
            command,
            is_index: object.starts_with("index "),
        });
    };
    for object in &drift.missing {
        if part_of(object).is_some_and(|relation| missing.contains(relation)) {
            continue;
        }
        if let Some((_, to)) = renamed.iter().find(|(from, _)| *from == object.as_str()) {
            let (Object { name, part, .. }, other) = (Object::parse(object), Object::parse(to));
            add(
                format!("renamed: {object} is {}", other.part),
                format!(
                    "alter table {} rename column {} to {part};",
                    place.named(name),
                    other.part
                ),
                object,
            );
            continue;
        }
        match drift::of_view(object) {
            Some(view) if part_of(object).is_some() => drop(views.insert(view)),
            _ => add(format!("missing: {object}"), place.create(object), object),
        }
    }
    for change in &drift.changed {
        // What is made of a column bears its new name.
        let part = part_of(&change.name);
        let is_renamed = renamed.iter().any(|(from, to)| {
            let (from, to) = (Object::parse(from), Object::parse(to));
            part == Some(from.name) && change.found.replace(to.part, from.part) == change.expected
        });
        if is_renamed {
            continue;
        }
        match drift::of_view(&change.name) {
            Some(view) => drop(views.insert(view)),
            None => add(describe(change), place.change(change), &change.name),
        }
    }
    for object in &drift.extra {
        if part_of(object).is_some_and(|relation| extra.contains(relation))
            || index_of(object, &extra, drift)
            || renamed.iter().any(|(_, to)| *to == object.as_str())
        {
            continue;
        }
        if let Some(name) = object.strip_prefix("function ") {
            for (_, signature) in drift.extra_functions.iter().filter(|(function, _)| function == name) {
                // Procedures and aggregates too.
                let command = place.move_away("routine", signature);
                add(format!("not ours: function {signature}"), command, object);
            }
            continue;
        }
        match drift::of_view(object) {
            // Goes with its extension, which may have brought many.
            _ if drift.members.contains(object) => {}
            Some(view) => drop(views.insert(view)),
            None => add(format!("not ours: {object}"), place.remove(object), object),
        }
    }
    for (extension, &is_relocatable) in &drift.extensions {
        add(
            format!("not ours: extension {extension}"),
            place.move_extension(extension, is_relocatable),
            "",
        );
    }
    for view in views {
        add(format!("changed: view {view}"), place.apply(), "");
    }
    repairs
}

/// Functions are known by what they do, which nobody wants to read here.
fn describe(change: &Change) -> String {
    let Change { name, expected, found } = change;
    let rest = |line: &str| line.strip_prefix(name.as_str()).unwrap_or(line).trim().to_string();
    match name.split(' ').next() {
        Some("function") if change.only_opens() => format!("PUBLIC has EXECUTE on {name}"),
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
    let Object { kind, name, .. } = Object::parse(object);
    matches!(kind, "table" | "view").then_some(name)
}

/// The relation that an object is a part of.
fn part_of(object: &str) -> Option<&str> {
    let Object { kind, name, .. } = Object::parse(object);
    match kind {
        "column" | "constraint" | "trigger" | "rule" => Some(name),
        "index" => drift::indexed_table(expected_line(object)?),
        _ => None,
    }
}

/// Whether an index is one of a relation, or a constraint, that is not ours either.
fn index_of(object: &str, relations: &BTreeSet<String>, drift: &Drift) -> bool {
    let Object { kind, name, .. } = Object::parse(object);
    let lines = drift.extra_lines.get(object).filter(|_| kind == "index");
    lines
        .into_iter()
        .flatten()
        .filter_map(|line| drift::indexed_table(line))
        .any(|table| relations.contains(table) || drift.extra.contains(&format!("constraint {table}.{name}")))
}

/// Columns of ours that are missing, where another one of the same table, which is not ours, is the only one that can be
/// it: to add it and to drop the other would lose what is in there.
fn renamed(drift: &Drift) -> Vec<(&str, &str)> {
    let columns = |objects: &'_ [String], line: &dyn Fn(&str) -> String| -> Vec<(usize, String, String)> {
        let columns = objects
            .iter()
            .enumerate()
            .filter(|(_, object)| object.starts_with("column "));
        columns
            .map(|(i, object)| {
                let line = line(object);
                let kind = Column::parse(Object::parse(&line).definition).kind.to_string();
                (i, Object::parse(object).name.to_string(), kind)
            })
            .collect()
    };
    let missing = columns(&drift.missing, &|object| {
        expected_line(object).unwrap_or_default().to_string()
    });
    let extra = columns(&drift.extra, &|object| {
        let lines = drift.extra_lines.get(object);
        lines.and_then(|lines| lines.first()).cloned().unwrap_or_default()
    });
    let mut renamed = Vec::new();
    for (i, table, kind) in &missing {
        let is_like = |(_, other, other_kind): &&(usize, String, String)| other == table && other_kind == kind;
        let candidates: Vec<_> = extra.iter().filter(is_like).collect();
        if let [(j, ..)] = candidates[..]
            && missing.iter().filter(is_like).count() == 1
            && drift::of_view(&drift.missing[*i]).is_none()
        {
            renamed.push((drift.missing[*i].as_str(), drift.extra[*j].as_str()));
        }
    }
    renamed
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

/// What is lost is in a backup.
pub(super) fn restore(schema: &SchemaName, table: &str) -> String {
    format!(
        "pg_restore --schema={} --table={table} --dbname=\"$DATABASE_URL\" BACKUP # all nodes stopped; then doctor again",
        quoted(schema.as_str())
    )
}

struct Place<'a> {
    schema: &'a SchemaName,
}

impl Place<'_> {
    fn apply(&self) -> String {
        format!("{} schema apply", command(self.schema))
    }

    fn create_table(&self, table: &str) -> String {
        let columns = drift::columns(EXPECTED, table).into_iter().map(|column| {
            let (name, definition) = drift::identifier(column);
            format!("{name} {}", Column::parse(definition.trim_start()).declaration())
        });
        let prefix = format!("constraint {table}.");
        let constraints = EXPECTED.lines().filter_map(|line| line.strip_prefix(&prefix));
        let parts: Vec<String> = columns
            .chain(constraints.map(|constraint| format!("constraint {constraint}")))
            .collect();
        let (parts, owned) = (parts.join(", "), as_the_rest(self.schema, table));
        format!("create table {} ({parts}); {owned}", self.named(table))
    }

    /// Numbers that were given out must not be given out again: what is claimed, and what nodes remember, is known by them.
    fn count_on(&self, table: &str, column: &str, statement: String) -> String {
        let claimed = if table == "orchestrator_queue" {
            format!(
                ", (select max(c.id) from {} as m, unnest(m.claimed_ids) as c (id))",
                self.named("mailboxes")
            )
        } else {
            String::new()
        };
        let table = self.named(table);
        format!(
            "/* stop all nodes first */ {statement} select setval(pg_get_serial_sequence('{table}', '{column}'), \
             coalesce(greatest(max({column}){claimed}), 0) + 1, false) from {table};"
        )
    }

    /// With the schema. The name is quoted where it has to be.
    fn named(&self, name: &str) -> String {
        format!("{}.{name}", self.schema.quoted())
    }

    fn create(&self, object: &str) -> String {
        let Object { kind, name, part, .. } = Object::parse(object);
        let definition = definition(object);
        match kind {
            // One row, which a deployment writes.
            "table" if name == "deployment" => self.create_table(name),
            "table" => restore(self.schema, name),
            "column" => {
                let column = Column::parse(definition);
                let add = format!(
                    "alter table {} add column {part} {};",
                    self.named(name),
                    column.declaration()
                );
                if column.is_identity() {
                    self.count_on(name, part, add)
                } else {
                    add
                }
            }
            "constraint" => format!("alter table {} add constraint {part} {definition};", self.named(name)),
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
        let Object { kind, name, part, .. } = Object::parse(&change.name);
        let rest = |line: &str| {
            line.strip_prefix(change.name.as_str())
                .unwrap_or(line)
                .trim()
                .to_string()
        };
        let (expected, found) = (rest(&change.expected), rest(&change.found));
        match kind {
            "table" => format!("alter table {} {};", self.named(name), options(&expected, &found)),
            "column" => {
                let (found, expected) = (Column::parse(&found), Column::parse(&expected));
                let alter = format!("alter table {} {};", self.named(name), found.changes(part, &expected));
                if expected.is_identity() && !found.is_identity() {
                    self.count_on(name, part, alter)
                } else {
                    alter
                }
            }
            "constraint" => format!(
                "alter table {} drop constraint {part}, add constraint {part} {expected};",
                self.named(name)
            ),
            "index" if found.ends_with(" INVALID") && found.strip_suffix(" INVALID") == Some(expected.as_str()) => {
                format!("reindex index concurrently {};", self.named(name))
            }
            "function" if change.only_opens() => {
                format!("revoke execute on function {} from public;", self.named(name))
            }
            // Once it is gone, it is missing.
            "index" => format!("drop index concurrently {};", self.named(name)),
            _ => self.apply(),
        }
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
            [
                "/* stop all nodes first */ alter table \"s\".mailboxes alter column history_epoch add generated always as identity; \
               select setval(pg_get_serial_sequence('\"s\".mailboxes', 'history_epoch'), \
               coalesce(greatest(max(history_epoch)), 0) + 1, false) from \"s\".mailboxes;"
            ]
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
            gone.iter().any(|command| command
                .starts_with("pg_restore --schema=s --table=sessions --dbname=\"$DATABASE_URL\" BACKUP #")),
            "{gone:?}"
        );
        assert!(
            gone.iter().all(|command| !command.starts_with("alter table")),
            "{gone:?}"
        );
    }
}
