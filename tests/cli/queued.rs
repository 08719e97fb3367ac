//! Instances that were started and have not begun, and what is in the queue whatever else goes wrong.

use std::time::Duration;

use duroxide::providers::Provider;
use duroxide::{Client, OrchestrationStatus};

use crate::act::node;
use crate::database::Database;
use crate::fixtures::{create, start};
use crate::process::{cli, key_values, run_on};
use crate::support::{TestSchema, connect};

const NOT_BEGUN: &str = "\"i\" has been enqueued, but has not begun";

#[tokio::test]
async fn what_has_not_begun_is_said_to_wait_and_can_be_cancelled() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    Client::new(store.clone())
        .start_orchestration("i", "Wait", "")
        .await
        .expect("start");
    cli(&schema, &["show", "i"]).fails(1, &[NOT_BEGUN, "Its start has waited for ", "messages in its queue: 1"]);
    cli(&schema, &["history", "i"]).fails(1, &[NOT_BEGUN]);
    cli(&schema, &["raise", "i", "go"]).fails(1, &["nothing was raised", NOT_BEGUN]);
    cli(&schema, &["delete", "i"]).fails(1, &["nothing was deleted", NOT_BEGUN, "--force"]);
    let cancelled = cli(&schema, &["cancel", "i", "--reason", "enough"]).ok().out;
    assert!(cancelled.contains("its first turn acts on it"), "{cancelled}");
    let (_store, runtime, client) = node(&schema).await;
    let ended = client.wait_for_orchestration("i", Duration::from_secs(30)).await;
    match ended.expect("end") {
        OrchestrationStatus::Failed { details, .. } => {
            assert!(details.display_message().contains("enough"), "{details:?}");
        }
        other => panic!("{other:?}"),
    }
    runtime.shutdown(None).await;

    // Messages for one that nobody starts are no instance.
    let raised = crate::fixtures::raised("nobody", "x");
    store.enqueue_for_orchestrator(raised, None).await.expect("enqueue");
    cli(&schema, &["show", "nobody"]).fails(1, &["Instance \"nobody\" not found"]);
    cli(&schema, &["cancel", "nobody"]).fails(1, &["Instance \"nobody\" not found"]);
    // A start that is due later.
    let later = Some(Duration::from_secs(3600));
    store
        .enqueue_for_orchestrator(start("later"), later)
        .await
        .expect("enqueue");
    cli(&schema, &["show", "later"]).fails(1, &["has not begun", "Its start is due in 59 m"]);
}

#[tokio::test]
async fn what_has_not_begun_is_deleted_by_force() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    let name = &schema.name;
    let admin = connect(&schema.url).await;
    let roles = format!("create role {name}_runtime login; create role {name}_cleanup login");
    admin.batch_execute(&roles).await.expect("roles");
    cli(&schema, &["grant", &format!("{name}_runtime")]).ok();
    cli(&schema, &["grant", "--for", "cleanup", &format!("{name}_cleanup")]).ok();
    let as_role = |purpose: &str, arguments: &[&str]| {
        let url = format!("{} user={name}_{purpose} password=x", key_values(&schema.url));
        run_on(&url, &[&["--schema", name], arguments].concat())
    };
    for _ in 0..2 {
        store.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
        as_role("runtime", &["show", "i"]).fails(1, &[NOT_BEGUN]);
        as_role("cleanup", &["delete", "i"]).fails(1, &["nothing was deleted", NOT_BEGUN, "--force"]);
        let hint = format!("ask the owner for: duroxide-postgres --schema {name} grant ROLE");
        as_role("cleanup", &["cancel", "i"]).fails(1, &["(SQLSTATE 42501)", &hint]);
        let deleted = as_role("cleanup", &["delete", "i", "--force", "--json"]).ok().json();
        assert_eq!((&deleted["instances"], &deleted["messages"]), (&0.into(), &1.into()));
        as_role("cleanup", &["delete", "i", "--force"]).fails(1, &["nothing was deleted", "\"i\" not found"]);
        as_role("runtime", &["show", "i"]).fails(1, &["Instance \"i\" not found"]);
    }
    let roles = format!("{name}_runtime, {name}_cleanup");
    let gone = format!("drop owned by {roles}; drop role {roles}");
    admin.batch_execute(&gone).await.expect("roles");
}

