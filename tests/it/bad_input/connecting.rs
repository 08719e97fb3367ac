//! Settings and connections.

use duroxide_postgres::{ErrorKind, PostgresProvider};
use tokio_postgres::Config;

use crate::support::{database_url, with_database};

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
