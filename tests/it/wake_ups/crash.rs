//! A server that crashes and recovers by itself: all connections end, whoever waits on them.

use std::sync::Arc;

use duroxide::providers::Provider;
use duroxide_postgres::PostgresProvider;

use super::{BOTH, Queue, SOON, Waiting, eventually};
use crate::cluster::{Cluster, Options, have};
use crate::fixtures::{LOCK, create};
use crate::support::connect;

fn cluster() -> Cluster {
    Cluster::start(&Options {
        authentication: "host all all 127.0.0.1/32 trust",
        ..Options::default()
    })
}

async fn process(cluster: &Cluster) -> Arc<PostgresProvider> {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", cluster.port);
    Arc::new(PostgresProvider::connect(&url).await.expect("a server"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_through_a_crash_of_the_server_gets_what_comes_after_it() {
    if !have("postgres") {
        return;
    }
    let cluster = cluster();
    let (waiting, other) = (process(&cluster).await, process(&cluster).await);
    create(&*waiting, "before").await;
    let [turns, activities] = BOTH;
    let fetches = [
        Waiting::through_trouble(&waiting, turns).await,
        Waiting::through_trouble(&waiting, activities).await,
    ];
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

/// Until its turn is acked it is in its mailbox only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_was_handed_over_outlives_a_crash_of_the_server() {
    if !have("postgres") {
        return;
    }
    let cluster = cluster();
    let (provider, other) = (process(&cluster).await, process(&cluster).await);
    let admin = connect(&cluster.admin_url()).await;
    let instance = eventually("a start is handed over", || async {
        let waiting = Waiting::begin(&provider, Queue::Turns).await;
        let instance = uuid::Uuid::new_v4().to_string();
        Queue::Turns.enqueue(&provider, &instance).await;
        waiting.gets(SOON).await;
        let handed = "select from duroxide.mailboxes where instance_id = $1 and start_item is not null";
        let handed = admin.query_opt(handed, &[&instance]).await.expect("a mailbox");
        handed.map(|_| instance)
    })
    .await;
    cluster.crash();
    let expires =
        "update duroxide.mailboxes set available_at = clock_timestamp() where instance_id = $1 and lease is not null";
    let admin = connect(&cluster.admin_url()).await;
    let expired = admin.execute(expires, &[&instance]).await;
    assert_eq!(expired.expect("mailboxes"), 1, "the lease is as durable as the start");
    let again = eventually("it is delivered again", || async {
        Queue::Turns.fetch(&other, LOCK, SOON).await.ok().flatten()
    });
    assert_eq!(again.await, (instance, 2));
}
