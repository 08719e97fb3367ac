//! A history, readable.

use std::collections::HashMap;

use duroxide::Event;
use serde_json::Value;

use super::output::{Failure, duration, visible};

/// The longest payload shown.
const LONGEST_PAYLOAD: usize = 80;
/// What an event carries, apart from names.
const PAYLOADS: [&str; 9] = [
    "input", "output", "result", "data", "details", "reason", "status", "value", "key",
];

pub(super) fn json(history: &[Event]) -> Result<Vec<Value>, Failure> {
    let events = history.iter().map(serde_json::to_value).collect::<Result<_, _>>();
    events.map_err(|error| Failure::new(format!("the history cannot be shown: {error}")))
}

/// A line an event: when, counted from the first; what; and how long it took if it ends something.
pub(super) fn text(history: &[Event]) -> Result<String, Failure> {
    let start = history.first().map_or(0, |event| event.timestamp_ms);
    let since = |event: &Event, from: u64| duration(event.timestamp_ms.saturating_sub(from) as i64);
    let by_id: HashMap<u64, u64> = history
        .iter()
        .map(|event| (event.event_id, event.timestamp_ms))
        .collect();
    let mut text = String::new();
    for (event, json) in history.iter().zip(json(history)?) {
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
    Ok(text)
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
        let text = text(&history).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "   2  +0 ms        ActivityScheduled Charge input=a\\nb");
        assert!(
            lines[1].starts_with("   3  +1.5 s       ActivityCompleted of 2 after 1.5 s result=xxx"),
            "{text}"
        );
        assert!(lines[1].ends_with("x…") && lines[1].len() < 160, "{text}");
    }
}
