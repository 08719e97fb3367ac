//! Several servers, of which one is the primary.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide_postgres::{ErrorKind, PostgresProvider};

use crate::cluster::{Cluster, Options, have_copies};
use crate::fixtures::{self, Ack, LOCK, start};
use crate::support::{TestSchema, connect};

const TRUST: &str = "host all all 127.0.0.1/32 trust";
const PATIENCE: Duration = Duration::from_secs(60);

fn url(servers: &[&Cluster]) -> String {
    let servers: Vec<String> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port))
        .collect();
    format!(
        "postgres://postgres@{}/postgres?target_session_attrs=read-write",
        servers.join(",")
    )
}

/// The primary dies while a turn runs; its ack arrives at the one that takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_survives_a_failover() {
    if !have_copies() {
        return;
    }
    let options = Options {
        authentication: TRUST,
        ..Options::default()
    };
    let mut primary = Cluster::start(&options);
    let standby = Cluster::start(&Options {
        primary: Some(&primary),
        ..options
    });
    let error = PostgresProvider::connect(&url(&[&standby]))
        .await
        .expect_err("read only");
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(error.to_string().contains("does not allow writes"), "{error}");

    let schema = TestSchema::on(standby.admin_url());
    let provider = PostgresProvider::builder(&url(&[&standby, &primary]))
        .schema(&schema.name)
        .connect()
        .await
        .map(Arc::new)
        .expect("one of them is the primary");
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = fixtures::turn(&*provider, LOCK).await;
    let follower = connect(&standby.admin_url()).await;
    let leased = format!("select count(*) from {}.mailboxes where lease is not null", schema.name);
    let begun = Instant::now();
    // Its table may not have arrived yet.
    while follower
        .query_one(&leased, &[])
        .await
        .map_or(0, |row| row.get::<_, i64>(0))
        == 0
    {
        assert!(begun.elapsed() < PATIENCE, "the standby does not follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    primary.kill();
    let acking = {
        let provider = Arc::clone(&provider);
        tokio::spawn(async move {
            let only = Ack {
                events: vec![fixtures::started("i")],
                metadata: fixtures::ending("Completed"),
                ..Ack::default()
            };
            fixtures::ack(&*provider, &token, only).await
        })
    };
    // Long enough for it to fail some times.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!acking.is_finished());
    standby.promote();
    acking.await.expect("no panic").expect("ack");
    assert_eq!(provider.read("i").await.expect("read").len(), 1);
}

/// A server that accepts connections and then says nothing costs time once, not every time.
#[tokio::test]
async fn a_server_that_hangs_is_not_tried_first_again() {
    let schema = TestSchema::new();
    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let config: tokio_postgres::Config = schema.url.parse().expect("DATABASE_URL");
    let mut both = tokio_postgres::Config::new();
    both.host("127.0.0.1")
        .port(hanging.local_addr().expect("address").port());
    both.host("127.0.0.1")
        .port(config.get_ports().first().copied().unwrap_or(5432));
    both.user(config.get_user().expect("user"))
        .dbname(config.get_dbname().expect("database"));
    config.get_password().map(|password| both.password(password));
    let patience = Duration::from_secs(4);
    both.connect_timeout(patience);
    let provider = duroxide_postgres::Builder::from_config(both)
        .schema(&schema.name)
        .pool_size(8)
        .connect()
        .await
        .expect("the second answers");
    let begun = Instant::now();
    let calls = (0..8).map(|_| async { provider.read("i").await.expect("read") });
    futures_util::future::join_all(calls).await;
    // Had only one of their connections tried it first, it would have taken longer.
    let elapsed = begun.elapsed();
    assert!(elapsed < patience, "{elapsed:?}");
}
