//! A PostgreSQL container for all tests of a process.

use std::future::pending;
use std::thread;
use std::time::Duration;

use testcontainers_modules::postgres::Postgres;
use testcontainers_modules::testcontainers::runners::AsyncRunner;
use testcontainers_modules::testcontainers::{ContainerAsync, ImageExt};
use tokio::sync::{OnceCell, oneshot};
use tokio_postgres::{Client, NoTls};

use super::no_server;
use crate::error::{Error, describe};

const VERSION_VARIABLE: &str = "POSTGRES_VERSION";
const DEFAULT_VERSION: &str = "17";
/// For the server, once the image is there.
const STARTUP: Duration = Duration::from_secs(180);

/// Nothing in a static is dropped when a process ends, and a killed one cannot clean up at all: so the container ends
/// itself when nobody has been connected for a while.
const COMMAND: &str = include_str!("container.sh");

/// Where the server is. A failure is remembered too: otherwise every test would wait for its own.
static SERVER: OnceCell<Result<String, String>> = OnceCell::const_new();

struct Server {
    url: String,
    container: ContainerAsync<Postgres>,
    /// Keeps the container running.
    _connection: Client,
}

/// The connection string. Starts the container if this process has none yet.
pub(super) async fn url() -> Result<String, Error> {
    let started = SERVER.get_or_init(|| async {
        let (sender, receiver) = oneshot::channel();
        // A thread of its own, because a test's runtime ends with the test.
        match thread::Builder::new().spawn(move || keep(sender)) {
            Ok(_) => receiver.await.unwrap_or_else(|_| Err("it panicked".to_string())),
            Err(error) => Err(error.to_string()),
        }
    });
    started.await.clone().map_err(|problem| {
        no_server(&format!(
            "Or start a container engine, Docker for example: no container could be started ({problem})."
        ))
    })
}

fn keep(started: oneshot::Sender<Result<String, String>>) {
    // Nobody receives it any more: whoever asked was cancelled, and the next one starts another container.
    let report = |result| started.send(result).is_ok();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report(Err(error.to_string()));
            return;
        }
    };
    runtime.block_on(async {
        match start().await {
            Ok(server) => {
                if report(Ok(server.url.clone())) {
                    pending::<()>().await;
                }
                // If that fails, it still ends itself.
                let _ = server.container.rm().await;
            }
            Err(problem) => {
                report(Err(problem));
            }
        }
    });
}

async fn start() -> Result<Server, String> {
    let version = version(std::env::var(VERSION_VARIABLE).ok());
    let container = Postgres::default()
        .with_tag(version)
        .with_cmd(["bash", "-c", COMMAND])
        .with_shm_size(256 << 20)
        .with_startup_timeout(STARTUP)
        .with_host_config_modifier(|settings| settings.auto_remove = Some(true))
        .start()
        .await
        .map_err(|error| describe(&error))?;
    let host = container.get_host().await.map_err(|error| describe(&error))?;
    let port = container
        .get_host_port_ipv4(5432)
        .await
        .map_err(|error| describe(&error))?;
    let url = format!("postgres://postgres:postgres@{host}:{port}/postgres");
    let (client, connection) = tokio_postgres::connect(&url, NoTls)
        .await
        .map_err(|error| describe(&error))?;
    tokio::spawn(connection);
    Ok(Server {
        url,
        container,
        _connection: client,
    })
}

/// Set to nothing is not set, as for the server's own variable.
fn version(named: Option<String>) -> String {
    named
        .filter(|version| !version.is_empty())
        .unwrap_or_else(|| DEFAULT_VERSION.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_version_is_the_default_one() {
        assert_eq!(version(None), DEFAULT_VERSION);
        assert_eq!(version(Some(String::new())), DEFAULT_VERSION);
        assert_eq!(version(Some("14-alpine".to_string())), "14-alpine");
    }
}
