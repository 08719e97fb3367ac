//! Every command through PgBouncer in transaction mode, whose connections others have used before.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::cluster::{Cluster, Options, Pooler, have};
use crate::fixtures::create;
use crate::process::{Finished, run_on};
use crate::prune::ended;
use crate::support::{TestSchema, connect};

pub static SERVER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()));

/// Leaves statements behind, under the names that others would use, on both connections to the server.
async fn leave_statements(url: &str) {
    let clients: [Client; 2] = [connect(url).await, connect(url).await];
    for client in &clients {
        client.batch_execute("begin").await.expect("begin");
    }
    for client in &clients {
        for number in 0..50 {
            let statement = format!("prepare s{number} as select 1");
            // There already, when this connection to the server is as old.
            let _ = client.batch_execute(&format!("savepoint s; {statement}")).await;
            let _ = client.batch_execute("rollback to savepoint s").await;
        }
        client.batch_execute("commit").await.expect("commit");
    }
}

/// What somebody set on one of the connections to the server and left behind.
pub async fn settings_left(url: &str) -> Vec<String> {
    let clients: [Client; 2] = [connect(url).await, connect(url).await];
    let mut left = Vec::new();
    for client in &clients {
        client.batch_execute("begin").await.expect("begin");
    }
    for client in &clients {
        let rows = client
            .query_typed(
                "select name || ' = ' || setting from pg_settings \
                  where setting <> reset_val \
                    and name in ('lock_timeout', 'statement_timeout', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', \
                                 'jit', 'search_path')",
                &[],
            )
            .await
            .expect("settings");
        left.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        client.batch_execute("commit").await.expect("commit");
    }
    left
}

#[tokio::test]
async fn every_command_works_through_a_pooler() {
    if !have("pgbouncer") {
        return;
    }
    let pooler = Pooler::start(&SERVER, 2);
    let url = pooler.url("postgres");
    let schema = TestSchema::on(SERVER.admin_url());
    let cli = |arguments: &[&str]| -> Finished { run_on(&url, &[&["--schema", &schema.name], arguments].concat()) };
    let json = |arguments: &[&str]| -> Value { cli(&[arguments, &["--json"]].concat()).ok().json() };

    leave_statements(&url).await;
    assert_eq!(json(&["schema", "apply"])["applied"], true);
    assert_eq!(json(&["schema", "verify"])["ok"], true);
    assert_eq!(json(&["schema", "version"])["standing"], "current");
    leave_statements(&url).await;
    connect(&schema.url)
        .await
        .batch_execute(&format!("create role {} login", schema.name))
        .await
        .expect("role");
    assert_eq!(json(&["grant", &schema.name])["purpose"], "runtime");
    let provider = schema.provider().await;
    create(&*provider, "i").await;
    assert_eq!(json(&["instances"])["instances"][0]["instance"], "i");
    leave_statements(&url).await;
    for arguments in [
        &["status"][..],
        &["watch", "--times", "1"],
        &["show", "i"],
        &["history", "i"],
        &["raise", "i", "go"],
        &["cancel", "i"],
        &["prune", "executions", "--keep-last", "1"],
    ] {
        cli(arguments).ok();
    }
    ended(&schema, 7).await;
    let pruned = json(&["prune", "instances", "--older-than", "1d", "--batch-size", "2"]);
    assert_eq!(pruned["instances"], 7);
    assert_eq!(settings_left(&url).await, Vec::<String>::new());
    leave_statements(&url).await;
    assert_eq!(json(&["delete", "i", "--force"])["instances"], 1);
    let doctor = cli(&["doctor", "--json"]).json();
    let checks: Vec<&Value> = doctor["findings"].as_array().expect("findings").iter().collect();
    assert!(checks.iter().any(|finding| finding["check"] == "pooler"), "{doctor:#}");
    assert!(
        checks
            .iter()
            .all(|finding| finding["check"] == "pooler" || finding["check"] == "settings"),
        "{doctor:#}"
    );
    leave_statements(&url).await;
    assert_eq!(json(&["schema", "drop", "--yes"])["schema_dropped"], json!(true));
}

