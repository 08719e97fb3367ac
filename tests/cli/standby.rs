//! A server that does not write: which one to name instead.

use duroxide::providers::Provider;
use duroxide_postgres::PostgresProvider;

use crate::cluster::{Cluster, Options, have, have_copies};
use crate::fixtures::{create, start};
use crate::process::run_on;
use crate::support::connect;

const ADVICE: [&str; 3] = ["standby", "read-only", "target_session_attrs=read-write"];

#[tokio::test]
async fn a_standby_is_called_one() {
    if !have("initdb") || !have_copies() {
        return;
    }
    let primary = Cluster::start(&Options::default());
    run_on(&primary.admin_url(), &["schema", "apply"]).ok();
    primary.execute("create role app");
    let store = PostgresProvider::connect(&primary.admin_url()).await.expect("deployed");
    create(&store, "i").await;
    store
        .enqueue_for_orchestrator(start("new"), None)
        .await
        .expect("enqueue");
    let standby = Cluster::start(&Options {
        primary: Some(&primary),
        ..Options::default()
    });
    for arguments in [
        &["schema", "apply"][..],
        &["--schema", "another", "schema", "apply"],
        &["schema", "drop", "--yes"],
        &["grant", "app"],
    ] {
        let failed = run_on(&standby.admin_url(), arguments).fails(1, &ADVICE);
        assert!(failed.err.contains("SQLSTATE 0A000"), "{}", failed.err);
        assert_eq!(failed.out, "");
    }
    for arguments in [
        &["cancel", "i"][..],
        &["raise", "i", "go"],
        &["delete", "i", "--force"],
        &["delete", "new", "--force"],
    ] {
        let failed = run_on(&standby.admin_url(), arguments).fails(1, &ADVICE);
        assert_eq!(failed.out, "", "{arguments:?}");
    }
    // What only reads works.
    run_on(&standby.admin_url(), &["schema", "version"]).ok();
}

/// A default is not the last word, neither to a deployment nor to a grant.
#[tokio::test]
async fn a_session_that_reads_unless_asked_is_asked() {
    let schema = crate::support::TestSchema::new();
    let name = &schema.name;
    connect(&schema.url)
        .await
        .batch_execute(&format!("create role {name}"))
        .await
        .expect("role");
    let url = format!(
        "{} user={} options='-c default_transaction_read_only=on'",
        crate::process::key_values(&schema.url),
        crate::process::user(&schema.url)
    );
    for arguments in [&["schema", "apply"][..], &["grant", name], &["schema", "drop", "--yes"]] {
        run_on(&url, &[&["--schema", name], arguments].concat()).ok();
    }
}
