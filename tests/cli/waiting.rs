//! Nothing that only looks waits for somebody's lock for ever: it says who has it.

use duroxide::providers::Provider;
use tokio_postgres::Client;

use crate::cluster::{Pooler, have};
use crate::fixtures::{create, start};
use crate::process::{cli, run_on};
use crate::support::TestSchema;

/// Holds a lock. Its session ends by itself before anybody would wait for ever.
pub async fn holder(client: Client, sql: &str) -> (Client, i32) {
    let row = client.query_one("select pg_backend_pid()", &[]).await;
    client
        .batch_execute(&format!(
            "set application_name = 'the holder'; set idle_in_transaction_session_timeout = '60s'; begin; {sql}"
        ))
        .await
        .expect(sql);
    (client, row.expect("pid").get(0))
}

#[tokio::test]
async fn who_has_a_table_is_named() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "i").await;
    for (table, commands) in [
        (
            "mailboxes",
            &[&["status"][..], &["watch", "--times", "1"], &["schema", "verify"]][..],
        ),
        (
            "instances",
            &[&["instances"], &["show", "i"], &["delete", "i", "--force"]],
        ),
        ("deployment", &[&["schema", "version"]]),
    ] {
        let lock = format!("lock table {table} in access exclusive mode");
        let (holder, pid) = holder(schema.client().await, &lock).await;
        for arguments in commands {
            let failed = cli(&schema, arguments).fails(
                1,
                &[
                    "(SQLSTATE 55P03)",
                    &format!("In the way: session {pid} has AccessExclusiveLock on {table} (of role "),
                    "application_name the holder, idle in transaction since ",
                    &format!("select pg_terminate_backend({pid});"),
                ],
            );
            assert_eq!(failed.out, "", "{arguments:?}");
        }
        holder.batch_execute("commit").await.expect("commit");
    }
    cli(&schema, &["status"]).ok();
    cli(&schema, &["schema", "verify"]).ok();
    cli(&schema, &["show", "i"]).ok();
}

/// Whether it is there cannot be told, and is not said to be.
#[tokio::test]
async fn what_waits_in_a_locked_queue_is_not_called_missing() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (holder, pid) = holder(schema.client().await, "lock table orchestrator_queue").await;
    let says = format!("session {pid} has AccessExclusiveLock on orchestrator_queue");
    for arguments in [
        &["show", "i"][..],
        &["history", "i"],
        &["cancel", "i"],
        &["raise", "i", "go"],
        &["delete", "i"],
    ] {
        let failed = cli(&schema, arguments).fails(1, &["(SQLSTATE 55P03)", &says]);
        assert!(!failed.err.contains("not found"), "{arguments:?}: {}", failed.err);
    }
    holder.batch_execute("commit").await.expect("commit");
    cli(&schema, &["show", "i"]).fails(1, &["has been enqueued, but has not begun"]);
}

/// Locks that keep nobody from reading are nobody's business.
#[tokio::test]
async fn who_writes_is_not_waited_for() {
    let schema = TestSchema::new();
    schema.provider().await;
    let sql = "lock table mailboxes, deployment, history in share row exclusive mode";
    let (_holder, _) = holder(schema.client().await, sql).await;
    for arguments in [
        &["status"][..],
        &["schema", "verify"],
        &["instances"],
        &["schema", "version"],
    ] {
        cli(&schema, arguments).ok();
    }
}

/// A session's own settings would be somebody else's there.
#[tokio::test]
async fn through_a_pooler_too() {
    if !have("pgbouncer") {
        return;
    }
    let server = &crate::pooler::SERVER;
    let pooler = Pooler::start(server, 2);
    let schema = TestSchema::on(server.admin_url());
    schema.provider().await;
    let (holder, pid) = holder(schema.client().await, "lock table mailboxes").await;
    let says = format!("session {pid} has AccessExclusiveLock on mailboxes");
    for arguments in [&["status"][..], &["schema", "verify"]] {
        let arguments = [&["--schema", &schema.name], arguments].concat();
        run_on(&pooler.url("postgres"), &arguments).fails(1, &[&says]);
    }
    assert_eq!(
        crate::pooler::settings_left(&pooler.url("postgres")).await,
        Vec::<String>::new()
    );
    holder.batch_execute("commit").await.expect("commit");
}

/// Somebody else who grants, or deploys, and does not end.
#[tokio::test]
async fn a_grant_does_not_wait_for_another_for_ever() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, name) = (schema.client().await, &schema.name);
    client
        .batch_execute(&format!("create role {name}"))
        .await
        .expect("a role");
    let grant = format!("grant execute on function fetch_work_item to {name}");
    let (holder, _) = holder(schema.client().await, &grant).await;
    cli(&schema, &["grant", name]).fails(1, &["(SQLSTATE 55P03)", "Somebody had a lock", "try again"]);
    holder.batch_execute("rollback").await.expect("rollback");
    cli(&schema, &["grant", name]).ok();
}
