//! For the tests of applications: a schema of its own for each test, dropped when the test ends.
//!
//! In the cargo feature `test-support`, which belongs into `[dev-dependencies]`.

#[cfg(feature = "testcontainers")]
mod container;
mod removal;

use std::env::VarError;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, thread};

use crate::config::Builder;
use crate::error::{Error, ErrorKind, describe};
use crate::provider::PostgresProvider;

const SERVER_VARIABLE: &str = "DATABASE_URL";
const PREFIX: &str = "duroxide_test_";
const ID_DIGITS: usize = 16;
/// Tests run side by side, and a server has about a hundred connections.
const POOL_SIZE: usize = 8;

/// A schema that nobody else uses, dropped with everything in it when this is dropped or [closed](Self::close).
///
/// Tests that each have one can run at the same time on one server. The schema is deployed by the first
/// [`provider`](Self::provider).
///
/// ```no_run
/// use std::time::Duration;
/// use duroxide::runtime::{Runtime, registry::ActivityRegistry};
/// use duroxide::{Client, OrchestrationContext, OrchestrationRegistry};
/// use duroxide_postgres::test_support::TestDatabase;
///
/// # async fn a_test() -> Result<(), Box<dyn std::error::Error>> {
/// let database = TestDatabase::from_env().await?;
/// let store = database.provider().await?;
/// let orchestrations = OrchestrationRegistry::builder()
///     .register("Echo", |_: OrchestrationContext, input: String| async move { Ok(input) })
///     .build();
/// let runtime = Runtime::start_with_store(store.clone(), ActivityRegistry::builder().build(), orchestrations).await;
///
/// let client = Client::new(store);
/// client.start_orchestration("echo-1", "Echo", "hello").await?;
/// client.wait_for_orchestration("echo-1", Duration::from_secs(60)).await?;
///
/// runtime.shutdown(None).await;
/// database.close().await?;
/// # Ok(())
/// # }
/// ```
///
/// What a process that was killed left behind is for [`sweep`](Self::sweep).
#[must_use = "the schema is dropped with it"]
pub struct TestDatabase {
    url: String,
    schema: String,
    closed: bool,
}

impl TestDatabase {
    /// On the server that the environment variable `DATABASE_URL` names.
    ///
    /// If it is not set, and the cargo feature `testcontainers` is on, on a PostgreSQL container that all tests of
    /// this process share. It is started by the first of them, and goes away some minutes after the process. The
    /// environment variable `POSTGRES_VERSION` names another image tag than `17`.
    ///
    /// # Errors
    ///
    /// When there is no such variable, and no container can be had. The error says what to do. Whether the server
    /// answers shows later.
    pub async fn from_env() -> Result<Self, Error> {
        match named_server()? {
            Some(url) => Ok(Self::on(&url)),
            #[cfg(feature = "testcontainers")]
            None => Ok(Self::on(&container::url().await?)),
            #[cfg(not(feature = "testcontainers"))]
            None => Err(no_server(
                "Or enable the feature `testcontainers` of duroxide-postgres, which starts a container.",
            )),
        }
    }

    /// On another server: a connection string as [`PostgresProvider::connect`] takes it.
    pub fn on(url: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut id = uuid::Uuid::new_v4().simple().to_string();
        id.truncate(ID_DIGITS);
        Self {
            url: url.to_string(),
            schema: format!("{PREFIX}{}_{id}", now.as_secs()),
            closed: false,
        }
    }

    /// A provider on the schema. Deploys it, if that has not been done.
    ///
    /// # Errors
    ///
    /// See [`PostgresProvider::connect`].
    pub async fn provider(&self) -> Result<Arc<PostgresProvider>, Error> {
        self.builder().connect().await.map(Arc::new)
    }

    /// For a provider with other settings than [`provider`](Self::provider) has: at most 8 connections, otherwise the
    /// defaults.
    pub fn builder(&self) -> Builder {
        PostgresProvider::builder(&self.url)
            .schema(&self.schema)
            .pool_size(POOL_SIZE)
    }

    /// The connection string of the server. It may contain a password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of the schema: lower-case letters, digits and `_`, so that it needs no quotes in SQL.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Drops the schema, and a role of the same name if a test created one.
    ///
    /// The same happens when this is dropped, after a panic as well, but that blocks the thread, and can
    /// only print what went wrong. Sessions that still hold locks in the schema are ended.
    ///
    /// # Errors
    ///
    /// When something was left behind.
    pub async fn close(mut self) -> Result<(), Error> {
        let removed = removal::remove(&self.url, &self.schema).await;
        // Only now: if this future is dropped half-way, there still is something to do.
        self.closed = true;
        removed
    }

