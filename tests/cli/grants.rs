//! `grant`: each role can do its work, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, ProviderAdmin};
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use duroxide_postgres::{Builder, DeployPolicy, PostgresProvider};
use tokio_postgres::NoTls;

use crate::fixtures::{NOW, create};
use crate::process::{cli, psql, run};
use crate::support::{TestSchema, connect};

/// A role that may log in and nothing else, with the schema's name.
async fn create_role(schema: &TestSchema) {
    connect(&schema.url)
        .await
        .batch_execute(&format!("create role {0} login password '{0}'", schema.name))
        .await
        .expect("role");
}

async fn as_role(schema: &TestSchema) -> tokio_postgres::Client {
    let (client, connection) = schema.execute_only_config().connect(NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
        .batch_execute(&format!("set search_path = {}", schema.name))
        .await
        .expect("search_path");
    client
}

async fn provider_as_role(schema: &TestSchema) -> Arc<PostgresProvider> {
    let provider = Builder::from_config(schema.execute_only_config())
        .schema(&schema.name)
        .deploy(DeployPolicy::Verify)
        .connect()
        .await;
    Arc::new(provider.expect("EXECUTE is enough"))
}

async fn refused(client: &tokio_postgres::Client, statement: &str) {
    let error = client.batch_execute(statement).await.expect_err(statement);
    assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{statement}");
}

#[tokio::test]
async fn the_runtime_role_runs_everything_and_deletes_nothing() {
    let schema = TestSchema::new();
    schema.provider().await;
    create_role(&schema).await;
    let granted = cli(&schema, &["grant", &schema.name, "--json"]).ok().json();
    assert_eq!(granted["purpose"], "runtime");

    let store = provider_as_role(&schema).await;
    let activities = ActivityRegistry::builder()
        .register("Greet", |_: ActivityContext, name: String| async move {
            Ok(format!("Hello, {name}!"))
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Hello", |ctx: OrchestrationContext, name: String| async move {
            ctx.set_kv_value("greeted", &name);
            ctx.schedule_timer(Duration::from_millis(10)).await;
            let name = ctx.schedule_wait("go").await + &name;
            ctx.schedule_activity("Greet", name).await
        })
        .build();
    let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;
    let client = Client::new(store.clone());
    client.start_orchestration("i", "Hello", "World").await.expect("start");
    let raised = async {
        loop {
            // Dropped until the instance waits for it.
            client.raise_event("i", "go", "my ").await.expect("raise");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ended = client.wait_for_orchestration("i", Duration::from_secs(30));
    let status = tokio::select! { status = ended => status, () = raised => unreachable!() };
    match status.expect("status") {
        OrchestrationStatus::Completed { output, .. } => assert_eq!(output, "Hello, my World!"),
        other => panic!("{other:?}"),
    }
    runtime.shutdown(None).await;
    assert_eq!(store.list_instances().await.expect("list"), ["i"]);

    let error = store.delete_instance("i", true).await.expect_err("no deleting");
    assert!(error.message.contains("42501"), "{error:?}");
    let direct = as_role(&schema).await;
    for statement in [
        "select delete_instance('i', true)",
        "select delete_instances_atomic(array['i'], true)",
        "select delete_instance_bulk(null, null, 10)",
        "select prune_executions(null, null, 10, 0, null)",
        "select erase_instances(array['i'])",
        "select * from history",
        "select * from instance_status",
        "delete from instances",
    ] {
        refused(&direct, statement).await;
    }
}

#[tokio::test]
async fn the_cleanup_role_deletes_and_does_nothing_else() {
    let schema = TestSchema::new();
    let owner = schema.provider().await;
    create(&*owner, "i").await;
    create_role(&schema).await;
    cli(&schema, &["grant", "--for", "cleanup", &schema.name]).ok();
    cli(&schema, &["schema", "verify"]).ok();
    let store = provider_as_role(&schema).await;
    assert_eq!(store.list_instances().await.expect("list"), ["i"]);
    let error = store
        .fetch_orchestration_item(Duration::from_secs(5), NOW, None)
        .await
        .expect_err("no fetching");
    assert!(error.message.contains("42501"), "{error:?}");
    assert!(store.read_history("i").await.is_err(), "payloads");
    let deleted = store.delete_instance("i", true).await.expect("delete");
    assert_eq!(deleted.instances_deleted, 1);
}

#[tokio::test]
async fn dashboards_see_views_and_payloads_only_if_asked() {
    let schema = TestSchema::new();
    let owner = schema.provider().await;
    create(&*owner, "i").await;
    create_role(&schema).await;
    cli(&schema, &["grant", "--for", "dashboard", &schema.name]).ok();
    let dashboard = as_role(&schema).await;
    for view in [
        "execution_status",
        "instance_counts",
        "instance_status",
        "lease_status",
        "orchestration_throughput",
        "queue_health",
        "scheduled_messages",
    ] {
        dashboard
            .batch_execute(&format!("select * from {view}"))
            .await
            .expect(view);
    }
    dashboard
        .batch_execute("select workers_wanted()")
        .await
        .expect("workers_wanted");
    let payloads = ["instance_events", "instance_payloads", "instance_values"];
    for relation in payloads
        .iter()
        .chain(&["history", "instances", "orchestrator_queue", "kv_store", "executions"])
    {
        refused(&dashboard, &format!("select * from {relation}")).await;
    }
    for statement in [
        "select * from read_with_execution('i', 1)",
        "select * from get_instance_info('i')",
        "select * from get_kv_all_values('i')",
        "update scheduled_messages set instance_id = 'x'",
        "delete from instance_events",
    ] {
        refused(&dashboard, statement).await;
    }

    cli(&schema, &["grant", "--for", "dashboard", "--payloads", &schema.name]).ok();
    for view in payloads {
        dashboard
            .batch_execute(&format!("select * from {view}"))
            .await
            .expect(view);
    }
    refused(&dashboard, "select * from history").await;
    cli(&schema, &["schema", "verify"]).ok();
}

#[tokio::test]
async fn grants_can_be_reviewed_and_applied_by_psql() {
    let schema = TestSchema::new();
    schema.provider().await;
    create_role(&schema).await;
    let sql = cli(&schema, &["grant", "--sql", &schema.name]).ok().out;
    assert!(
        sql.contains("grant usage on schema") && sql.contains(".fetch_orchestration_item"),
        "{sql}"
    );
    assert!(!sql.contains("delete_instance") && !sql.contains("prune"), "{sql}");
    let json = run(&["grant", "--sql", "o\"dd", "--json"]).ok().json();
    let first = json["statements"][0].as_str().expect("a statement");
    assert_eq!(first, "grant usage on schema \"duroxide\" to \"o\"\"dd\";");
    if let Some(applied) = psql(&schema.url, &sql) {
        assert_eq!(applied.code, 0, "{}", applied.err);
        provider_as_role(&schema).await;
    }
}

#[tokio::test]
async fn a_grant_that_cannot_be_made_says_why() {
    let schema = TestSchema::new();
    schema.provider().await;
    cli(&schema, &["grant", "nobody_by_that_name"])
        .fails(1, &["role \"nobody_by_that_name\" does not exist", "create role"]);
    let failed =
        cli(&schema, &["grant", "pg_by_that_name"]).fails(2, &["role \"pg_by_that_name\" does not exist", "pg_"]);
    assert!(!failed.err.contains("create role"), "{}", failed.err);
    // Somebody who may use everything and grant nothing.
    schema.create_execute_only_role().await;
    let url = format!(
        "{} user={1} password={1}",
        crate::process::key_values(&schema.url),
        schema.name
    );
    crate::process::run_on(&url, &["--schema", &schema.name, "grant", "pg_monitor"])
        .fails(1, &["nothing was granted", "only the owner"]);
}

/// GRANT only warns, object by object, and what another grant gave must not be taken for it.
#[tokio::test]
async fn a_grant_that_was_only_a_warning_is_a_failure() {
    let schema = TestSchema::new();
    schema.provider().await;
    create_role(&schema).await;
    cli(&schema, &["grant", &schema.name]).ok();
    let other = format!("{}_other", schema.name);
    let client = schema.client().await;
    client
        .batch_execute(&format!("create role {other}"))
        .await
        .expect("role");
    cli(&schema, &["grant", "--for", "cleanup", &other]).ok();
    let url = format!(
        "{} user={1} password={1}",
        crate::process::key_values(&schema.url),
        schema.name
    );
    let granted = crate::process::run_on(&url, &["--schema", &schema.name, "grant", &other]);
    granted.fails(1, &["nothing was granted", "only the owner", "lacks EXECUTE on "]);
    let may = "select has_function_privilege($1, 'get_instance_info(text)', 'execute')";
    let may: bool = client.query_one(may, &[&other]).await.expect("privilege").get(0);
    assert!(!may);
    client
        .batch_execute(&format!("drop owned by {other}; drop role {other}"))
        .await
        .expect("drop");
}

/// A role that grants to itself what it has is only warned, and the owner may have done all there is to do before.
#[tokio::test]
async fn a_grant_that_changes_nothing_claims_nothing() {
    let schema = TestSchema::new();
    schema.provider().await;
    create_role(&schema).await;
    let owner = schema.url.clone();
    let itself = format!(
        "{} user={1} password={1}",
        crate::process::key_values(&schema.url),
        schema.name
    );
    let grant = |url: &str, options: &[&str]| {
        let arguments = [&["--schema", &schema.name, "grant", &schema.name], options].concat();
        crate::process::run_on(url, &arguments)
    };
    let statements = |url: &str, options: &[&str]| {
        let granted = grant(url, &[options, &["--json"]].concat()).ok().json();
        granted["statements"].as_array().expect("statements").len()
    };
    assert_eq!(statements(&owner, &[]), 2);
    for url in [&itself, &owner] {
        assert_eq!(statements(url, &[]), 0);
        let said = grant(url, &[]).ok().out;
        assert!(said.contains("already; nothing was changed"), "{said}");
    }
    // Beside the views it has everything by now.
    assert_eq!(statements(&owner, &["--for", "dashboard", "--payloads"]), 1);
    assert_eq!(statements(&owner, &["--for", "dashboard"]), 1);
    grant(&itself, &["--for", "cleanup"]).fails(1, &["Only the owner"]);
}

#[tokio::test]
async fn payloads_are_taken_back() {
    let schema = TestSchema::new();
    schema.provider().await;
    create_role(&schema).await;
    let dashboard = as_role(&schema).await;
    cli(&schema, &["grant", "--for", "dashboard", "--payloads", &schema.name]).ok();
    dashboard
        .batch_execute("select from instance_events")
        .await
        .expect("payloads");
    cli(&schema, &["grant", "--for", "dashboard", &schema.name]).ok();
    for view in ["instance_events", "instance_payloads", "instance_values"] {
        refused(&dashboard, &format!("select from {view}")).await;
    }
    dashboard
        .batch_execute("select from instance_status")
        .await
        .expect("the rest");
    // The owner keeps what is its own.
    let owner: String = connect(&schema.url)
        .await
        .query_one("select current_user::text", &[])
        .await
        .expect("user")
        .get(0);
    cli(&schema, &["grant", "--for", "dashboard", &owner]).ok();
    cli(&schema, &["schema", "verify"]).ok();
}
