//! `status`, `watch`, `instances`, `show` and `history`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::EventKind;
use duroxide::providers::{ExecutionMetadata, Provider};
use serde_json::{Value, json};

use crate::fixtures::{
    Ack, LOCK, ack, activity, child_start, completed, ending, event, named, scheduled, start, started, timer, turn,
    work,
};
use crate::process::cli;
use crate::support::TestSchema;

fn strings(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|entry| entry[key].as_str().expect(key).to_string())
        .collect()
}

fn in_an_hour() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("now");
    (now + Duration::from_secs(3600)).as_millis() as u64
}

/// One instance that runs an activity and has a timer, one that completed, one that failed, one under a lease.
async fn busy(schema: &TestSchema) -> std::sync::Arc<duroxide_postgres::PostgresProvider> {
    let provider = schema.provider().await;
    let store = &*provider;
    for (instance, status) in [("done", "Completed"), ("broken", "Failed")] {
        store
            .enqueue_for_orchestrator(start(instance), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(store, LOCK).await;
        let end = Ack {
            events: vec![started(instance)],
            metadata: ending(status),
            ..Ack::default()
        };
        ack(store, &token, end).await.expect("ack");
    }
    store
        .enqueue_for_orchestrator(start("busy"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(store, LOCK).await;
    let first = Ack {
        events: vec![started("busy"), scheduled("busy", 2)],
        activities: vec![activity("busy", 2), activity("busy", 3)],
        messages: vec![timer("busy", in_an_hour())],
        metadata: named(),
        ..Ack::default()
    };
    ack(store, &token, first).await.expect("ack");
    work(store, LOCK).await;
    store
        .enqueue_for_orchestrator(start("leased"), None)
        .await
        .expect("enqueue");
    turn(store, LOCK).await;
    store
        .enqueue_for_orchestrator(start("waiting"), None)
        .await
        .expect("enqueue");
    provider
}

#[tokio::test]
async fn status_counts_what_there_is() {
    let schema = TestSchema::new();
    let _provider = busy(&schema).await;
    let status = cli(&schema, &["status", "--json"]).ok().json();
    assert_eq!(status["schema"], json!(schema.name));
    assert_eq!(
        status["instances"],
        json!({ "running": 1, "completed": 1, "failed": 1 })
    );
    let (orchestrator, worker) = (&status["queues"][0], &status["queues"][1]);
    for (queue, expected) in [
        (orchestrator, json!(["orchestrator", 1, 1, 1, 0])),
        (worker, json!(["worker", 1, 0, 1, 0])),
    ] {
        let found = json!([
            queue["queue"],
            queue["ready"],
            queue["scheduled"],
            queue["leased"],
            queue["retried"]
        ]);
        assert_eq!(found, expected);
        assert!(
            queue["oldest_ready_ms"]
                .as_i64()
                .is_some_and(|ms| (0..60_000).contains(&ms)),
            "{queue}"
        );
    }
    let next = orchestrator["next_in_ms"].as_i64().expect("a timer");
    assert!((3_500_000..=3_600_000).contains(&next), "{next}");
    assert_eq!(strings(&status["next_timers"], "instance"), ["busy"]);
    assert_eq!(
        status["leases"],
        json!([
            { "kind": "orchestration", "held": 1, "expired": 0 },
            { "kind": "activity", "held": 1, "expired": 0 },
            { "kind": "session", "held": 0, "expired": 0 },
        ])
    );
    // Two turns (one held, one due) and two activities (one held, one due).
    assert_eq!(status["workers_wanted"], 1);
    assert_eq!(status["worker"], json!({ "turns": 2, "activities": 2 }));
    let small = cli(&schema, &["status", "--turns", "4", "--activities", "1", "--json"])
        .ok()
        .json();
    assert_eq!(small["workers_wanted"], 2);
    let watched = cli(&schema, &["watch", "--times", "1", "--turns", "1", "--activities", "8"])
        .ok()
        .out;
    assert!(
        watched.contains("workers wanted: 2, each with 1 turns and 8 activities at once\n"),
        "{watched}"
    );
    let throughput = &status["throughput"][0];
    assert_eq!(
        (
            &throughput["orchestration"],
            &throughput["running"],
            &throughput["ended_last_minute"]
        ),
        (&json!("Test"), &json!(1), &json!(2))
    );
    assert_eq!(
        (&throughput["completed_last_minute"], &throughput["failed_last_minute"]),
        (&json!(1), &json!(1))
    );

    let text = cli(&schema, &["status"]).ok().out;
    for expected in [
        "instances: 1 running, 1 completed, 1 failed; workers wanted: 1, each with 2 turns and 2 activities at once\n",
        "orchestrator  1",
        "busy         59 m",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
}

#[tokio::test]
async fn an_expired_lease_is_told_from_one_that_is_held() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    turn(&*provider, Duration::from_millis(1)).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let status = cli(&schema, &["status", "--json"]).ok().json();
    assert_eq!(
        status["leases"][0],
        json!({ "kind": "orchestration", "held": 0, "expired": 1 })
    );
    assert_eq!(status["queues"][0]["ready"], 1);
}

#[tokio::test]
async fn watch_shows_the_status_again_and_again() {
    let schema = TestSchema::new();
    schema.provider().await;
    let lines = cli(&schema, &["watch", "--every", "100ms", "--times", "3", "--json"])
        .ok()
        .out;
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0]["at"].as_str() < lines[2]["at"].as_str());
    let screens = cli(&schema, &["watch", "--every", "100ms", "--times", "2"]).ok().out;
    assert_eq!(screens.matches("instances: 0 running").count(), 2, "{screens}");
    cli(&schema, &["watch", "--every", "fast"]).fails(2, &["a number with its unit"]);
    cli(&schema, &["watch", "--every", "0s"]).fails(2, &["at least 100ms"]);
}

#[tokio::test]
async fn instances_are_filtered_and_paged() {
    let schema = TestSchema::new();
    let provider = busy(&schema).await;
    for child in ["child-1", "child-2"] {
        provider
            .enqueue_for_orchestrator(child_start(child, Some("busy")), None)
            .await
            .expect("enqueue");
    }
    for _ in 0..3 {
        // "waiting" and the children, in whatever order.
        let (item, token, _) = turn(&*provider, LOCK).await;
        let metadata = ExecutionMetadata {
            parent_instance_id: item.instance.starts_with("child").then(|| "busy".to_string()),
            ..named()
        };
        let first = Ack {
            events: vec![started(&item.instance)],
            metadata,
            ..Ack::default()
        };
        ack(&*provider, &token, first).await.expect("ack");
    }
    let list = |arguments: &[&str]| {
        let arguments = [&["instances", "--json"], arguments].concat();
        cli(&schema, &arguments).ok().json()
    };
    let ids = |arguments: &[&str]| {
        let mut ids = strings(&list(arguments)["instances"], "instance");
        ids.sort();
        ids
    };
    assert_eq!(ids(&["--status", "completed"]), ["done"]);
    assert_eq!(ids(&["--status", "failed"]), ["broken"]);
    assert_eq!(ids(&["--status", "running"]), ["busy", "child-1", "child-2", "waiting"]);
    assert_eq!(ids(&["--parent", "busy"]), ["child-1", "child-2"]);
    assert_eq!(ids(&["--name", "Test"]).len(), 6);
    assert!(ids(&["--name", "Other"]).is_empty());
    assert!(ids(&["--older-than", "1h"]).is_empty());
    assert_eq!(ids(&["--younger-than", "1h"]).len(), 6);

    let mut paged = Vec::new();
    let mut page = list(&["--limit", "4"]);
    paged.extend(strings(&page["instances"], "instance"));
    let next = page["next"].as_str().expect("more").to_string();
    page = list(&["--limit", "4", "--after", &next]);
    paged.extend(strings(&page["instances"], "instance"));
    assert_eq!(page["next"], Value::Null);
    assert_eq!(paged, strings(&list(&[])["instances"], "instance"));

    let text = cli(&schema, &["instances", "--limit", "1"]).ok().out;
    assert!(
        text.starts_with("INSTANCE") && text.contains("There are more: --after"),
        "{text}"
    );
    cli(&schema, &["instances", "--after", "nobody"]).fails(1, &["no instance \"nobody\""]);
    cli(&schema, &["instances", "--status", "tired"]).fails(2, &["invalid value 'tired'", "running"]);
    cli(&schema, &["instances", "--limit", "0"]).fails(2, &["--limit"]);
}

#[tokio::test]
async fn an_instance_is_shown_with_all_that_belongs_to_it() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let store = &*provider;
    store
        .enqueue_for_orchestrator(start("root"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(store, LOCK).await;
    let status = EventKind::CustomStatusUpdated {
        status: Some("half-way".to_string()),
    };
    let value = EventKind::KeyValueSet {
        key: "colour".to_string(),
        value: "blue\u{0}".to_string(),
        last_updated_at_ms: 1,
    };
    let first = Ack {
        events: vec![
            started("root"),
            scheduled("root", 2),
            event("root", 3, status),
            event("root", 4, value),
        ],
        activities: vec![activity("root", 2)],
        messages: vec![child_start("child", Some("root"))],
        metadata: named(),
        ..Ack::default()
    };
    ack(store, &token, first).await.expect("ack");
    let (item, token, _) = turn(store, LOCK).await;
    assert_eq!(item.instance, "child");
    let child = Ack {
        events: vec![started("child")],
        metadata: ExecutionMetadata {
            parent_instance_id: Some("root".to_string()),
            ..named()
        },
        ..Ack::default()
    };
    ack(store, &token, child).await.expect("ack");
    let (_, token, _) = work(store, LOCK).await;
    store
        .ack_work_item(&token, Some(completed("root", 2)))
        .await
        .expect("ack");

    let shown = cli(&schema, &["show", "root", "--json"]).ok().json();
    assert_eq!(
        (&shown["status"], &shown["orchestration"]),
        (&json!("Running"), &json!("Test"))
    );
    assert_eq!(shown["custom_status"], "half-way");
    assert_eq!(shown["values"], json!({ "colour": "blue\u{0}" }));
    assert_eq!(strings(&shown["tree"], "instance"), ["root", "child"]);
    assert_eq!(shown["executions"][0]["events"], 4);
    assert_eq!(
        strings(&shown["history"], "type")[..2],
        ["OrchestrationStarted", "ActivityScheduled"]
    );
    let text = cli(&schema, &["show", "root"]).ok().out;
    for expected in [
        "instance \"root\": Test 1.0.0 Running",
        "custom status: half-way",
        "\nroot  Test  Running\n  child  Test  Running\n",
        "colour  blue\\0",
        "ActivityScheduled Work input={}",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }

    let history = cli(&schema, &["history", "root", "--json"]).ok().json();
    assert_eq!(history, shown["history"]);
    assert!(
        cli(&schema, &["history", "root", "--execution", "1"])
            .ok()
            .out
            .contains("OrchestrationStarted Test")
    );
    cli(&schema, &["history", "root", "--execution", "7"]).fails(1, &["no execution 7: it has 1"]);
    cli(&schema, &["show", "nobody"]).fails(1, &["Instance \"nobody\" not found"]);
    cli(&schema, &["history", "nobody"]).fails(1, &["Instance \"nobody\" not found"]);
}

#[tokio::test]
async fn of_many_executions_the_latest_are_shown() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             values ('long', 'Test', '1.0.0', 50, now(), now()); \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select 'long', n, case when n = 50 then 'Running' else 'ContinuedAsNew' end, now(), case when n < 50 then now() end \
               from generate_series(1, 50) as n",
        )
        .await
        .expect("executions");
    let shown = cli(&schema, &["show", "long", "--json"]).ok().json();
    assert_eq!(shown["executions_total"], 50);
    let executions = shown["executions"].as_array().expect("a list");
    assert_eq!(
        (
            executions.len(),
            &executions[0]["execution"],
            &executions[19]["execution"]
        ),
        (20, &json!(31), &json!(50))
    );
    let text = cli(&schema, &["show", "long"]).ok().out;
    assert!(text.contains("\n50 ") && text.contains("and 30 earlier\n"), "{text}");
}
