//! A server that crashes and recovers by itself: all connections end, and leases that were not flushed may be gone.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::Provider;
use duroxide_postgres::PostgresProvider;

use super::{BOTH, SOON, Waiting, eventually};
use crate::cluster::{Cluster, Options, have};
use crate::fixtures::{LOCK, create};

async fn process(cluster: &Cluster) -> Arc<PostgresProvider> {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", cluster.port);
    Arc::new(PostgresProvider::connect(&url).await.expect("a server"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_through_a_crash_of_the_server_gets_what_comes_after_it() {
    if !have("postgres") {
        return;
    }
    let cluster = Cluster::start(&Options {
        authentication: "host all all 127.0.0.1/32 trust",
        ..Options::default()
    });
    let (waiting, other) = (process(&cluster).await, process(&cluster).await);
    create(&*waiting, "before").await;
    for queue in BOTH {
        assert_eq!(queue.fetch(&waiting, LOCK, Duration::ZERO).await.expect("fetch"), None);
    }
    let fetches = BOTH.map(|queue| Waiting::through_trouble(&waiting, queue));
    cluster.crash();
    eventually("its connections are new", || async { other.health_check().await.ok() }).await;
    for queue in BOTH {
        queue.enqueue(&other, "after").await;
    }
    for fetch in fetches {
        assert_eq!(fetch.gets(SOON).await, ("after".to_string(), 1));
    }
    assert_eq!(other.read("before").await.expect("read").len(), 1);
}
