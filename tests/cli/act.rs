//! `cancel`, `raise` and `delete`, with a real runtime on the other side.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderAdmin;
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use duroxide_postgres::PostgresProvider;

use crate::process::{Finished, cli};
use crate::support::TestSchema;

/// A node that runs `Wait`: it waits for the event `go`, then for a message in the queue `more`.
pub async fn node(schema: &TestSchema) -> (Arc<PostgresProvider>, Arc<Runtime>, Client) {
    let store = schema.provider().await;
    let orchestrations = OrchestrationRegistry::builder()
        .register("Wait", |ctx: OrchestrationContext, _: String| async move {
            ctx.set_custom_status("waiting");
            let first = ctx.schedule_wait("go").await;
            let second = ctx.dequeue_event("more").await;
            Ok(format!("{first} {second}"))
        })
        .build();
    let runtime = Runtime::start_with_store(store.clone(), ActivityRegistry::builder().build(), orchestrations).await;
    let client = Client::new(store.clone());
    (store, runtime, client)
}

async fn started(client: &Client, instance: &str) {
    client.start_orchestration(instance, "Wait", "").await.expect("start");
    client
        .wait_for_status_change(instance, 0, Duration::from_millis(20), Duration::from_secs(30))
        .await
        .expect("its first turn");
}

/// The processes of this test must not stop its runtime meanwhile.
async fn command(schema: &TestSchema, arguments: &[&str]) -> Finished {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
    let (name, url) = (schema.name.clone(), schema.url.clone());
    let run = move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        crate::process::run_on(&url, &[&["--schema", &name], &arguments[..]].concat())
    };
    tokio::task::spawn_blocking(run).await.expect("run")
}

#[tokio::test]
async fn what_is_raised_arrives() {
    let schema = TestSchema::new();
    let (_store, runtime, client) = node(&schema).await;
    started(&client, "i").await;
    command(&schema, &["raise", "i", "go", "\"now\""]).await.ok();
    let raised = command(&schema, &["raise", "i", "more", "text", "--queue", "--json"])
        .await
        .ok()
        .json();
    assert_eq!(raised["queue"], true);
    match client
        .wait_for_orchestration("i", Duration::from_secs(30))
        .await
        .expect("end")
    {
        OrchestrationStatus::Completed { output, .. } => assert_eq!(output, "\"now\" text"),
        other => panic!("{other:?}"),
    }
    command(&schema, &["raise", "i", "go"])
        .await
        .fails(1, &["has ended already: Completed"]);
    command(&schema, &["cancel", "i"])
        .await
        .fails(1, &["has ended already: Completed"]);
    command(&schema, &["raise", "nobody", "go"])
        .await
        .fails(1, &["\"nobody\" not found"]);
    command(&schema, &["cancel", "nobody"])
        .await
        .fails(1, &["\"nobody\" not found"]);
    runtime.shutdown(None).await;
}

#[tokio::test]
async fn what_is_cancelled_ends_and_can_be_deleted() {
    let schema = TestSchema::new();
    let (store, runtime, client) = node(&schema).await;
    started(&client, "i").await;
    command(&schema, &["delete", "i"])
        .await
        .fails(1, &["nothing was deleted", "still running", "--force"]);
    assert_eq!(store.list_instances().await.expect("list"), ["i"]);
    let cancelled = command(&schema, &["cancel", "i", "--reason", "enough", "--json"])
        .await
        .ok()
        .json();
    assert_eq!(cancelled["reason"], "enough");
    match client
        .wait_for_orchestration("i", Duration::from_secs(30))
        .await
        .expect("end")
    {
        OrchestrationStatus::Failed { details, .. } => {
            assert!(details.display_message().contains("enough"), "{details:?}");
        }
        other => panic!("{other:?}"),
    }
    runtime.shutdown(None).await;
    let deleted = command(&schema, &["delete", "i", "--json"]).await.ok().json();
    assert_eq!(deleted["instances"], 1);
    assert!(store.list_instances().await.expect("list").is_empty());
    command(&schema, &["delete", "i"])
        .await
        .fails(1, &["nothing was deleted", "\"i\" not found"]);
}

#[tokio::test]
async fn force_deletes_what_runs() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    crate::fixtures::create(&*store, "i").await;
    cli(&schema, &["delete", "i"]).fails(1, &["--force"]);
    let missing = cli(&schema, &["delete", "DX004"]).fails(1, &["nothing was deleted", "\"DX004\" not found"]);
    assert!(!missing.err.contains("--force"), "{}", missing.err);
    crate::fixtures::create(&*store, "-it's $me").await;
    let running = cli(&schema, &["delete", "--", "-it's $me"]);
    let suggested = format!("duroxide-postgres --schema {} cancel -- '-it'\\''s $me'", schema.name);
    running.fails(1, &[&suggested]);
    cli(&schema, &["delete", "--force", "--", "-it's $me"]).ok();
    // A root that has ended cannot be cancelled: what runs is below it.
    crate::prune::ended(&schema, 1).await;
    crate::fixtures::create(&*store, "child").await;
    let client = schema.client().await;
    let adopted = "update instances set parent_instance_id = 'old-1' where instance_id = 'child'";
    client.batch_execute(adopted).await.expect("a child");
    let suggested = format!("(duroxide-postgres --schema {} cancel -- child)", schema.name);
    cli(&schema, &["delete", "old-1"]).fails(1, &["\"child\", below \"old-1\", is still running", &suggested]);
    cli(&schema, &["cancel", "--", "child"]).ok();
    let text = cli(&schema, &["delete", "i", "--force"]).ok().out;
    assert!(
        text.starts_with("deleted 1 instances, 1 executions, 1 events"),
        "{text}"
    );
}
