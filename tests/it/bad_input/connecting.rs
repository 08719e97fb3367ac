//! Settings and connections.

use std::time::Duration;

use duroxide::providers::{Provider, ProviderAdmin};
use duroxide_postgres::{ErrorKind, PostgresProvider};
use tokio_postgres::Config;

use super::permanent;
use crate::fixtures::LOCK;
use crate::support::{TestSchema, database_url, with_database};

#[tokio::test]
async fn connection_trouble_is_named_without_secrets() {
    let secret = "s3cr3t-passw0rd";
    let config: Config = database_url().parse().expect("DATABASE_URL");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let wrong_password = format!("postgres://nobody_at_all:{secret}@127.0.0.1:{port}/postgres");
    let missing_database = with_database(&database_url(), "no_such_database");
    for (url, words) in [
        (
            format!("postgres://u:{secret}@127.0.0.1:1/db"),
            vec!["127.0.0.1:1", "Connection refused"],
        ),
        (
            format!("host=/no/such/dir user=u password={secret}"),
            vec!["/no/such/dir"],
        ),
        (
            format!("postgres://u:{secret}@no-such-host.invalid/db"),
            vec!["no-such-host.invalid"],
        ),
        (wrong_password, vec!["nobody_at_all"]),
        (missing_database, vec!["no_such_database", "does not exist"]),
    ] {
        let builder = PostgresProvider::builder(&url);
        assert!(!format!("{builder:?}").contains(secret));
        let error = builder.connect().await.expect_err("unreachable");
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        let mut text = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(" {cause} {cause:?}"));
            source = cause.source();
        }
        assert!(!text.contains(secret), "{text}");
        for word in words {
            assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
        }
    }
    for url in [
        "postgres://",
        "nonsense",
        "postgres://u@h:99999999/d",
        "host=h port=x",
        "",
    ] {
        let result = PostgresProvider::connect(url).await;
        let kind = result.as_ref().err().map(|error| error.kind());
        assert!(
            matches!(kind, Some(ErrorKind::Config | ErrorKind::Connect)),
            "{url:?}: {result:?}"
        );
    }
}

#[tokio::test]
async fn invalid_settings_are_refused_before_connecting() {
    let long = "x".repeat(64);
    for schema in [
        "",
        "a\"b",
        "a'; drop schema public cascade; --",
        "pg_catalog",
        long.as_str(),
        "a\0b",
    ] {
        let error = PostgresProvider::builder(&database_url())
            .schema(schema)
            .connect()
            .await
            .expect_err("invalid name");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("schema name"), "{error}");
    }
    let error = PostgresProvider::builder(&database_url())
        .pool_size(0)
        .connect()
        .await
        .expect_err("no connections");
    assert_eq!(error.kind(), ErrorKind::Config);
}

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
    permanent(provider.read("i").await, &["closed"]);
    assert!(provider.health_check().await.is_err());
}
