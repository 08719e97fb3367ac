//! Through PgBouncer in transaction mode: every statement may run on another connection to the server.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide_postgres::{Builder, DeployPolicy, ErrorKind, PostgresProvider};

use crate::cluster::{Cluster, Options, Pooler, have};
use crate::fixtures::{LOCK, start};
use crate::support::{TestSchema, connect, with_database};

/// Less than the shortest fallback poll of a provider that listens: only a notification is so quick.
const NOTIFIED: Duration = Duration::from_secs(2);
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

static SERVER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()));
static POOLER: LazyLock<Pooler> = LazyLock::new(|| Pooler::start(&SERVER, 3));

fn pooled(schema: &TestSchema) -> Builder {
    PostgresProvider::builder(&format!("{}?application_name={}", POOLER.url("postgres"), schema.name))
        .schema(&schema.name)
        .transaction_pooler(true)
}

/// What a listener asks last.
async fn listeners(schema: &TestSchema) -> i64 {
    connect(&schema.url)
        .await
        .query_one(
            "select count(*) from pg_stat_activity where application_name = $1 and query = 'select pg_backend_pid()'",
            &[&schema.name],
        )
        .await
        .expect("pg_stat_activity")
        .get(0)
}

/// How long a fetch that waits needs to get what another process enqueues.
async fn delivery(waiter: &Arc<PostgresProvider>, other: &dyn Provider) -> Duration {
    let waiting = {
        let waiter = Arc::clone(waiter);
        tokio::spawn(async move { waiter.fetch_orchestration_item(LOCK, POLL_TIMEOUT, None).await })
    };
    // Let it look once and go to sleep.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let enqueued = Instant::now();
    other.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
    assert!(waiting.await.expect("no panic").expect("fetch").is_some());
    enqueued.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_url_is_for_deployment_and_wake_ups() {
    if !have("pgbouncer") {
        return;
    }
    let schema = TestSchema::on(SERVER.admin_url());
    let direct = format!("{} application_name={}", schema.url, schema.name);
    // Deploys it, by the direct way: nothing else could.
    let one = Arc::new(pooled(&schema).direct_url(&direct).connect().await.expect("connect"));
    let other = pooled(&schema).direct_url(&direct).connect().await.expect("connect");
    let begun = Instant::now();
    while listeners(&schema).await < 2 {
        assert!(begun.elapsed() < POLL_TIMEOUT, "nobody listens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let quick = delivery(&one, &other).await;
    assert!(quick < NOTIFIED, "{quick:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_direct_url_what_waits_polls() {
    if !have("pgbouncer") {
        return;
    }
    let schema = TestSchema::on(SERVER.admin_url());
    let error = pooled(&schema).connect().await.expect_err("not deployed");
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("direct_url"), "{error}");

    schema.provider().await;
    let one = Arc::new(
        pooled(&schema)
            .deploy(DeployPolicy::Verify)
            .connect()
            .await
            .expect("connect"),
    );
    let other = pooled(&schema).connect().await.expect("nothing to deploy");
    let polled = delivery(&one, &other).await;
    assert!(polled < NOTIFIED, "{polled:?}");
    assert_eq!(listeners(&schema).await, 0);
}

#[tokio::test]
async fn a_direct_url_to_another_database_is_noticed() {
    if !have("pgbouncer") {
        return;
    }
    let schema = TestSchema::on(SERVER.admin_url());
    let database = format!("other_{}", schema.name);
    SERVER.execute(&format!("create database {database}"));
    let error = pooled(&schema)
        .direct_url(&with_database(&schema.url, &database))
        .connect()
        .await
        .expect_err("another database");
    SERVER.execute(&format!("drop database {database} with (force)"));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("another database"), "{error}");
}

/// Another process whose statements have the same names got to the connection first.
#[tokio::test]
async fn named_statements_through_a_pooler_are_an_error_that_says_what_to_set() {
    if !have("pgbouncer") {
        return;
    }
    let schema = TestSchema::on(SERVER.admin_url());
    schema.provider().await;
    // A pooler with one connection, so that everybody meets on it.
    let pooler = Pooler::start(&SERVER, 1);
    let direct = connect(&schema.url).await;
    let statement = direct.prepare("select 1").await.expect("prepare");
    let name: String = direct
        .query_one(
            "select max(name) from pg_prepared_statements where statement = 'select 1'",
            &[],
        )
        .await
        .expect("pg_prepared_statements")
        .get(0);
    drop(statement);
    let number: i32 = name.trim_start_matches('s').parse().expect("statements are numbered");
    let other = connect(&pooler.url("postgres")).await;
    other
        .batch_execute(&format!(
            "do $$ begin for n in {number}..{number} + 5000 loop execute format('prepare s%s as select 1', n); \
             end loop; end $$"
        ))
        .await
        .expect("prepare");
    let error = PostgresProvider::builder(&pooler.url("postgres"))
        .schema(&schema.name)
        .connect()
        .await
        .expect_err("a statement of that name exists");
    for word in ["42P05", "transaction_pooler(true)", "direct_url"] {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    // And that does it.
    PostgresProvider::builder(&pooler.url("postgres"))
        .schema(&schema.name)
        .transaction_pooler(true)
        .connect()
        .await
        .expect("no named statements");
}
