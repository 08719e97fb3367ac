//! A schema per test, dropped when the test ends.

use std::future::Future;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use duroxide_postgres::test_support::TestDatabase;
use duroxide_postgres::{Builder, PostgresProvider};
use serde_json::Value;
use tokio_postgres::{Client, Config, NoTls};

/// The server to test against: that of `DATABASE_URL`, or with the feature `testcontainers` a container.
pub fn database_url() -> String {
    static SERVER: LazyLock<String> = LazyLock::new(|| {
        let find = async {
            TestDatabase::from_env()
                .await
                .map(|database| database.url().to_string())
        };
        crate::cluster::block_on(find).unwrap_or_else(|error| panic!("{error}"))
    });
    SERVER.clone()
}

/// What `cargo metadata` says about this package and its dependencies, as far as this platform needs them: those of
/// others may not have been downloaded.
pub fn metadata() -> Value {
    let version = run(Command::new(env!("CARGO")).arg("-vV"));
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("the host platform");
    let metadata = run(Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            host,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    serde_json::from_str(&metadata).expect("JSON")
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; run the tests with --all-features"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The command, which the feature `cli` builds.
fn program() -> &'static str {
    match option_env!("CARGO_BIN_EXE_duroxide-postgres") {
        Some(program) => program,
        None => panic!("there is no command without the feature cli: run the tests with --all-features"),
    }
}

/// Where cargo keeps the source of a package.
pub fn source_of(package: &str) -> PathBuf {
    metadata()["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .find(|found| found["name"] == package)
        .and_then(|found| found["manifest_path"].as_str())
        .and_then(|manifest| PathBuf::from(manifest).parent().map(PathBuf::from))
        .expect("the package")
}

/// The same server and user, another database.
pub fn with_database(url: &str, database: &str) -> String {
    if url.contains("://") {
        let (base, query) = url
            .split_once('?')
            .map_or((url, String::new()), |(base, query)| (base, format!("?{query}")));
        let server = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        format!("{server}/{database}{query}")
    } else {
        format!("{url} dbname={database}")
    }
}

/// A plain connection, for looking behind the provider's back.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Whether the server has an extension that a test needs. Without it the test is skipped, loudly, and never in CI.
pub async fn has_extension(client: &Client, name: &str) -> bool {
    let available: bool = client
        .query_one(
            "select exists (select from pg_available_extensions where name = $1)",
            &[&name],
        )
        .await
        .expect("extensions")
        .get(0);
    if !available {
        let advice = format!("the extension {name} is not installed on this server");
        assert!(std::env::var_os("CI").is_none(), "{advice}");
        eprintln!("SKIPPED, NOTHING WAS TESTED: {advice}");
    }
    available
}

/// Makes all events of an instance this long, and loses what is stored of them out of line. False if the server has no means to.
pub async fn damage_history(client: &Client, instance: &str, bytes: usize) -> bool {
    if !has_extension(client, "pg_surgery").await {
        return false;
    }
    create_extension(client, "pg_surgery").await;
    client
        .batch_execute(&format!(
            "alter table history alter event_data set storage external; \
             update history set event_data = repeat('x', {bytes}) where instance_id = '{instance}'"
        ))
        .await
        .expect("out of line");
    let toast: String = client
        .query_one(
            "select reltoastrelid::regclass::text from pg_class where oid = 'history'::regclass",
            &[],
        )
        .await
        .expect("TOAST table")
        .get(0);
    client
        .batch_execute(&format!(
            "select public.heap_force_kill('{toast}'::regclass, array(select ctid from {toast}))"
        ))
        .await
        .expect("damage");
    true
}

/// Creates an extension; tests that run at once may all want it.
pub async fn create_extension(client: &Client, name: &str) {
    client
        .batch_execute(&format!(
            // One transaction: the lock lasts until others see the extension.
            "select pg_advisory_xact_lock(hashtext('test extensions')); \
             create extension if not exists {name} schema public"
        ))
        .await
        .expect(name);
}

/// A schema that only this test uses.
pub struct TestSchema {
    pub name: String,
    pub url: String,
    database: TestDatabase,
}

impl TestSchema {
    pub fn new() -> Self {
        Self::on(database_url())
    }

    /// On another server than that of `DATABASE_URL`.
    pub fn on(url: String) -> Self {
        let database = TestDatabase::on(&url);
        Self {
            name: database.schema().to_string(),
            url,
            database,
        }
    }

    pub fn builder(&self) -> Builder {
        self.database.builder()
    }

    /// A provider on this schema, deployed.
    pub async fn provider(&self) -> Arc<PostgresProvider> {
        self.database.provider().await.expect("provider")
    }

    /// A role that has what the command grants to those that run and delete, and nothing else. Has the schema's name.
    pub async fn create_execute_only_role(&self) {
        let client = connect(&self.url).await;
        let create = format!("create role {0} login password '{0}'", self.name);
        client.batch_execute(&create).await.expect("role");
        for purpose in ["runtime", "cleanup"] {
            let arguments = ["--schema", &self.name, "grant", "--sql", "--for", purpose, &self.name];
            let grants = run(Command::new(program()).args(arguments));
            client.batch_execute(&grants).await.expect(purpose);
        }
    }

    /// The server, as that role.
    pub fn execute_only_config(&self) -> Config {
        let mut config: Config = self.url.parse().expect("DATABASE_URL");
        config.user(&self.name).password(&self.name);
        config
    }

    /// A connection whose search_path is this schema.
    pub async fn client(&self) -> Client {
        let client = connect(&self.url).await;
        client
            .batch_execute(&format!("set search_path = \"{}\"", self.name))
            .await
            .expect("search_path");
        client
    }
}

/// Runs a test in a database of its own, which is dropped afterwards: what is counted for each database, and what transactions keep from
/// being vacuumed in it, is the test's alone. Deadlocks are found at once there. How many there were.
pub async fn in_own_database<F>(test: impl FnOnce(String) -> F) -> i64
where
    F: Future<Output = ()> + Send + 'static,
{
    let server = connect(&database_url()).await;
    let database = format!("test_{}", uuid::Uuid::new_v4().simple());
    for statement in [
        format!("create database {database}"),
        format!("alter database {database} set deadlock_timeout = '10ms'"),
    ] {
        server.batch_execute(&statement).await.expect("database");
    }
    let outcome = tokio::spawn(test(with_database(&database_url(), &database))).await;
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure.into_panic());
    }
    // Backends report their statistics when they end.
    let counters = "select deadlocks from pg_stat_database as d \
                     where datname = $1 and not exists (select from pg_stat_activity as a where a.datname = d.datname)";
    let deadlocks = eventually("all connections are closed", || async {
        let row = server.query_opt(counters, &[&database]).await.expect("counters");
        row.map(|row| row.get(0))
    })
    .await;
    server
        .batch_execute(&format!("drop database {database}"))
        .await
        .expect("drop database");
    deadlocks
}

/// Tries until there is a result.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, attempt: impl Fn() -> F) -> T {
    const LIMIT: Duration = Duration::from_secs(30);
    let tries = async {
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let result = tokio::time::timeout(LIMIT, tries).await;
    result.unwrap_or_else(|_| panic!("in vain: {what}"))
}
