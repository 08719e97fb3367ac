//! What can go wrong, and what it means.
//!
//! SQL functions raise SQLSTATEs (see `sql/README.md`); this module is the only place that gives
//! them a meaning. Nothing matches message text, but for the command, which looks for the SQLSTATE that
//! [`describe`] ends with, and takes an error without one for that of a connection.

use std::error::Error as StdError;
use std::fmt;

use duroxide::providers::ProviderError;
use tokio_postgres::error::{Severity, SqlState};

use crate::connect::NoConnection;

/// Raised by the functions when a lease is not (or no longer) the caller's.
pub(crate) const LEASE_LOST: &str = "DX001";
/// Raised when the tree to be deleted changed meanwhile.
pub(crate) const TREE_CHANGED: &str = "DX006";
/// Out of shared memory, or of another: what a transaction needs grows with what it deletes.
pub(crate) const NO_ROOM: &str = "53200";
/// How it begins where there was no connection.
pub(crate) const NO_CONNECTION: &str = "no connection to PostgreSQL";

/// Why a provider could not be set up, closed or probed.
///
/// The messages never contain a password or a connection string. The cause, where there is one,
/// is in [`source`](std::error::Error::source).
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of problem an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting makes no sense: the connection string, the schema name, the pool size.
    Config,
    /// The server cannot be reached, or refused the connection.
    Connect,
    /// The server is too old.
    UnsupportedServer,
    /// The role lacks a privilege.
    Privilege,
    /// The schema is not (or not completely) deployed, or was changed by somebody else.
    Schema,
    /// The schema was deployed by a release that no longer serves this one.
    NewerSchema,
    /// Anything else the server reported.
    Database,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of problem this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Why one call of a function failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// No connection could be had. Nothing was sent.
    NoConnection(NoConnection),
    /// The statement failed, or its answer was lost.
    Statement(tokio_postgres::Error),
    /// No answer in time. It may still take effect.
    TimedOut,
    /// The provider was closed.
    Closed,
    /// The lease is not, or no longer, the caller's. Says of what.
    LeaseLost(String),
    /// The function did not answer each request.
    NoAnswer,
    /// A call made together with others failed, perhaps because of one of them. Says whether it may have committed.
    InCompany(bool),
}

impl CallError {
    /// A statement could not be prepared, so nothing was executed: a connection lost then is as good as none.
    pub(crate) fn unprepared(error: tokio_postgres::Error) -> Self {
        if may_have_committed(&error) {
            Self::NoConnection(NoConnection::Lost(error))
        } else {
            Self::Statement(error)
        }
    }

    pub(crate) fn sql_state(&self) -> Option<&SqlState> {
        match self {
            Self::Statement(error) => error.code(),
            _ => None,
        }
    }

    pub(crate) fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost(_)) || self.sql_state().is_some_and(|state| state.code() == LEASE_LOST)
    }

    /// Whether the same call may succeed later.
    ///
    /// Trouble with the connection always may, however it shows: a permanent error of an ack would make
    /// the runtime fail a healthy instance.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::NoConnection(_) | Self::TimedOut | Self::InCompany(_) => true,
            Self::Closed | Self::LeaseLost(_) | Self::NoAnswer => false,
            Self::Statement(error) => match error.as_db_error() {
                Some(db) => is_retryable_state(db.code().code()),
                // Conversion errors are ours; everything else without a SQLSTATE is the connection.
                None => !is_conversion(error),
            },
        }
    }

    /// Whether the server refused the call perhaps because it could not read a row.
    pub(crate) fn may_be_unreadable(&self) -> bool {
        // A block that cannot be read is often still unreadable the next time.
        let is_refused = |state: &SqlState| !self.is_retryable() || *state == SqlState::IO_ERROR;
        !self.is_lease_lost() && self.sql_state().is_some_and(is_refused)
    }

    /// Whether the statement may have committed although this error came back.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            Self::NoConnection(_) | Self::Closed | Self::LeaseLost(_) | Self::NoAnswer => false,
            Self::TimedOut => true,
            Self::InCompany(ambiguous) => *ambiguous,
            Self::Statement(error) => may_have_committed(error),
        }
    }

    /// Whether the connection should not be used again.
    pub(crate) fn spoils_connection(&self) -> bool {
        match self.sql_state() {
            // Read-only: it leads to a server that is no longer the primary.
            Some(state) => matches!(
                state.code(),
                "25006" | "25P04" | "57P01" | "57P02" | "57P03" | "57P05" | "42P05"
            ),
            None => matches!(self, Self::TimedOut),
        }
    }

    /// Whether a cached statement no longer fits the function it calls. Nothing was executed.
    pub(crate) fn is_stale_statement(&self) -> bool {
        self.sql_state()
            .is_some_and(|state| matches!(state.code(), "0A000" | "26000"))
    }

    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::NoConnection(error) if error.is_busy() => ErrorClass::Pool,
            Self::NoConnection(_) => ErrorClass::Connection,
            Self::TimedOut => ErrorClass::Timeout,
            Self::Closed => ErrorClass::Closed,
            _ if self.is_lease_lost() => ErrorClass::LeaseLost,
            Self::Statement(error) => match error.code().map(SqlState::code) {
                None if self.is_retryable() => ErrorClass::Connection,
                Some("57P01" | "57P02" | "57P03" | "57P05") => ErrorClass::Connection,
                Some(code) if code.starts_with("08") => ErrorClass::Connection,
                Some("57014" | "25P04") => ErrorClass::Timeout,
                _ => ErrorClass::by_retryable(self.is_retryable()),
            },
            _ => ErrorClass::by_retryable(self.is_retryable()),
        }
    }

    pub(crate) fn to_failure(&self, operation: &str) -> Failure {
        let message = self.to_string();
        Failure {
            error: if self.is_retryable() {
                ProviderError::retryable(operation, message)
            } else {
                ProviderError::permanent(operation, message)
            },
            class: self.class(),
        }
    }
}

