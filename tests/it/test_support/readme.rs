use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{OrchestrationStatus, Runtime};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use duroxide_postgres::test_support::TestDatabase;

#[tokio::test]
async fn an_order_is_shipped() -> Result<(), Box<dyn std::error::Error>> {
    let database = TestDatabase::from_env().await?;
    let store = database.provider().await?; // or database.builder() for other settings

    // Your application's own.
    let activities = ActivityRegistry::builder()
        .register("Pack", |_: ActivityContext, what: String| async move {
            Ok(format!("{what} in a box"))
        })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Ship", |ctx: OrchestrationContext, what: String| async move {
            ctx.schedule_activity("Pack", what).await
        })
        .build();
    let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;

    let client = Client::new(store);
    client.start_orchestration("order-1", "Ship", "a book").await?;
    match client
        .wait_for_orchestration("order-1", Duration::from_secs(60))
        .await?
    {
        OrchestrationStatus::Completed { output, .. } => assert_eq!(output, "a book in a box"),
        other => panic!("{other:?}"),
    }

    runtime.shutdown(None).await;
    database.close().await?; // dropping it does the same, but can only print what went wrong
    Ok(())
}