/// What the guide says to look at before a restored database goes on.
#[tokio::test]
async fn the_guide_finds_what_has_not_begun() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    create(&*store, "begun").await;
    for item in [start("i"), start("begun"), crate::fixtures::raised("nobody", "x")] {
        store.enqueue_for_orchestrator(item, None).await.expect("enqueue");
    }
    // As after a call that handed its first turn over.
    let held = "insert into mailboxes (instance_id, available_at, lease, claimed_until, start_item) \
         values ('held', 'infinity', gen_random_uuid(), now(), '{}')";
    schema.client().await.batch_execute(held).await.expect(held);
    let mut found = found_by_guide(&schema, "select s.instance_id, s.visible_at, ").await;
    found.sort();
    assert_eq!(found, ["held", "i"]);
}

/// What it says to delete is what nobody started: an instance that has not begun is somebody's work.
#[tokio::test]
async fn the_guide_finds_what_was_never_started() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    create(&*store, "begun").await;
    let to = |instance| crate::fixtures::raised(instance, "x");
    for item in [start("new"), to("new"), to("begun"), to("nobody"), to("later")] {
        store.enqueue_for_orchestrator(item, None).await.expect("enqueue");
    }
    let later = Some(Duration::from_secs(3600));
    store
        .enqueue_for_orchestrator(start("later"), later)
        .await
        .expect("enqueue");
    const QUERY: &str = "select q.instance_id, count(*), min(q.visible_at) from";
    // They may be ahead of their start.
    assert_eq!(found_by_guide(&schema, QUERY).await, Vec::<String>::new());
    let client = schema.client().await;
    // Handed over, to a process that died.
    let held = "insert into mailboxes (instance_id, available_at, lease, claimed_ids, claimed_until, start_item) \
         values ('held', now(), gen_random_uuid(), '{0}', now(), '{}')";
    client.batch_execute(held).await.expect(held);
    let to_held = store.enqueue_for_orchestrator(to("held"), None).await;
    to_held.expect("enqueue");
    let aged = "update orchestrator_queue set visible_at = visible_at - interval '90 minutes'";
    client.batch_execute(aged).await.expect(aged);
    assert_eq!(found_by_guide(&schema, QUERY).await, ["nobody"]);
    cli(&schema, &["delete", "--force", "nobody"]).ok();
    assert_eq!(found_by_guide(&schema, QUERY).await, Vec::<String>::new());
}

/// The instances that a query of the guide finds, by how it begins.
async fn found_by_guide(schema: &TestSchema, query: &str) -> Vec<String> {
    let guide = include_str!("../../docs/operators-guide.md");
    let from = guide.find(query).expect(query);
    let (query, _) = guide[from..].split_once(';').expect("its end");
    let query = query.replace("duroxide.", &format!("{}.", schema.name));
    let rows = connect(&schema.url).await.query(&query, &[]).await.expect(&query);
    rows.iter().map(|row| row.get(0)).collect()
}

/// The message is there: whoever fails would send it again.
#[tokio::test]
async fn nodes_that_cannot_be_told_are_no_failure() {
    let database = Database::create().await;
    let role = &database.name.clone();
    let store = duroxide_postgres::PostgresProvider::connect(&database.url)
        .await
        .expect("deployed");
    create(&store, "i").await;
    let admin = database.client().await;
    admin
        .batch_execute(&format!(
            "create role {role} login password '{role}'; revoke execute on function pg_notify(text, text) from public"
        ))
        .await
        .expect("role");
    run_on(&database.url, &["grant", role]).ok();
    for arguments in [&["raise", "i", "go"][..], &["cancel", "i"]] {
        let done =
            run_on(&database.url_as(role), arguments).fails(0, &["it is in the queue, but nodes could not be told"]);
        assert!(done.out.starts_with("instance \"i\""), "{}", done.out);
    }
    let rows = admin.query("select from duroxide.orchestrator_queue", &[]).await;
    assert_eq!(rows.expect("queue").len(), 2);
    drop(store);
    database.drop_with(&[role]).await;
}
