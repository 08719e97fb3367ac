//! What commands say.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use duroxide::providers::ProviderError;
use serde_json::Value;

use crate::deploy::STANDBY;
use crate::error::{Error, ErrorKind, NO_CONNECTION, describe};

/// Somebody has a lock, and keeps it.
pub(super) const LOCKED: &str = "55P03";
/// No more connections for this role or database, or at all.
const TOO_MANY: &str = "53300";

/// What a command found or did.
pub(super) struct Outcome {
    text: String,
    /// None if everything was printed already.
    json: Option<Value>,
    /// Whether another program is to read the text, which must not be changed then.
    is_script: bool,
    /// What is wrong with what was found: goes to stderr, and the command fails.
    pub(super) problem: Option<Failure>,
}

impl Outcome {
    pub(super) fn new(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json: Some(json),
            is_script: false,
            problem: None,
        }
    }

    /// Text that `psql` is to read.
    pub(super) fn script(text: impl Into<String>, json: Value) -> Self {
        Self {
            is_script: true,
            ..Self::new(text, json)
        }
    }

    pub(super) fn with_problem(mut self, problem: Option<Failure>) -> Self {
        self.problem = problem;
        self
    }

    /// Everything was printed already.
    pub(super) fn printed() -> Self {
        Self {
            text: String::new(),
            json: None,
            is_script: false,
            problem: None,
        }
    }

    pub(super) fn shown(&self, json: bool) -> Shown {
        let mut shown = match &self.json {
            Some(value) if json => Shown::json(&format!("{value:#}")),
            _ if self.is_script => Shown(self.text.clone()),
            _ => Shown::text(&self.text),
        };
        if !shown.0.is_empty() && !shown.0.ends_with('\n') {
            shown.0.push('\n');
        }
        shown
    }
}

/// What can go to a terminal. Names are anybody's, and so is much else: whatever the commands print comes through here.
pub(super) struct Shown(String);

impl Shown {
    /// Lines, in which whatever else a terminal would act on is spelt out.
    pub(super) fn text(text: &str) -> Self {
        Self(text.split('\n').map(visible).collect::<Vec<_>>().join("\n"))
    }

    /// JSON may contain what is beyond ASCII as it is, and some of that controls terminals too.
    pub(super) fn json(text: &str) -> Self {
        let mut shown = String::with_capacity(text.len());
        for c in text.chars() {
            if c.is_control() && c != '\n' {
                // Nothing can go wrong in a string.
                let _ = write!(shown, "\\u{:04x}", u32::from(c));
            } else {
                shown.push(c);
            }
        }
        Self(shown)
    }

    /// Over what was shown before, then nothing: cleared first, it would flicker.
    pub(super) fn in_place(mut self, clear: bool) -> Self {
        let (clear, text) = (if clear { "\x1b[2J" } else { "" }, self.0.replace('\n', "\x1b[K\n"));
        self.0 = format!("{clear}\x1b[H{text}\x1b[J");
        self
    }
}

/// Why a command failed, for people, and its exit code.
#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    pub(super) code: u8,
    /// Whether the role may not do it.
    is_privilege: bool,
    /// Whether somebody's lock was waited for in vain.
    is_locked: bool,
}

impl Failure {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::with_code(message, 1)
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::with_code(message, 2)
    }

    pub(super) fn unreachable(message: impl Into<String>) -> Self {
        Self::with_code(message, 3)
    }

    pub(super) fn with_code(message: impl Into<String>, code: u8) -> Self {
        Self {
            message: message.into(),
            code,
            is_privilege: false,
            is_locked: false,
        }
    }

    pub(super) fn is_unreachable(&self) -> bool {
        self.code == 3
    }

    /// Whether the server is there, but has no room for another connection.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_unreachable() && self.message.contains(&format!("(SQLSTATE {TOO_MANY})"))
    }

    /// Somebody's lock was waited for in vain.
    pub(super) fn locked(message: impl Into<String>) -> Self {
        Self {
            is_locked: true,
            ..Self::new(message)
        }
    }

    pub(super) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// The role may not.
    pub(super) fn privilege(message: impl Into<String>) -> Self {
        Self {
            is_privilege: true,
            ..Self::new(message)
        }
    }

    /// Says who may, if that is what it is about.
    pub(super) fn with_hint(mut self, hint: impl FnOnce() -> String) -> Self {
        if std::mem::take(&mut self.is_privilege) {
            self.message = format!("{}. {}", self.message, hint());
        }
        self
    }

    /// The same, with something before it.
    pub(super) fn preceded_by(mut self, text: &str) -> Self {
        self.message.insert_str(0, text);
        self
    }

    /// The same, with something after it.
    pub(super) fn followed_by(mut self, text: &str) -> Self {
        self.message.push_str(text);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            // The text is for those who write applications, with a hint about them; the cause is without.
            ErrorKind::Privilege => {
                Self::privilege(std::error::Error::source(&error).map_or_else(|| error.to_string(), describe))
            }
            ErrorKind::Connect => Self::unreachable(error.to_string()),
            ErrorKind::Config => Self::usage(error.to_string()),
            // Who goes on trying, and names whom it waited for, has wrapped it.
            _ if has_code(&error.to_string(), LOCKED) => Self::locked(error.to_string()),
            _ => Self::new(error.to_string()),
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        if has_state(&error, "42501") {
            Self::privilege(error.message)
        } else if has_state(&error, LOCKED) {
            Self::locked(error.message)
        } else if has_state(&error, "25006") {
            Self::new(format!("{}. {STANDBY}", error.message))
        } else if error.is_retryable()
            && (error.message.starts_with(NO_CONNECTION) || !error.message.contains("(SQLSTATE "))
        {
            // Without a word of the server: it is the connection.
            Self::unreachable(error.message)
        } else {
            Self::new(error.message)
        }
    }
}

