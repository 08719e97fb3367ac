//! `show` and `history` where there is very much to show, or something that cannot be read.

use serde_json::json;

use crate::fixtures::{Ack, LOCK, ack, named, scheduled, start, started, turn};
use crate::process::cli;
use crate::support::TestSchema;
use duroxide::providers::Provider;

#[tokio::test]
async fn an_event_that_cannot_be_read_hides_no_other() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let store = &*provider;
    store.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
    let (_, token, _) = turn(store, LOCK).await;
    let first = Ack {
        events: vec![started("i"), scheduled("i", 2), scheduled("i", 3)],
        metadata: named(),
        ..Ack::default()
    };
    ack(store, &token, first).await.expect("ack");
    let stored = r#"{"event_id": 2, "type": "FromTheFuture"}"#;
    let client = schema.client().await;
    client
        .execute("update history set event_data = $1 where event_id = 2", &[&stored])
        .await
        .expect("a later release");

    let says = ["error: 1 of 3 events of instance \"i\" cannot be read"];
    for arguments in [&["show", "i"][..], &["history", "i"]] {
        let shown = cli(&schema, arguments).fails(1, &says).out;
        for expected in [
            "   1  +0 ms        OrchestrationStarted Test",
            "   ?  cannot be read: ",
            "FromTheFuture",
            "   3  +",
        ] {
            assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
        }
    }
    let history = cli(&schema, &["history", "i", "--json"]).fails(1, &says).json();
    assert_eq!(history[0]["type"], "OrchestrationStarted");
    assert_eq!(history[1]["stored"], stored);
    assert!(history[1]["unreadable"].is_string(), "{history:#}");
    assert_eq!(history[2]["event_id"], 3);
    let shown = cli(&schema, &["show", "i", "--json"]).fails(1, &says).json();
    assert_eq!((&shown["status"], &shown["history"]), (&json!("Running"), &history));
}

#[tokio::test]
async fn what_is_not_listed_is_counted() {
    let schema = TestSchema::new();
    let _provider = schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, \
                                    parent_instance_id, created_at, updated_at) \
             select 'i' || n, 'Test', '1.0.0', 1, case when n > 0 then 'i0' end, now(), now() from generate_series(0, 250) as n; \
             insert into executions (instance_id, execution_id, status, started_at) \
             select 'i0', n, 'ContinuedAsNew', now() from generate_series(3, 400) as n",
        )
        .await
        .expect("a large tree");
    let shown = cli(&schema, &["show", "i0", "--json"]).ok().json();
    assert_eq!(shown["tree"].as_array().map(Vec::len), Some(200));
    assert_eq!(shown["tree_total"], 251);
    let failed = cli(&schema, &["history", "i0", "--execution", "5000"]);
    failed.fails(1, &["has no execution 5000: it has 398, from 3 to 400\n"]);
}
