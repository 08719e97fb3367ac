//! `schema apply` and whoever holds locks: it never makes running work wait for long.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

use duroxide_postgres::PostgresProvider;
use tokio_postgres::Client;

use crate::fixtures::create;
use crate::process::{Finished, cli, command};
use crate::support::{TestSchema, connect};

/// A change that only a lock on `history` can put right.
const NO_TRIGGER: &str = "drop trigger history_updated on history";

fn apply(schema: &TestSchema) -> Child {
    let arguments = ["--schema", &schema.name, "schema", "apply"];
    command(&schema.url, &arguments).spawn().expect("start")
}

/// Waits until somebody waits for a session.
pub async fn waiter(observer: &Client, holder: i32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let sql = "select a.pid from pg_stat_activity as a \
                    where a.wait_event_type = 'Lock' and $1 = any (pg_blocking_pids(a.pid))";
        if !observer.query(sql, &[&holder]).await.expect("activity").is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn holder(schema: &TestSchema, sql: &str) -> (Client, i32) {
    let client = schema.client().await;
    let pid = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("pid")
        .get(0);
    client
        .batch_execute(&format!("set application_name = 'the holder'; begin; {sql}"))
        .await
        .expect(sql);
    (client, pid)
}

#[tokio::test]
async fn with_nothing_to_change_nobody_is_waited_for() {
    let schema = TestSchema::new();
    schema.provider().await;
    // An ack under way, a dashboard that reads, and a vacuum.
    let (ack, _) = holder(
        &schema,
        "lock table history in row exclusive mode; lock table deployment in row share mode",
    )
    .await;
    let (dashboard, _) = holder(&schema, "select * from lease_status; select * from queue_health").await;
    let (vacuum, _) = holder(&schema, "lock table history, mailboxes in share update exclusive mode").await;
    let applied = cli(&schema, &["schema", "apply", "--json"]).ok().json();
    assert_eq!(applied["applied"], false);
    let text = cli(&schema, &["schema", "apply"]).ok().out;
    assert!(
        text.contains("was deployed already") && text.contains("nothing was changed"),
        "{text}"
    );
    drop((ack, dashboard, vacuum));
}

/// Functions are replaced beside everything: only what differs among triggers and views needs a lock.
#[tokio::test]
async fn an_upgrade_of_functions_waits_for_nobody() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "create or replace function schema_key() returns integer language sql stable parallel safe as 'select 1'; \
             update deployment set release = '0.0.9', functions_digest = 'older'",
        )
        .await
        .expect("an older release");
    let (ack, _) = holder(&schema, "lock table history in row exclusive mode").await;
    let (dashboard, _) = holder(&schema, "select * from lease_status; select * from queue_health").await;
    // As a node would, at its start.
    let node: PostgresProvider = schema.builder().connect().await.expect("deploys");
    node.health_check().await.expect("healthy");
    drop((ack, dashboard));
    cli(&schema, &["schema", "verify"]).ok();
}

#[tokio::test]
async fn what_is_locked_is_deployed_once_it_is_free() {
    let schema = TestSchema::new();
    schema.provider().await;
    let observer = schema.client().await;
    observer.batch_execute(NO_TRIGGER).await.expect("a fault");
    let (client, pid) = holder(&schema, "lock table history in row exclusive mode").await;
    let apply = apply(&schema);
    waiter(&observer, pid).await;
    client.batch_execute("commit").await.expect("commit");
    let applied = Finished::from(apply.wait_with_output().expect("wait")).ok();
    assert!(applied.out.contains("is deployed"), "{}", applied.out);
    cli(&schema, &["schema", "verify"]).ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_work_goes_on_and_who_is_in_the_way_is_named() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let observer = connect(&schema.url).await;
    schema.client().await.batch_execute(NO_TRIGGER).await.expect("a fault");
    let (client, pid) = holder(&schema, "lock table history in row exclusive mode").await;
    let apply = apply(&schema);
    waiter(&observer, pid).await;
    // A turn that writes history has to queue up behind the deployment. Its holder stays, so that only a deployment that
    // steps aside lets it through.
    create(&*provider, "i").await;
    let failed = Finished::from(apply.wait_with_output().expect("wait"));
    let session = format!("session {pid} of ");
    let end = format!("pg_terminate_backend({pid})");
    failed.fails(
        1,
        &[
            "nothing was changed",
            "(SQLSTATE 55P03)",
            &session,
            "application_name 'the holder'",
            "RowExclusiveLock on history",
            &end,
        ],
    );
    client.batch_execute("commit").await.expect("commit");
    cli(&schema, &["schema", "apply"]).ok();
    cli(&schema, &["schema", "verify"]).ok();
}

