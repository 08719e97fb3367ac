//! `schema apply`, `verify` and `version`.

use std::time::{Duration, Instant};

use duroxide_postgres::DeployPolicy;
use serde_json::json;

use crate::process::{cli, command};
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