#[tokio::test]
async fn a_pooler_that_knows_no_transactions_is_named() {
    if !have("pgbouncer") {
        return;
    }
    let pooler = Pooler::start_in("statement", &SERVER, 2);
    let url = pooler.url("postgres");
    let schema = TestSchema::on(SERVER.admin_url());
    let cli = |arguments: &[&str]| -> Finished { run_on(&url, &[&["--schema", &schema.name], arguments].concat()) };
    let says = &["a pooler in statement mode", "name the server itself"];
    cli(&["schema", "apply"]).fails(2, says);
    schema.provider().await;
    cli(&["schema", "verify"]).fails(2, says);
    cli(&["schema", "drop", "--yes"]).fails(2, says);
    cli(&["grant", "postgres"]).fails(2, says);
    let pruned = cli(&["prune", "instances", "--older-than", "1d"]).fails(2, says);
    assert!(!pruned.err.contains("run it again"), "{}", pruned.err);
    // The rest is looked at all the same.
    let report = cli(&["doctor", "--json"]).fails(1, &[]).json();
    let says = |check: &str, text: &str| {
        let findings = report["findings"].as_array().expect("findings").iter();
        let message = |finding: &Value| finding["message"].as_str().expect("text").contains(text);
        findings.filter(|finding| finding["check"] == check).any(message)
    };
    assert!(
        says("pooler", "a pooler in statement mode") && says("schema", "could not be checked"),
        "{report:#}"
    );
    // What is one statement works there.
    cli(&["schema", "version"]).ok();
    cli(&["status"]).ok();
}

/// It gives the same state as one in statement mode, and another day it would work.
#[tokio::test]
async fn a_pooler_that_is_busy_is_not_said_to_know_no_transactions() {
    if !have("pgbouncer") {
        return;
    }
    let pooler = Pooler::start_with("query_wait_timeout = 1", "transaction", &SERVER, 1);
    let url = pooler.url("postgres");
    let schema = TestSchema::on(SERVER.admin_url());
    schema.provider().await;
    let busy = connect(&url).await;
    busy.batch_execute("begin; select 1").await.expect("the one connection");
    for arguments in [
        &["schema", "apply"][..],
        &["schema", "verify"],
        &["schema", "drop", "--yes"],
        &["grant", "postgres"],
        &["status"],
        &["doctor"],
        &["prune", "instances", "--older-than", "1d"],
    ] {
        let failed = run_on(&url, &[&["--schema", &schema.name], arguments].concat());
        assert!(
            !format!("{}{}", failed.out, failed.err).contains("statement mode"),
            "{}{}",
            failed.out,
            failed.err
        );
        failed.fails(3, &["query_wait_timeout", "again"]);
    }
    busy.batch_execute("rollback").await.expect("free");
    run_on(&url, &["--schema", &schema.name, "schema", "verify"]).ok();
}

/// Whether there is a pooler cannot be told with one connection, and the rest is looked at all the same.
#[tokio::test]
async fn a_pooler_without_a_second_connection_does_not_hang_the_doctor() {
    if !have("pgbouncer") {
        return;
    }
    let pooler = Pooler::start_in("session", &SERVER, 1);
    let url = pooler.url("postgres");
    let schema = TestSchema::on(SERVER.admin_url());
    schema.provider().await;
    let begun = Instant::now();
    let report = run_on(&url, &["--schema", &schema.name, "doctor", "--json"])
        .fails(1, &[])
        .json();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let findings: Vec<String> = report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|finding| format!("{} {}", finding["check"], finding["message"]))
        .collect();
    let pooler = findings.iter().filter(|finding| finding.starts_with("\"pooler\""));
    let pooler: Vec<&String> = pooler.collect();
    assert!(
        pooler.len() == 1 && pooler[0].contains("could not be checked") && pooler[0].contains("no second connection"),
        "{report:#}"
    );
    let unchecked = findings
        .iter()
        .filter(|finding| finding.contains("could not be checked"));
    assert_eq!(unchecked.count(), 1, "{report:#}");
}
