//! The ways to connect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use duroxide::providers::{Provider, ProviderAdmin};
use duroxide_postgres::{Builder, PostgresProvider};
use tokio_postgres::{Config, NoTls};

use crate::fixtures::{LOCK, start, turn};
use crate::proxy::{Mode, Proxy};
use crate::support::{TestSchema, database_url};

#[tokio::test]
async fn everything_libpq_connection_strings_carry_works() {
    let config: Config = database_url().parse().expect("DATABASE_URL");
    let user = config.get_user().expect("user");
    let database = config.get_dbname().expect("database");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let password = config.get_password().map_or(String::new(), |password| {
        format!(" password='{}'", String::from_utf8_lossy(password))
    });
    for text in [
        format!("host=127.0.0.1 port={port} user={user} dbname={database}{password}"),
        format!("host=127.0.0.1,127.0.0.1 port=1,{port} user={user} dbname={database}{password} connect_timeout=5"),
        format!(
            "host=127.0.0.1 port={port} user={user} dbname={database}{password} target_session_attrs=read-write \
             application_name=mine keepalives=1 keepalives_idle=30 sslmode=prefer"
        ),
    ] {
        let schema = TestSchema::new();
        let provider = PostgresProvider::builder(&text)
            .schema(&schema.name)
            .pool_size(2)
            .connect()
            .await
            .expect(&text);
        provider.health_check().await.expect("healthy");
        if text.contains("application_name") {
            let client = schema.client().await;
            let found: i64 = client
                .query_one(
                    "select count(*) from pg_stat_activity where application_name = 'mine'",
                    &[],
                )
                .await
                .expect("activity")
                .get(0);
            assert!(found > 0);
        }
    }
}

#[tokio::test]
async fn a_closed_provider_says_so() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let waiting = {
        let provider = provider.clone();
        tokio::spawn(async move {
            provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(60), None)
                .await
        })
    };
    // Let it look once and go to sleep.
    provider.get_queue_depths().await.expect("open");
    provider.close();
    let outcome = tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .expect("woken")
        .expect("task");
    assert!(matches!(outcome, Ok(None) | Err(_)), "{outcome:?}");
    let error = provider.read("i").await.expect_err("closed");
    assert!(!error.is_retryable() && error.message.contains("closed"), "{error}");
    assert!(provider.health_check().await.is_err());
}

/// Somebody else's pool: no connection for LISTEN, so waiting is polling.
#[tokio::test]
async fn an_existing_pool_can_be_used() {
    let schema = TestSchema::new();
    let config: Config = schema.url.parse().expect("DATABASE_URL");
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(4)
        .build()
        .expect("pool");
    let provider = Builder::from_pool(pool.clone())
        .schema(&schema.name)
        .connect()
        .await
        .map(Arc::new)
        .expect("provider");
    let waiting = {
        let provider = Arc::clone(&provider);
        tokio::spawn(async move {
            provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(20), None)
                .await
        })
    };
    // Enqueued by another process, as it were.
    let other = schema.provider().await;
    other.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
    assert!(waiting.await.expect("task").expect("fetch").is_some());
    provider.close();
    let error = provider.read("i").await.expect_err("closed");
    assert!(error.message.contains("closed"), "{error}");
    // The pool is not ours to close.
    drop(provider);
    assert!(!pool.is_closed());
    drop(pool.get().await.expect("a connection"));
}

#[tokio::test]
async fn a_configuration_and_a_tls_connector_can_be_given() {
    let schema = TestSchema::new();
    let config: Config = schema.url.parse().expect("DATABASE_URL");
    let provider = Builder::from_config(config)
        .tls(NoTls)
        .schema(&schema.name)
        .connect()
        .await
        .expect("provider");
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    turn(&provider, LOCK).await;
}

/// Everything at once wants to connect again, over and over, while it cannot be had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_no_reason_for_a_storm() {
    let schema = TestSchema::new();
    let proxy = Proxy::start(&schema.url);
    let provider = Builder::from_config(proxy.config())
        .schema(&schema.name)
        .pool_size(32)
        .connect()
        .await
        .map(Arc::new)
        .expect("provider");
    proxy.set(Mode::AcceptThenClose).await;
    let before = proxy.accepted();
    let outage = Duration::from_secs(3);
    let until = Instant::now() + outage;
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move {
                while Instant::now() < until {
                    // The last ones are answered when the server is back.
                    if let Err(error) = provider.get_queue_depths().await {
                        assert!(error.is_retryable(), "{error}");
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep_until(until.into()).await;
    let attempts = proxy.accepted() - before;
    // Four at a time, and soon a quarter of a second at least between them; and the listener's.
    assert!((3..=80).contains(&attempts), "{attempts} attempts in {outage:?}");
    proxy.set(Mode::Pass).await;
    let back = Instant::now();
    for caller in callers {
        caller.await.expect("no panic");
    }
    provider.get_queue_depths().await.expect("the server is back");
    assert!(back.elapsed() < Duration::from_secs(15), "{:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_connection_ends_in_a_retryable_error_but_not_for_leases() {
    let schema = TestSchema::new();
    let provider = schema
        .builder()
        .pool_size(4)
        .pool_wait(Duration::from_millis(300))
        .connect()
        .await
        .map(Arc::new)
        .expect("provider");
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let locker = schema.client().await;
    locker
        .batch_execute("begin; lock table kv_store, kv_delta")
        .await
        .expect("lock");
    // All connections that are not reserved.
    let stuck: Vec<_> = (0..3)
        .map(|_| {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move { provider.get_kv_value("i", "key").await })
        })
        .collect();
    let waiting =
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%' || $1 || '%'";
    while schema
        .client()
        .await
        .query_one(waiting, &[&schema.name])
        .await
        .expect("activity")
        .get::<_, i64>(0)
        < 3
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = provider
        .get_kv_value("i", "key")
        .await
        .expect_err("no connection is free");
    assert!(error.is_retryable(), "{error}");
    for word in ["300ms", "4 connections", "pool_size"] {
        assert!(error.message.contains(word), "{word:?} is not in: {error}");
    }
    provider
        .renew_orchestration_item_lock(&token, LOCK)
        .await
        .expect("renew");
    locker.batch_execute("rollback").await.expect("rollback");
    for call in stuck {
        call.await.expect("no panic").expect("answered in the end");
    }
}
