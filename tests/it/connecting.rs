//! The ways to connect.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use duroxide::providers::{Provider, ProviderAdmin};
use duroxide_postgres::{Builder, PostgresProvider};
use tokio_postgres::{Config, NoTls};

use crate::fixtures::{LOCK, start, turn};
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
