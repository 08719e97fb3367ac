//! A history, readable.

use std::collections::HashMap;

use duroxide::Event;
use serde_json::{Value, json};

use super::output::{Failure, duration, visible};
use crate::PostgresProvider;
use crate::encode;

/// The longest payload shown.
const LONGEST_PAYLOAD: usize = 80;
/// What an event carries, apart from names.
const PAYLOADS: [&str; 9] = [
    "input", "output", "result", "data", "details", "reason", "status", "value", "key",
];

/// The history of an execution.
pub(super) struct Timeline(Vec<Entry>);

enum Entry {
    Event {
        event: Box<Event>,
        json: Value,
    },
    /// One that this release does not know, or that somebody changed.
    Unreadable {
        text: String,
        why: String,
    },
}

impl Timeline {
    pub(super) async fn read(provider: &PostgresProvider, instance: &str, execution: u64) -> Result<Self, Failure> {
        let execution = encode::saturated_id(execution);
        let stored = provider.inner.stored_events(instance, execution).await;
        Ok(Self::new(stored.map_err(|failure| failure.error)?))
    }

    fn new(stored: Vec<String>) -> Self {
        let entries = stored.into_iter().map(|text| {
            let read = serde_json::from_str::<Event>(&text).and_then(|event| {
                let json = serde_json::to_value(&event)?;
                let event = Box::new(event);
                Ok(Entry::Event { event, json })
            });
            read.unwrap_or_else(|error| Entry::Unreadable {
                text,
                why: encode::unreadable(&error),
            })
        });
        Self(entries.collect())
    }

    /// What cannot be read is there as it is stored.
    pub(super) fn json(&self) -> Vec<Value> {
        let entries = self.0.iter().map(|entry| match entry {
            Entry::Event { json, .. } => json.clone(),
            Entry::Unreadable { text, why } => json!({ "unreadable": why, "stored": text }),
        });
        entries.collect()
    }

    /// A history that is not complete is not shown as if it were.
    pub(super) fn problem(&self, instance: &str) -> Option<Failure> {
        let is_unreadable = |entry: &&Entry| matches!(entry, Entry::Unreadable { .. });
        let count = self.0.iter().filter(is_unreadable).count();
        (count > 0).then(|| {
            Failure::new(format!(
                "{count} of {} events of instance {instance:?} cannot be read: a later release wrote them, or somebody changed them",
                self.0.len()
            ))
        })
    }

    fn events(&self) -> impl Iterator<Item = &Event> {
        self.0.iter().filter_map(|entry| match entry {
            Entry::Event { event, .. } => Some(&**event),
            Entry::Unreadable { .. } => None,
        })
    }

    /// A line an event: when, counted from the first; what; and how long it took if it ends something.
    pub(super) fn text(&self) -> String {
        let start = self.events().next().map_or(0, |event| event.timestamp_ms);
        let since = |event: &Event, from: u64| duration(event.timestamp_ms.saturating_sub(from) as i64);
        let by_id: HashMap<u64, u64> = self
            .events()
            .map(|event| (event.event_id, event.timestamp_ms))
            .collect();
        let mut text = String::new();
        for entry in &self.0 {
            let (event, json) = match entry {
                Entry::Event { event, json } => (event, json),
                Entry::Unreadable { text: stored, why } => {
                    text.push_str(&format!("   ?  cannot be read: {why}: {}\n", clipped(stored)));
                    continue;
                }
            };
            let kind = json["type"].as_str().unwrap_or("?");
            let mut line = format!("{:>4}  +{:<10}  {kind}", event.event_id, since(event, start));
            for name in ["name", "version", "instance"] {
                if let Some(name) = json[name].as_str() {
                    line.push_str(&format!(" {}", visible(name)));
                }
            }
            if let Some(source) = event.source_event_id {
                line.push_str(&format!(" of {source}"));
                if let Some(&scheduled) = by_id.get(&source) {
                    line.push_str(&format!(" after {}", since(event, scheduled)));
                }
            }
            for name in PAYLOADS {
                match &json[name] {
                    Value::Null => {}
                    Value::String(payload) => line.push_str(&format!(" {name}={}", clipped(payload))),
                    payload => line.push_str(&format!(" {name}={}", clipped(&payload.to_string()))),
                }
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// On one line, and not too long.
pub(super) fn clipped(payload: &str) -> String {
    let mut text: String = payload
        .chars()
        .take(LONGEST_PAYLOAD)
        .flat_map(char::escape_debug)
        .collect();
    if payload.chars().nth(LONGEST_PAYLOAD).is_some() {
        text.push('…');
    }
    text.replace("\\\"", "\"").replace("\\'", "'")
}

#[cfg(test)]
mod tests {
    use duroxide::EventKind;

    use super::*;

    #[test]
    fn what_ends_something_says_how_long_it_took() {
        let event = |id, source, at, kind| {
            let mut event = Event::with_event_id(id, "i", 1, source, kind);
            event.timestamp_ms = at;
            event
        };
        let scheduled = EventKind::ActivityScheduled {
            name: "Charge".to_string(),
            input: "a\nb".to_string(),
            session_id: None,
            tag: None,
        };
        let completed = EventKind::ActivityCompleted {
            result: "x".repeat(200),
        };
        let history = [event(2, None, 5000, scheduled), event(3, Some(2), 6500, completed)];
        let stored = history.iter().map(|event| serde_json::to_string(event).expect("JSON"));
        let text = Timeline::new(stored.collect()).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "   2  +0 ms        ActivityScheduled Charge input=a\\nb");
        assert!(
            lines[1].starts_with("   3  +1.5 s       ActivityCompleted of 2 after 1.5 s result=xxx"),
            "{text}"
        );
        assert!(lines[1].ends_with("x…") && lines[1].len() < 160, "{text}");
    }
}