/// What an error is to those who watch. `docs/observability.md` says what each means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    LeaseLost,
    Connection,
    Pool,
    Timeout,
    Closed,
    Retryable,
    Permanent,
}

impl ErrorClass {
    fn by_retryable(retryable: bool) -> Self {
        if retryable { Self::Retryable } else { Self::Permanent }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::LeaseLost => "lease_lost",
            Self::Connection => "connection",
            Self::Pool => "pool",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
        }
    }
}

/// Why a provider method failed: what the runtime is told, and what those who watch are told.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: ProviderError,
    pub(crate) class: ErrorClass,
}

impl Failure {
    pub(crate) fn permanent(operation: &str, message: impl Into<String>) -> Self {
        Self {
            error: ProviderError::permanent(operation, message),
            class: ErrorClass::Permanent,
        }
    }

    pub(crate) fn retryable(operation: &str, message: impl Into<String>) -> Self {
        Self {
            error: ProviderError::retryable(operation, message),
            class: ErrorClass::Retryable,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

pub(crate) fn is_retryable_state(code: &str) -> bool {
    code.starts_with("08")
        || code.starts_with("53")
        || matches!(
            code,
            "57P01"
                | "57P02"
                | "57P03"
                | "57P05"
                | "57014"
                | "25006"
                | "25P04"
                | "58030"
                | "40001"
                | "40P01"
                | "55P03"
                | "0A000"
                | "26000"
                | "42P05"
        )
        || code == TREE_CHANGED
}

/// Whether a statement that was executed may have taken effect although this error came back.
fn may_have_committed(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        // The other severities end the connection, perhaps after the commit.
        Some(db) => db.parsed_severity() != Some(Severity::Error),
        None => !is_conversion(error),
    }
}

fn is_conversion(error: &tokio_postgres::Error) -> bool {
    // tokio-postgres keeps its kinds private; these come from encoding parameters or decoding columns.
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<std::io::Error>() {
            return false;
        }
        if cause.is::<tokio_postgres::types::WrongType>() || cause.is::<tokio_postgres::types::WasNull>() {
            return true;
        }
        source = cause.source();
    }
    false
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConnection(error) => write!(f, "{NO_CONNECTION}: {error}"),
            Self::Statement(error) => f.write_str(&describe_call(error)),
            Self::TimedOut => f.write_str("PostgreSQL did not answer in time; the call may still take effect"),
            Self::Closed => f.write_str("the provider is closed"),
            Self::LeaseLost(what) => write!(f, "Invalid lock token: {what} (SQLSTATE {LEASE_LOST})"),
            Self::NoAnswer => f.write_str("the function answered something other than it was asked"),
            Self::InCompany(_) => f.write_str("a call that carried several requests failed"),
        }
    }
}

impl From<tokio_postgres::Error> for CallError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Statement(error)
    }
}

/// An error with its causes, and for errors of the server their text and SQLSTATE.
///
/// tokio-postgres itself prints only "db error".
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    let mut parts = Vec::<String>::new();
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(db) = current.downcast_ref::<tokio_postgres::error::DbError>() {
            let mut text = db.message().to_string();
            // Of a constraint that a row breaks it is the row, payloads and all.
            if let Some(detail) = db.detail()
                && !matches!(db.code().code(), "23502" | "23514")
            {
                text.push_str(": ");
                text.push_str(detail);
            }
            if let Some(hint) = db.hint() {
                text.push_str(" Hint: ");
                text.push_str(hint);
            }
            text.push_str(&format!(" (SQLSTATE {})", db.code().code()));
            return text;
        }
        let text = current.to_string();
        // Causes are often repeated in the text above them.
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = current.source();
    }
    parts.join(": ")
}

/// As [`describe`], with advice where the error shows that a pooler is in the way.
pub(crate) fn describe_call(error: &(dyn StdError + 'static)) -> String {
    let text = describe(error);
    let state = error
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(|error| error.code());
    // Statements have names that are unique to a connection, and are not closed by others.
    if state.is_some_and(|state| matches!(state.code(), "26000" | "42P05")) {
        format!(
            "{text}. It seems that a pooler in transaction mode is in between: set Builder::transaction_pooler(true), and \
             Builder::direct_url to the server itself"
        )
    } else {
        text
    }
}
