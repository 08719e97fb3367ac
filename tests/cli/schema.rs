//! `schema apply`, `verify`, `version` and `drop`.

use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide_postgres::DeployPolicy;
use serde_json::json;

use crate::fixtures::{create, start};
use crate::process::{cli, cli_with_input, command};
use crate::support::{TestSchema, connect};

#[tokio::test]
async fn what_apply_deploys_verify_finds_in_order() {
    let schema = TestSchema::new();
    let applied = cli(&schema, &["schema", "apply", "--json"]).ok().json();
    assert_eq!(
        (&applied["applied"], &applied["release"]),
        (&json!(true), &json!("0.1.0"))
    );
    let report = cli(&schema, &["schema", "verify", "--json"]).ok().json();
    assert_eq!(report["ok"], true);
    for list in ["missing", "extra", "changed", "grants"] {
        assert_eq!(report[list], json!([]), "{list}");
    }
    assert!(
        cli(&schema, &["schema", "verify"])
            .ok()
            .out
            .contains("as this release deploys it")
    );
    let version = cli(&schema, &["schema", "version", "--json"]).ok().json();
    assert_eq!(version["standing"], "current");
    assert_eq!(version["migration"], applied["migration"]);
    assert!(
        cli(&schema, &["schema", "version"])
            .ok()
            .out
            .contains("release 0.1.0 (current)")
    );
    schema
        .builder()
        .deploy(DeployPolicy::Verify)
        .connect()
        .await
        .expect("verified");
}

#[tokio::test]
async fn verify_names_each_difference_and_apply_puts_functions_right() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let name = &schema.name;
    client
        .batch_execute(&format!(
            "create role {name} login; \
             create or replace function schema_key() returns integer language sql stable parallel safe as 'select 1'; \
             create or replace view instance_events as \
                 select h.instance_id, h.execution_id, h.event_id, 'forged'::text as event_data from history as h; \
             drop view lease_status; \
             create table notes (id integer); \
             grant select on history to {name}; \
             grant select on instance_status to public; \
             grant usage on schema {name} to {name}; \
             grant execute on function fetch_orchestration_item to {name}; \
             drop index executions_status_idx"
        ))
        .await
        .expect("changes");
    let report = cli(&schema, &["schema", "verify", "--json"])
        .fails(1, &["is not as release", "schema apply"])
        .json();
    assert_eq!(report["ok"], false);
    assert_eq!(
        report["changed"],
        json!(["function schema_key", "view instance_events"])
    );
    let missing = report["missing"].to_string();
    assert!(
        missing.contains("view lease_status") && missing.contains("index executions_status_idx"),
        "{missing}"
    );
    assert_eq!(report["extra"], json!(["column notes.id", "table notes"]));
    let grants = report["grants"].to_string();
    for problem in [
        &format!("has SELECT on table history: revoke SELECT on {name}.history from {name}")[..],
        "PUBLIC has SELECT on view instance_status",
        "EXECUTE on ack_orchestration_item",
        &format!("duroxide-postgres --schema {name} grant {name}"),
    ] {
        assert!(grants.contains(problem), "{problem:?} is not in {grants}");
    }

    client
        .batch_execute(&format!(
            "drop table notes; revoke select on history from {name}; \
             create index executions_status_idx on executions (status, completed_at)"
        ))
        .await
        .expect("what apply leaves alone");
    cli(&schema, &["schema", "apply"]).ok();
    cli(&schema, &["grant", name]).ok();
    cli(&schema, &["schema", "verify"]).ok();
}