    /// As [`sweep_on`](Self::sweep_on), on the server that `DATABASE_URL` names.
    ///
    /// # Errors
    ///
    /// As there, and when no server is named.
    pub async fn sweep(older_than: Duration) -> Result<Vec<String>, Error> {
        let url = named_server()?.ok_or_else(|| no_server(""))?;
        Self::sweep_on(&url, older_than).await
    }

    /// Drops what killed processes left behind on a server: schemas made by this module longer ago than that, and
    /// roles of the same name. Returns the names of the schemas.
    ///
    /// It goes by the names, which contain the time, and by this machine's clock: `older_than` has to be longer than
    /// any test may take, an hour for example. Sessions that hold locks are waited for, not ended.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or when some of them cannot be dropped; the others are nevertheless.
    pub async fn sweep_on(url: &str, older_than: Duration) -> Result<Vec<String>, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        removal::sweep(url, PREFIX, |schema| is_older(schema, older_than, now)).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let (url, schema) = (self.url.clone(), self.schema.clone());
        // A thread of its own: the test's runtime may be shutting down, and a panic may be under way.
        let removed = thread::Builder::new().spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime
                    .block_on(removal::remove(&url, &schema))
                    .map_err(|error| describe(&error)),
                Err(error) => Err(error.to_string()),
            }
        });
        let removed = match removed.map(thread::JoinHandle::join) {
            Ok(Ok(removed)) => removed,
            Ok(Err(_)) => Err("it panicked".to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = removed {
            // Not by eprintln!, which the test harness hides unless the test fails.
            let _ = writeln!(
                std::io::stderr(),
                "duroxide-postgres: schema {} may have been left behind: {problem}",
                self.schema
            );
        }
    }
}

impl fmt::Debug for TestDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDatabase")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

fn named_server() -> Result<Option<String>, Error> {
    match std::env::var(SERVER_VARIABLE) {
        Ok(url) if url.is_empty() => Ok(None),
        Ok(url) => Ok(Some(url)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Error::new(
            ErrorKind::Config,
            format!("{SERVER_VARIABLE} is not valid UTF-8"),
        )),
    }
}

/// `more`: what else can be done.
fn no_server(more: &str) -> Error {
    let advice = format!(
        "no PostgreSQL to test with: {SERVER_VARIABLE} is not set. Run the tests with `scripts/with-postgres cargo test`, \
         which starts a throwaway server; or start one with `docker compose up -d --wait` and set {SERVER_VARIABLE} as \
         docker-compose.yml says. {more}"
    );
    Error::new(ErrorKind::Config, advice.trim_end())
}

/// When a schema was made, since 1970. None: not by this module.
fn created_at(schema: &str) -> Option<Duration> {
    let (seconds, id) = schema.strip_prefix(PREFIX)?.split_once('_')?;
    let hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = seconds.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || id.len() != ID_DIGITS || !id.bytes().all(hexadecimal) {
        return None;
    }
    seconds.parse().ok().map(Duration::from_secs)
}

/// Whether this module made a schema longer ago than that.
fn is_older(schema: &str, than: Duration, now: Duration) -> bool {
    created_at(schema).is_some_and(|created| now.saturating_sub(created) > than)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_in_the_name() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
        let database = std::mem::ManuallyDrop::new(TestDatabase::on("host=nowhere"));
        let after = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
        let created = created_at(database.schema()).expect("a time").as_secs();
        assert!((before..=after).contains(&created), "{created}");
    }

    #[test]
    fn names_of_others_have_no_time() {
        for name in [
            "duroxide",
            "duroxide_test_",
            "duroxide_test_mine",
            "duroxide_test_1000000000",
            "duroxide_test_1000000000_",
            "duroxide_test_1000000000_mine",
            "duroxide_test_1000000000_0123456789ABCDEF",
            "duroxide_test_1000000000_0123456789abcdef0",
            "duroxide_test__0123456789abcdef",
            "duroxide_test_+1000000000_0123456789abcdef",
            "duroxide_test_99999999999999999999999_0123456789abcdef",
            "my_duroxide_test_1000000000_0123456789abcdef",
        ] {
            assert_eq!(created_at(name), None, "{name}");
        }
    }

    #[test]
    fn any_age_can_be_asked_for() {
        let now = Duration::from_secs(2_000_000_000);
        let old = "duroxide_test_1000000000_0123456789abcdef";
        assert!(is_older(old, Duration::from_secs(999_999_999), now));
        assert!(!is_older(old, Duration::from_secs(1_000_000_000), now));
        assert!(!is_older(old, Duration::MAX, now));
        // By a clock that was wrong.
        let future = format!("duroxide_test_{}_0123456789abcdef", u64::MAX);
        assert!(!is_older(&future, Duration::ZERO, now));
        assert!(!is_older(&future, Duration::MAX, now));
    }
}
