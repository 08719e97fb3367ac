//! What applications get for their own tests. Ours use it too, each for its schema.

mod environment;
mod readme;

use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{OrchestrationStatus, Runtime};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use duroxide_postgres::test_support::TestDatabase;
use duroxide_postgres::{DeployPolicy, ErrorKind};

use crate::support::connect;

/// For what takes milliseconds on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(120);

async fn from_env() -> TestDatabase {
    TestDatabase::from_env().await.expect("DATABASE_URL")
}

/// Whether there is a schema, or a role, of this name.
async fn exists(url: &str, name: &str) -> bool {
    let there = "select exists (select from pg_namespace where nspname = $1) or \
                        exists (select from pg_roles where rolname = $1)";
    let row = connect(url).await.query_one(there, &[&name]).await;
    row.expect("catalog").get(0)
}

/// It was compiled, and is run, as a user would.
#[test]
fn the_readme_shows_what_is_tested_here() {
    let readme = include_str!("../../README.md");
    assert!(readme.contains(include_str!("test_support/readme.rs")));
}

#[tokio::test]
async fn an_orchestration_runs_in_a_schema_of_its_own() {
    let database = from_env().await;
    let store = database.provider().await.expect("provider");
    let activities = ActivityRegistry::builder()
        .register("Greet", |_: ActivityContext, name: String| async move {
            Ok(format!("Hello, {name}!"))
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Hello", |ctx: OrchestrationContext, name: String| async move {
            ctx.schedule_activity("Greet", name).await
        })
        .build();
    let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;
    let client = Client::new(store.clone());
    client
        .start_orchestration("hello", "Hello", "World")
        .await
        .expect("start");
    let status = client.wait_for_orchestration("hello", PATIENCE).await.expect("an end");
    assert!(
        matches!(&status, OrchestrationStatus::Completed { output, .. } if output == "Hello, World!"),
        "{status:?}"
    );

    // Another test at the same time sees none of it.
    let other = from_env().await;
    let empty = Client::new(other.provider().await.expect("provider"));
    let status = empty.get_orchestration_status("hello").await.expect("status");
    assert!(matches!(status, OrchestrationStatus::NotFound), "{status:?}");

    runtime.shutdown(None).await;
    let (url, schema) = (database.url().to_string(), database.schema().to_string());
    assert!(exists(&url, &schema).await);
    database.close().await.expect("closed");
    assert!(!exists(&url, &schema).await);
    assert!(exists(&url, other.schema()).await);
}

#[tokio::test]
async fn the_builder_is_for_this_schema() {
    let database = from_env().await;
    let verify = || database.builder().deploy(DeployPolicy::Verify).connect();
    let error = verify().await.expect_err("nothing is deployed");
    assert_eq!(error.kind(), ErrorKind::Schema);
    database.provider().await.expect("provider");
    let provider = verify().await.expect("deployed");
    assert_eq!(provider.schema(), database.schema());
}

#[tokio::test]
async fn what_was_never_used_can_be_closed() {
    from_env().await.close().await.expect("closed");
}

#[tokio::test]
async fn a_panic_leaves_nothing_behind() {
    let database = from_env().await;
    let (url, schema) = (database.url().to_string(), database.schema().to_string());
    let failing = tokio::spawn(async move {
        let _provider = database.provider().await.expect("provider");
        panic!("as a test that fails");
    });
    let error = failing.await.expect_err("a panic");
    assert_eq!(error.into_panic().downcast_ref(), Some(&"as a test that fails"));
    assert!(!exists(&url, &schema).await);
}

/// The test's own runtime is blocked meanwhile, and cannot end the session.
#[tokio::test]
async fn open_transactions_are_no_hindrance() {
    let database = from_env().await;
    let (url, schema) = (database.url().to_string(), database.schema().to_string());
    let _provider = database.provider().await.expect("provider");
    let holder = connect(&url).await;
    holder
        .batch_execute(&format!("begin; lock table {schema}.history in share mode"))
        .await
        .expect("lock");
    let bystander = connect(&url).await;
    bystander.batch_execute("begin").await.expect("begin");

    drop(database);
    assert!(!exists(&url, &schema).await);
    holder.batch_execute("commit").await.expect_err("it was ended");
    bystander.batch_execute("commit").await.expect("still there");
}

#[tokio::test]
async fn a_role_of_the_same_name_goes_with_it() {
    let database = from_env().await;
    let (url, schema) = (database.url().to_string(), database.schema().to_string());
    let _provider = database.provider().await.expect("provider");
    connect(&url)
        .await
        .batch_execute(&format!(
            "create role {schema}; grant usage on schema {schema} to {schema}"
        ))
        .await
        .expect("role");
    database.close().await.expect("closed");
    assert!(!exists(&url, &schema).await);
}

#[tokio::test]
async fn what_cannot_be_dropped_is_an_error() {
    let unreachable = TestDatabase::on("postgres://me:top-secret@127.0.0.1:1/app");
    assert!(!format!("{unreachable:?}").contains("top-secret"));
    let error = unreachable.close().await.expect_err("no server");
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(!format!("{error} {error:?}").contains("top-secret"), "{error:?}");
}

/// Twenty years: what other tests left on this server stays.
#[tokio::test]
async fn old_schemas_of_tests_are_swept_and_no_others() {
    let young = from_env().await;
    let _provider = young.provider().await.expect("provider");
    let client = connect(young.url()).await;
    // Others who run this test on the same server would sweep what is made here. Until the connection ends.
    client
        .batch_execute("select pg_advisory_lock(hashtext('test sweep'))")
        .await
        .expect("alone");
    let id = &young.schema()[young.schema().len() - 16..];
    let old = format!("duroxide_test_1000000000_{id}");
    let not_ours = format!("duroxide_test_1000000000_{id}_mine");
    client
        .batch_execute(&format!(
            "create schema {old}; create table {old}.history (); create role {old}; create schema {not_ours}"
        ))
        .await
        .expect("leftovers");

    let age = Duration::from_secs(20 * 366 * 86_400);
    let spared = TestDatabase::sweep_on(young.url(), Duration::MAX).await;
    let swept = TestDatabase::sweep_on(young.url(), age).await;
    let again = TestDatabase::sweep(age).await;
    let not_ours_left = exists(young.url(), &not_ours).await;
    client
        .batch_execute(&format!("drop schema if exists {not_ours}"))
        .await
        .expect("cleaned up");
    let swept = swept.expect("swept");
    assert_eq!(spared.expect("swept"), [""; 0]);
    assert!(swept.contains(&old), "{swept:?}");
    assert!(!again.expect("swept").contains(&old));
    assert!(!swept.contains(&young.schema().to_string()), "{swept:?}");
    assert!(not_ours_left);
    assert!(!exists(young.url(), &old).await);
    assert!(exists(young.url(), young.schema()).await);
}
