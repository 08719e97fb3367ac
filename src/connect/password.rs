//! Where the password of a new connection comes from.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::passfile::{self, LookUp};
use super::settings::{Server, Settings};

/// How long a callback may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A new connection for which a password is needed; see [`Builder::password`](crate::Builder::password).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PasswordRequest {
    /// The server that will be asked: a name, an address, or the directory of a socket.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The role. Empty if nothing names one: then it is the name of the process's user.
    pub user: String,
    /// The database. Empty if nothing names one: then it is called like the role.
    pub database: String,
    /// Whether the server has just refused the password of the request before: one that was kept should be renewed.
    pub refused: bool,
}

type Callback =
    Arc<dyn Fn(PasswordRequest) -> BoxFuture<'static, Result<String, Box<dyn StdError + Send + Sync>>> + Send + Sync>;

/// Asks the application.
#[derive(Clone)]
pub(crate) struct AskPassword(Callback);

impl AskPassword {
    pub(crate) fn new<F, Answer, E>(callback: F) -> Self
    where
        F: Fn(PasswordRequest) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let callback = Arc::new(callback);
        Self(Arc::new(move |request| {
            let callback = Arc::clone(&callback);
            Box::pin(async move { callback(request).await.map_err(Into::into) })
        }))
    }
}

/// The password for a new connection.
pub(super) enum Found {
    Password(String),
    /// The one of the configuration, if any, will do.
    Nothing,
    /// The same, and what is to be known should there be none.
    But(String),
}

pub(super) async fn find(
    ask: Option<&AskPassword>,
    settings: &Settings,
    server: &Server,
    refused: bool,
) -> Result<Found, String> {
    let request = request(&settings.config, server, refused);
    if let Some(AskPassword(callback)) = ask {
        return match tokio::time::timeout(PATIENCE, callback(request)).await {
            Ok(Ok(password)) => Ok(Found::Password(password)),
            Ok(Err(error)) => Err(format!(
                "the password callback failed: {}",
                crate::error::describe(&*error)
            )),
            Err(_) => Err(format!("the password callback did not answer within {PATIENCE:?}")),
        };
    }
    match &settings.passfile {
        Some(file) if settings.config.get_password().is_none() => {
            let database = if request.database.is_empty() {
                &request.user
            } else {
                &request.database
            };
            let port = request.port.to_string();
            let look_up = |host: &str| passfile::look_up(file, [host, &port, database, &request.user]);
            // What libpq calls a local socket.
            let found = match look_up(&request.host) {
                Ok(LookUp::Nothing) if server.is_socket() => look_up("localhost"),
                found => found,
            };
            let name = file.display();
            match found {
                Ok(LookUp::Found(password)) => Ok(Found::Password(password)),
                Ok(LookUp::Ignored) => Ok(Found::But(format!(
                    "the password file {name} was ignored, because others may read it: chmod 0600 {name}"
                ))),
                Ok(LookUp::Nothing) => Ok(Found::But(format!(
                    "the password file {name} has no line for {}:{port}:{database}:{}",
                    request.host, request.user
                ))),
                Ok(LookUp::NotAFile) => Ok(Found::But(format!("the password file {name} is not a file"))),
                // No reason not to connect where no password is asked for.
                Err(error) => Ok(Found::But(format!("the password file {name} cannot be read: {error}"))),
            }
        }
        _ => Ok(Found::Nothing),
    }
}

fn request(config: &Config, server: &Server, refused: bool) -> PasswordRequest {
    PasswordRequest {
        host: match &server.host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(directory) => directory.display().to_string(),
        },
        port: server.port,
        user: config
            .get_user()
            .map(str::to_string)
            .or_else(|| super::settings::process_environment("USER"))
            .unwrap_or_default(),
        database: config.get_dbname().unwrap_or_default().to_string(),
        refused,
    }
}