#[tokio::test]
async fn a_node_that_cannot_deploy_says_who_is_in_the_way() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "{NO_TRIGGER}; update deployment set release = '0.0.9', functions_digest = 'older'"
        ))
        .await
        .expect("an older release");
    let (reader, pid) = holder(&schema, "lock table history in row exclusive mode").await;
    let error = schema.builder().connect().await.expect_err("blocked");
    let text = error.to_string();
    assert!(
        text.contains(&format!("session {pid} of ")) && text.contains("'the holder'"),
        "{text}"
    );
    reader.batch_execute("commit").await.expect("commit");
    schema.provider().await;
}

/// It says on stderr whom it waits for, and goes on when they are done.
#[tokio::test]
async fn deployments_wait_for_each_other_and_say_so() {
    let schema = TestSchema::new();
    schema.provider().await;
    let lock = format!(
        "select pg_advisory_xact_lock(hashtext('duroxide-postgres:deploy'), hashtext('{}'))",
        schema.name
    );
    let (client, pid) = holder(&schema, &format!("set lock_timeout = '100ms'; {lock}")).await;
    for arguments in [&["schema", "apply"][..], &["schema", "drop", "--yes"]] {
        let arguments = [&["--schema", &schema.name], arguments].concat();
        let mut child = command(&schema.url, &arguments).spawn().expect("start");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
        let (sender, said) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = stderr.read_line(&mut line);
            let _ = sender.send(line);
        });
        let said = tokio::time::timeout(Duration::from_secs(60), said).await;
        let said = said.expect("it says nothing").expect("a line");
        assert!(
            said.contains("somebody else deploys or drops schema")
                && said.contains(&format!("session {pid} of "))
                && said.contains("the lock of deployments"),
            "{said}"
        );
        if arguments.contains(&"drop") {
            client.batch_execute("commit").await.expect("commit");
            assert!(child.wait().expect("wait").success());
        } else {
            child.kill().expect("kill");
            child.wait().expect("wait");
        }
    }
    let node: PostgresProvider = schema.builder().connect().await.expect("deploys");
    node.health_check().await.expect("healthy");
}

/// A drop steps aside like a deployment, and says who is in the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_waits_no_longer_than_a_deployment() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let observer = connect(&schema.url).await;
    let (client, pid) = holder(&schema, "lock table history in row exclusive mode").await;
    let arguments = ["--schema", &schema.name, "schema", "drop", "--yes"];
    let child = command(&schema.url, &arguments).spawn().expect("start");
    waiter(&observer, pid).await;
    // Behind the drop, which has to let it through: the holder stays.
    create(&*provider, "i").await;
    let failed = Finished::from(child.wait_with_output().expect("wait"));
    failed.fails(
        1,
        &[
            "trying again",
            "nothing was dropped",
            &format!("session {pid} of "),
            "application_name 'the holder'",
            "RowExclusiveLock on history",
        ],
    );
    client.batch_execute("commit").await.expect("commit");
    cli(&schema, &["schema", "verify"]).ok();
    cli(&schema, &["schema", "drop", "--yes"]).ok();
}

/// Its own record is read with a limit, too.
#[tokio::test]
async fn a_locked_record_does_not_hang_a_deployment() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, pid) = holder(&schema, "lock table deployment").await;
    let failed = Finished::from(apply(&schema).wait_with_output().expect("wait"));
    failed.fails(
        1,
        &[
            "trying again",
            "nothing was changed",
            &format!("session {pid} of "),
            "AccessExclusiveLock on deployment",
        ],
    );
    client.batch_execute("commit").await.expect("commit");
}
