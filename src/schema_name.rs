//! Schema names: validated when given, quoted wherever they appear in SQL.

use crate::error::{Error, ErrorKind};

/// PostgreSQL silently truncates longer identifiers.
const MAX_IDENTIFIER_BYTES: usize = 63;

/// A schema name that is safe to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SchemaName(String);

impl SchemaName {
    /// Letters, digits, `_`, `-` and `$`, not starting with a digit, `-` or `$`: what can be typed without surprises
    /// in psql, in a URL and in a shell.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let problem = if name.is_empty() {
            "it is empty".to_string()
        } else if name.len() > MAX_IDENTIFIER_BYTES {
            format!("it has {} bytes, the limit is {MAX_IDENTIFIER_BYTES}", name.len())
        } else if !name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'))
            || !name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        {
            "use letters, digits, '_', '-' and '$', beginning with a letter or '_'".to_string()
        } else if name.to_lowercase().starts_with("pg_") || name == "information_schema" {
            "PostgreSQL keeps that name for itself".to_string()
        } else {
            return Ok(Self(name.to_string()));
        };
        Err(Error::new(
            ErrorKind::Config,
            format!("invalid schema name {name:?}: {problem}"),
        ))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn quoted(&self) -> String {
        quote_identifier(&self.0)
    }

    /// The NOTIFY channel: channels are database-wide, so the schema is in its name.
    pub(crate) fn channel(&self) -> String {
        const PREFIX: &str = "duroxide.";
        let name = format!("{PREFIX}{}", self.0);
        if name.len() <= MAX_IDENTIFIER_BYTES {
            return name;
        }
        // Too long for an identifier: an id that only this name has.
        let id = self.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{PREFIX}{id:016x}")
    }
}

pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_can_be_used() {
        let longest = "x".repeat(63);
        for name in ["duroxide", "App_1", "team-a", "größe", "_x$y", longest.as_str()] {
            let schema = SchemaName::new(name).expect(name);
            assert_eq!(schema.as_str(), name);
            assert!(schema.channel().len() <= 63);
        }
    }

    #[test]
    fn names_that_cannot() {
        let long = "x".repeat(64);
        for name in [
            "",
            " ",
            "a b",
            "\"quoted\"",
            "a\"b",
            "a'b",
            "a;drop schema public cascade",
            "a.b",
            "1a",
            "-a",
            "$a",
            "pg_x",
            "PG_temp",
            "information_schema",
            "a\0b",
            "a\nb",
            long.as_str(),
        ] {
            let error = SchemaName::new(name).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Config);
        }
    }

    #[test]
    fn long_names_have_channels_of_their_own() {
        let name = |last: &str| SchemaName::new(&("x".repeat(62) + last)).expect("valid").channel();
        assert_ne!(name("a"), name("b"));
    }
}
