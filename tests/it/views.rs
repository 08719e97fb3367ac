//! What dashboards and autoscalers read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::providers::Provider;
use tokio_postgres::Client;

use crate::fixtures::{LOCK, activity, create, start, timer, turn, work};
use crate::support::TestSchema;

async fn wanted(client: &Client, arguments: &str) -> i32 {
    let row = client
        .query_one(&format!("select workers_wanted({arguments})"), &[])
        .await;
    row.expect("workers_wanted").get(0)
}

#[tokio::test]
async fn as_many_workers_are_wanted_as_the_backlog_keeps_busy() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let client = schema.client().await;
    assert_eq!(wanted(&client, "").await, 0);
    create(&*provider, "idle").await;
    assert_eq!(wanted(&client, "").await, 0, "an idle instance wants nobody");

    let in_ten_minutes = SystemTime::now() + Duration::from_secs(600);
    let at = in_ten_minutes.duration_since(UNIX_EPOCH).expect("time").as_millis() as u64;
    provider
        .enqueue_for_orchestrator(timer("idle", at), None)
        .await
        .expect("timer");
    assert_eq!(wanted(&client, "2, 2, 0").await, 0, "nor does a timer of later");
    assert_eq!(
        wanted(&client, "2, 2, 660000").await,
        1,
        "unless it is due when a worker is up"
    );

    for n in 0..5 {
        provider
            .enqueue_for_orchestrator(start(&format!("i{n}")), None)
            .await
            .expect("enqueue");
    }
    assert_eq!(wanted(&client, "2, 2").await, 3);
    turn(&*provider, LOCK).await;
    assert_eq!(
        wanted(&client, "2, 2").await,
        3,
        "what is under way keeps its worker busy"
    );
    for n in 0..7 {
        provider
            .enqueue_for_worker(activity("idle", 10 + n))
            .await
            .expect("enqueue");
    }
    work(&*provider, LOCK).await;
    assert_eq!(wanted(&client, "5, 2").await, 4, "7 activities");
    assert_eq!(wanted(&client, "1, 10").await, 5, "5 turns");
    for arguments in ["0", "1, 0", "1, 1, -1", "null"] {
        let error = client
            .query(&format!("select workers_wanted({arguments})"), &[])
            .await
            .expect_err(arguments);
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{arguments}");
    }
}

/// One instance is found by its key, however many there are.
#[tokio::test]
async fn views_of_one_instance_use_indexes() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             select 'i' || n, 'Test', '1.0.0', 1, now(), now() from generate_series(1, 5000) as n; \
             insert into executions (instance_id, execution_id, status, started_at) \
             select 'i' || n, 1, 'Running', now() from generate_series(1, 5000) as n; \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select 'i' || n, 1, 1, '{}' from generate_series(1, 5000) as n; \
             insert into kv_store (instance_id, key, value, last_updated_at_ms) \
             select 'i' || n, 'k', 'v', 0 from generate_series(1, 5000) as n; \
             insert into kv_delta (instance_id, key, value, last_updated_at_ms) \
             select 'i' || n, 'k', 'w', 0 from generate_series(1, 5000) as n; \
             analyze instances, executions, history, kv_store, kv_delta",
        )
        .await
        .expect("rows");
    for view in [
        "instance_status",
        "execution_status",
        "instance_payloads",
        "instance_events",
        "instance_values",
    ] {
        let rows = client
            .query(&format!("explain select * from {view} where instance_id = 'i77'"), &[])
            .await
            .expect("plan");
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert!(!plan.join("\n").contains("Seq Scan"), "{view}:\n{}", plan.join("\n"));
    }
    let row = client
        .query_one("select value from instance_values where instance_id = 'i77'", &[])
        .await;
    assert_eq!(
        row.expect("one value").get::<_, &str>(0),
        "w",
        "what the current execution sees"
    );
}