/// Each alone: what is said about it, and that a deployment takes it away, then finds nothing to do.
#[tokio::test]
async fn what_public_may_is_found_and_taken_away() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let name = &schema.name;
    for (grant, says) in [
        (
            format!("create on schema {name}"),
            "PUBLIC has CREATE on the schema: revoke CREATE",
        ),
        ("insert on history".to_string(), "PUBLIC has INSERT on table history"),
        (
            "select on schema_history".to_string(),
            "PUBLIC has SELECT on table schema_history",
        ),
        (
            "update (value) on kv_store".to_string(),
            "PUBLIC has UPDATE (value) on table kv_store",
        ),
        (
            "select (status) on instance_status".to_string(),
            "PUBLIC has SELECT (status) on view instance_status",
        ),
        (
            "update on sequence worker_queue_id_seq".to_string(),
            "PUBLIC has UPDATE on sequence worker_queue_id_seq: revoke UPDATE on sequence ",
        ),
        // One that only runs as part of others, and one that somebody calls.
        ("execute on function erase_instances".to_string(), "erase_instances"),
        (
            "execute on function read_with_execution".to_string(),
            "read_with_execution",
        ),
    ] {
        client
            .batch_execute(&format!("grant {grant} to public"))
            .await
            .expect(&grant);
        let report = cli(&schema, &["schema", "verify", "--json"])
            .fails(1, &["schema apply"])
            .json();
        let found = format!("{} {}", report["grants"], report["changed"]);
        assert!(found.contains(says), "{grant}: {report:#}");
        let apply = || cli(&schema, &["schema", "apply", "--json"]).ok().json()["applied"].clone();
        assert_eq!(apply(), true, "{grant}");
        cli(&schema, &["schema", "verify"]).ok();
        assert_eq!(apply(), false, "{grant}");
    }
}

/// It is said, with what its owner has to do; no deployment by another role tries again and again.
#[tokio::test]
async fn a_schema_of_somebody_else_is_theirs_to_close() {
    let schema = TestSchema::new();
    let (client, name) = (connect(&schema.url).await, &schema.name);
    client
        .batch_execute(&format!(
            "create role {name} login password '{name}'; create schema {name}; grant create on schema {name} to public; \
             grant usage, create on schema {name} to {name}"
        ))
        .await
        .expect("a schema");
    let url = format!(
        "{} user={name} password={name}",
        crate::process::key_values(&schema.url)
    );
    let run = |arguments: &[&str]| crate::process::run_on(&url, &[&["--schema", name], arguments].concat());
    for applied in [true, false] {
        assert_eq!(run(&["schema", "apply", "--json"]).ok().json()["applied"], applied);
        let report = run(&["schema", "verify", "--json"]).fails(1, &[]).json();
        let revoke = format!("PUBLIC has CREATE on the schema: revoke CREATE on schema {name} from public;");
        assert_eq!(report["grants"], json!([revoke]));
    }
}

#[tokio::test]
async fn a_later_release_is_left_alone() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .execute(
            "update deployment set release = '99.0.0', functions_digest = 'newer'",
            &[],
        )
        .await
        .expect("a later release");
    assert!(cli(&schema, &["schema", "apply"]).ok().out.contains("left alone"));
    assert!(
        cli(&schema, &["schema", "version"])
            .ok()
            .out
            .contains("release 99.0.0 (newer)")
    );
    assert_eq!(
        cli(&schema, &["schema", "verify", "--json"]).ok().json()["standing"],
        "newer"
    );
    cli(&schema, &["schema", "drop", "--yes"]).fails(1, &["nothing was dropped", "99.0.0"]);
    client
        .execute("update deployment set serves_from = '98.0.0'", &[])
        .await
        .expect("one that does not serve us");
    for arguments in [
        &["schema", "apply"][..],
        &["schema", "version"],
        &["schema", "verify"],
        &["schema", "drop", "--yes"],
    ] {
        cli(&schema, arguments).fails(1, &["99.0.0"]);
    }
    client.query("select from history", &[]).await.expect("still there");
}

/// What is damaged can be dropped like anything else.
#[tokio::test]
async fn drop_need_not_know_how_many_there_are() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema
        .client()
        .await
        .batch_execute("drop view instance_counts")
        .await
        .expect("damage");
    let dropped = cli_with_input(&schema, &["schema", "drop"], &format!("{}\n", schema.name));
    assert_eq!(dropped.code, 0, "{}", dropped.err);
    assert!(
        dropped.err.contains("an unknown number of instances"),
        "{}",
        dropped.err
    );
}