/// Whether it is the server's error with this SQLSTATE. The provider has no field for it, but what
/// [`crate::error::describe`] says ends with it, whatever names come before.
pub(super) fn has_state(error: &ProviderError, state: &str) -> bool {
    has_code(&error.message, state)
}

/// The same, for what was made a text of.
pub(super) fn has_code(message: &str, state: &str) -> bool {
    message.ends_with(&format!(" (SQLSTATE {state})"))
}

/// Writes to stdout. Returns whether somebody still reads: a reader that has seen enough (`| head`) is no failure.
pub(super) fn print(shown: &Shown) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(shown.0.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("cannot write the output: {error}"))),
    }
}

/// Says something on stderr, on a line of its own. Further lines, which names and servers may bring along, are indented:
/// they cannot be taken for others.
pub(super) fn say(text: &str) {
    // Nothing can be done about a stderr that cannot be written to.
    let _ = writeln!(io::stderr().lock(), "{}", Shown::text(text).0.replace('\n', "\n  "));
}

/// Asks something on stderr.
pub(super) fn ask(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{}", Shown::text(text).0).and_then(|()| stderr.flush());
}

/// On one line: what a terminal would act on, or take for another line, is spelt out.
pub(super) fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            visible.extend(c.escape_debug());
        } else {
            visible.push(c);
        }
    }
    visible
}

/// Columns, as wide as they have to be.
pub(super) fn table(headers: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| visible(cell)).collect())
        .collect();
    let mut widths: Vec<usize> = headers.iter().map(|header| header.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, &width) in cells.zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(&mut headers.iter().copied());
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Milliseconds, to the two units that matter.
pub(super) fn duration(ms: i64) -> String {
    let sign = if ms < 0 { "-" } else { "" };
    let ms = ms.unsigned_abs();
    let (seconds, minutes, hours, days) = (ms / 1000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    let text = match () {
        () if ms < 1000 => format!("{ms} ms"),
        () if seconds < 60 => format!("{seconds}.{} s", ms % 1000 / 100),
        () if minutes < 60 => format!("{minutes} m {:02} s", seconds % 60),
        () if hours < 24 => format!("{hours} h {:02} m", minutes % 60),
        () => format!("{days} d {:02} h", hours % 24),
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (59_999, "59.9 s"),
            (60_000, "1 m 00 s"),
            (3_599_999, "59 m 59 s"),
            (3_600_000, "1 h 00 m"),
            (90_000_000, "1 d 01 h"),
            (-1500, "-1.5 s"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }

    #[test]
    fn terminals_are_told_nothing_by_names() {
        let rows = [vec!["a\n\u{1b}[2J\u{9b}b".to_string(), "1".to_string()]];
        assert_eq!(
            table(&["a", "b"], &rows),
            "a                    b\na\\n\\u{1b}[2J\\u{9b}b  1\n"
        );
    }

    #[test]
    fn json_stays_json_and_scripts_stay_as_they_are() {
        let name = "a\n\t\u{1b}[2J\u{7f}\u{9b}ü";
        let outcome = Outcome::new(format!("name: {name}"), Value::from(name));
        assert_eq!(outcome.shown(false).0, "name: a\n\\t\\u{1b}[2J\\u{7f}\\u{9b}ü\n");
        let json = outcome.shown(true).0;
        assert_eq!(json, "\"a\\n\\t\\u001b[2J\\u007f\\u009bü\"\n");
        assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), Value::from(name));
        assert_eq!(Outcome::script(name, Value::Null).shown(false).0, format!("{name}\n"));
    }

    #[test]
    fn only_the_end_of_a_message_is_a_state() {
        let error = ProviderError::permanent("delete", "Instance \"(SQLSTATE DX004)\" not found (SQLSTATE DX003)");
        assert!(has_state(&error, "DX003") && !has_state(&error, "DX004"));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["größe".to_string(), "1".to_string()]];
        assert_eq!(table(&["a", "long"], &rows), "a      long\ngröße  1\n");
    }
}
