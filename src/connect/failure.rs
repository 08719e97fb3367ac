//! Why there is no connection.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use deadpool_postgres::{PoolError, TimeoutType};

use crate::error::describe;

/// No server could be connected to. Says why, for each.
#[derive(Debug)]
pub(crate) struct ConnectError(pub(super) String);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for ConnectError {}

/// How tokio-postgres says that a server asks for a password, and there is none.
const NO_PASSWORD: &str = "password missing";

/// What a server said that did not want this connection, and what to do about it. `but`: why there is no password.
pub(super) fn refusal(error: &tokio_postgres::Error, but: Option<&str>) -> String {
    let text = describe(error);
    let advice = match error.code().map(|code| code.code()) {
        Some("28P01") => {
            ". The password or token is wrong, or has expired: it comes from the URL, PGPASSWORD or the password file"
        }
        Some("28000") => {
            ". The server's pg_hba.conf says who may connect from where and how: another user, or sslmode=require or above"
        }
        None if text.contains(NO_PASSWORD) => {
            let but = but.map_or(String::new(), |but| format!(". But {but}"));
            return format!(
                "the server asks for a password, and there is none: it comes from the URL, PGPASSWORD or the password file \
                 (PGPASSFILE, ~/.pgpass){but}"
            );
        }
        _ => "",
    };
    text + advice
}

/// Why a call got no connection. Nothing was sent.
#[derive(Debug)]
pub(crate) enum NoConnection {
    /// Others used all of them the whole time.
    Busy {
        waited: Option<Duration>,
        size: usize,
    },
    Failed(ConnectError),
    /// It was lost before anything was sent.
    Lost(tokio_postgres::Error),
    /// There was none before the caller had to give up.
    TimedOut(Duration),
    /// The application's own pool has none.
    Pool(PoolError),
}

impl NoConnection {
    /// Whether others had all connections, as far as is known.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Busy { .. } | Self::Pool(PoolError::Timeout(TimeoutType::Wait))
        )
    }
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { waited, size } => {
                write!(f, "none of the {size} connections of the pool was free")?;
                match waited {
                    Some(waited) => write!(f, " within {waited:?}; pool_size can be raised"),
                    None => Ok(()),
                }
            }
            Self::Failed(error) => error.fmt(f),
            Self::Lost(error) => f.write_str(&describe(error)),
            Self::TimedOut(limit) => write!(f, "none within {limit:?}"),
            Self::Pool(error) => f.write_str(&describe(error)),
        }
    }
}