/// Killed while it waits for the very last row it writes: nothing of the rest may stay.
#[tokio::test]
async fn an_interrupted_apply_leaves_nothing_behind() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "drop view lease_status; drop function workers_wanted; \
             update deployment set release = '0.0.9', functions_digest = 'older'",
        )
        .await
        .expect("an older release");
    client
        .batch_execute("begin; select from deployment for update")
        .await
        .expect("its record locked");
    let arguments = ["--schema", &schema.name, "schema", "apply"];
    let mut apply = command(&schema.url, &arguments).spawn().expect("start");
    let observer = connect(&schema.url).await;
    let waiting = "select pid from pg_stat_activity \
         where wait_event_type = 'Lock' and query like '%insert into deployment%' and query not like '%pg_stat%' \
           and $1 = any (select n.nspname::text from pg_locks as l join pg_class as c on c.oid = l.relation \
                           join pg_namespace as n on n.oid = c.relnamespace where l.pid = pg_stat_activity.pid)";
    let deadline = Instant::now() + Duration::from_secs(30);
    while observer
        .query(waiting, &[&schema.name])
        .await
        .expect("activity")
        .is_empty()
    {
        assert!(Instant::now() < deadline, "it never got there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    apply.kill().expect("kill");
    apply.wait().expect("wait");
    while !observer
        .query(waiting, &[&schema.name])
        .await
        .expect("activity")
        .is_empty()
    {
        // The server notices that its client is gone when it next talks to it.
        client.batch_execute("commit").await.expect("let it go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.batch_execute("commit").await.expect("commit");
    let state = "select to_regclass('lease_status') is null, release from deployment";
    let row = client.query_one(state, &[]).await.expect("state");
    assert_eq!((row.get::<_, bool>(0), row.get::<_, &str>(1)), (true, "0.0.9"));
    cli(&schema, &["schema", "apply"]).ok();
    cli(&schema, &["schema", "verify"]).ok();
}

#[tokio::test]
async fn drop_asks_first_and_takes_only_what_is_ours() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "kept").await;
    let exists = || async {
        let row = connect(&schema.url)
            .await
            .query_one(
                "select count(*) from pg_class where relnamespace = to_regnamespace($1)",
                &[&schema.name],
            )
            .await
            .expect("catalog");
        row.get::<_, i64>(0)
    };
    let before = exists().await;
    for answer in ["", "y\n", "duroxide\n"] {
        let refused = cli_with_input(&schema, &["schema", "drop"], answer);
        refused.fails(1, &["1 instances, 1 of them running", "nothing was dropped", "--yes"]);
    }
    assert_eq!(exists().await, before);

    // Somebody built upon it: that is not ours to drop.
    let client = schema.client().await;
    client
        .batch_execute("create view theirs as select instance_id from instances")
        .await
        .expect("view");
    cli(&schema, &["schema", "drop", "--yes"]).fails(1, &["nothing was dropped", "theirs"]);
    assert_eq!(exists().await, before + 1);
    provider
        .enqueue_for_orchestrator(start("more"), None)
        .await
        .expect("works on");

    client
        .batch_execute("drop view theirs; create table theirs (id integer)")
        .await
        .expect("table");
    let dropped = cli(&schema, &["schema", "drop", "--yes", "--json"]).ok().json();
    assert_eq!(dropped["schema_dropped"], false);
    assert_eq!(exists().await, 1);
    schema.provider().await;
    client.batch_execute("drop table theirs").await.expect("drop");
    let dropped = cli_with_input(&schema, &["schema", "drop"], &format!("{}\n", schema.name));
    assert_eq!(dropped.code, 0, "{}", dropped.err);
    let gone: bool = client
        .query_one("select to_regnamespace($1) is null", &[&schema.name])
        .await
        .expect("catalog")
        .get(0);
    assert!(gone);
}
