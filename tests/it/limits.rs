//! More than a turn, a lock table or a visit can take.

use std::time::Duration;

use duroxide::providers::{Provider, WorkItem};

use crate::fixtures::{Ack, LOCK, NOW, ack, create, named, raised, start, started, turn};
use crate::support::TestSchema;

fn queue_message(instance: &str, data: &str) -> WorkItem {
    WorkItem::QueueMessage {
        instance: instance.to_string(),
        name: "q".to_string(),
        data: data.to_string(),
    }
}

async fn enqueue_many(schema: &TestSchema, kind: &str, item: &WorkItem, count: i32) {
    let client = schema.client().await;
    client
        .execute(
            "select enqueue_for_orchestrators(array_agg('i'::text), array_agg($1::text::\"char\"), array_agg($2::text), \
             array_agg(null::bigint), array_agg(null::bigint)) from generate_series(1, $3)",
            &[&kind, &serde_json::to_string(item).expect("JSON"), &count],
        )
        .await
        .expect("enqueue");
}

/// The message that starts an execution belongs to the first turn, however many came before it.
#[tokio::test]
async fn a_start_behind_more_messages_than_a_turn_takes_is_found() {
    for (kind, item) in [("m", raised("i", "x")), ("q", queue_message("i", "x"))] {
        let schema = TestSchema::new();
        let provider = schema.provider().await;
        enqueue_many(&schema, kind, &item, 1500).await;
        provider
            .enqueue_for_orchestrator(start("i"), None)
            .await
            .expect("enqueue");
        let (turn_item, token, _) = turn(&*provider, LOCK).await;
        assert!(turn_item.messages.len() > 1000);
        assert_eq!(turn_item.messages.last(), Some(&start("i")));
        let first = Ack {
            events: vec![started("i")],
            metadata: named(),
            ..Ack::default()
        };
        ack(&*provider, &token, first).await.expect("ack");
        // The rest follows at once.
        let (turn_item, token, attempts) = turn(&*provider, LOCK).await;
        assert_eq!((turn_item.messages.len(), attempts), (500, 1));
        ack(&*provider, &token, Ack::default()).await.expect("ack");
        assert!(
            provider
                .fetch_orchestration_item(LOCK, NOW, None)
                .await
                .expect("fetch")
                .is_none()
        );
    }
}

#[tokio::test]
async fn messages_abandoned_together_come_back_together_and_in_order() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "i").await;
    for n in 0..300 {
        provider
            .enqueue_for_orchestrator(raised("i", &n.to_string()), None)
            .await
            .expect("enqueue");
    }
    let (before, token, _) = turn(&*provider, LOCK).await;
    provider
        .abandon_orchestration_item(&token, Some(Duration::from_millis(20)), false)
        .await
        .expect("abandon");
    let (after, _, attempts) = provider
        .fetch_orchestration_item(LOCK, Duration::from_secs(10), None)
        .await
        .expect("fetch")
        .expect("a turn");
    assert_eq!(after.messages, before.messages);
    assert_eq!(attempts, 2);
}

/// A fan-out far beyond the server's lock table.
#[tokio::test]
async fn a_turn_can_start_thousands_of_children() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    provider
        .enqueue_for_orchestrator(start("m"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let children: Vec<WorkItem> = (0..10_000)
        // Before and after the parent in the lock order.
        .map(|n| start(&format!("{}-{n}", if n % 2 == 0 { "a" } else { "z" })))
        .collect();
    let first = Ack {
        events: vec![started("m")],
        messages: children,
        metadata: named(),
        ..Ack::default()
    };
    ack(&*provider, &token, first).await.expect("ack");
    let client = schema.client().await;
    let due: i64 = client
        .query_one(
            "select count(*) from mailboxes where available_at <= clock_timestamp()",
            &[],
        )
        .await
        .expect("count")
        .get(0);
    assert_eq!(due, 10_000);
    let (item, _, _) = turn(&*provider, LOCK).await;
    assert_eq!(item.messages.len(), 1);
}
