//! Rust values as SQL takes them, with a clear error for those it cannot take.

use std::borrow::Cow;
use std::time::Duration;

use semver::Version;

use crate::error::Failure;

/// The longest instance id, session id, owner id and KV key, in bytes: two of them fit into one index entry.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// The longest tag, in bytes.
const MAX_TAG_BYTES: usize = 512;

/// The longest duration that is passed on: a hundred years.
const MAX_DURATION_MS: i64 = 100 * 366 * 86_400_000;

/// An id or key that goes into an index.
pub(crate) fn key<'a>(operation: &str, field: &str, value: &'a str) -> Result<&'a str, Failure> {
    bounded(operation, field, value, MAX_KEY_BYTES)
}

fn bounded<'a>(operation: &str, field: &str, value: &'a str, limit: usize) -> Result<&'a str, Failure> {
    if value.len() > limit {
        return Err(Failure::permanent(
            operation,
            format!("{field} has {} bytes, the limit is {limit}", value.len()),
        ));
    }
    if value.contains('\0') {
        return Err(Failure::permanent(
            operation,
            format!("{field} contains a NUL character, which PostgreSQL cannot store"),
        ));
    }
    Ok(value)
}

/// Text that is stored as it is, but must not contain NUL: names and versions.
pub(crate) fn name<'a>(operation: &str, field: &str, value: &'a str) -> Result<&'a str, Failure> {
    bounded(operation, field, value, usize::MAX)
}

/// A tag or session as a routing key: see `worker_queue.tag`.
pub(crate) fn routing_key(operation: &str, field: &str, value: Option<&str>) -> Result<String, Failure> {
    match value {
        None => Ok(String::new()),
        Some(value) => {
            let limit = if field == "tag" { MAX_TAG_BYTES } else { MAX_KEY_BYTES };
            bounded(operation, field, value, limit).map(|value| format!("#{value}"))
        }
    }
}

/// An id assigned by the runtime.
pub(crate) fn id(operation: &str, field: &str, value: u64) -> Result<i64, Failure> {
    i64::try_from(value)
        .map_err(|_| Failure::permanent(operation, format!("{field} is {value}, the limit is {}", i64::MAX)))
}

/// An id that is known to fit, or else the largest that does.
pub(crate) fn saturated_id(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A stored id back as the runtime knows it.
pub(crate) fn from_id(value: i64) -> u64 {
    value.max(0) as u64
}

/// Whole milliseconds, at least one for any duration above zero.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    let rounded_up = duration.as_nanos().div_ceil(1_000_000);
    i64::try_from(rounded_up)
        .unwrap_or(MAX_DURATION_MS)
        .min(MAX_DURATION_MS)
}

/// A point in time given by the runtime in milliseconds since the epoch.
pub(crate) fn epoch_ms(value: u64) -> i64 {
    saturated_id(value)
}

/// Free text. PostgreSQL has no NUL in text, so U+0001 escapes it, and itself; all other text is stored as it is.
pub(crate) fn text(value: &str) -> Cow<'_, str> {
    if value.contains(['\0', '\u{1}']) {
        Cow::Owned(value.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0"))
    } else {
        Cow::Borrowed(value)
    }
}

/// The inverse of [`text`].
pub(crate) fn from_text(value: String) -> String {
    if !value.contains('\u{1}') {
        return value;
    }
    let mut text = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1}' => match characters.next() {
                Some('0') => text.push('\0'),
                Some('1') => text.push('\u{1}'),
                // Not written by us: kept as it is.
                other => {
                    text.push('\u{1}');
                    text.extend(other);
                }
            },
            other => text.push(other),
        }
    }
    text
}

/// A version as one number that sorts like the version. Pre-releases come right before their release;
/// they are not told apart, which the runtime does itself after the fetch.
pub(crate) fn version(version: &Version) -> i64 {
    const LIMIT: u64 = (1 << 20) - 1;
    let part = |value: u64| value.min(LIMIT) as i64;
    (part(version.major) << 41)
        | (part(version.minor) << 21)
        | (part(version.patch) << 1)
        | i64::from(version.pre.is_empty())
}

/// Why stored text cannot be read, without what is in it: the reason goes to logs, payloads do not.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // These name fields and kinds, and those of a later release are what one wants to know.
    let harmless = ["unknown variant", "missing field", "unknown field", "duplicate field"];
    if !error.is_data() || harmless.iter().any(|start| text.starts_with(start)) {
        return text;
    }
    format!(
        "a value of the wrong type at line {} column {}",
        error.line(),
        error.column()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_text_round_trips() {
        for value in ["", "plain", "\0", "\u{1}", "a\0b\u{1}c\u{1}0", "\u{1}\0\u{1}1\0"] {
            let stored = text(value).into_owned();
            assert!(!stored.contains('\0'));
            assert_eq!(from_text(stored), value);
        }
        assert!(matches!(text("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn versions_sort_as_numbers() {
        let sorted = [
            "0.0.0-a",
            "0.0.0",
            "0.1.9",
            "0.1.10",
            "0.2.0",
            "1.0.0-rc.1",
            "1.0.0",
            "1000000.1.1",
        ];
        let numbers: Vec<i64> = sorted
            .iter()
            .map(|text| version(&text.parse().expect("a version")))
            .collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert!(numbers[0] >= 0, "negative is unpinned");
        assert!(version(&Version::new(u64::MAX, u64::MAX, u64::MAX)) > 0);
    }

    #[test]
    fn durations_keep_milliseconds_and_are_bounded() {
        assert_eq!(milliseconds(Duration::from_millis(1500)), 1500);
        assert_eq!(milliseconds(Duration::from_micros(1)), 1);
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::MAX), MAX_DURATION_MS);
    }

    #[test]
    fn keys_that_do_not_fit_are_refused_by_name() {
        let long = "x".repeat(MAX_KEY_BYTES + 1);
        let error = key("op", "instance id", &long).expect_err("too long");
        assert!(error.error.message.contains("instance id") && error.error.message.contains("1024"));
        assert!(!error.error.is_retryable());
        assert!(key("op", "KV key", "a\0b").is_err());
        assert!(key("op", "KV key", &"x".repeat(MAX_KEY_BYTES)).is_ok());
    }
}
