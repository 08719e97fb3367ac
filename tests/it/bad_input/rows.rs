//! Rows that were damaged, or came too early.

use duroxide::providers::{Provider, TagFilter};

use super::permanent;
use crate::fixtures::{
    Ack, LOCK, NOW, ack, activity, create, ending, named, raised, scheduled, start, started, turn, work,
};
use crate::support::{TestSchema, damage_history};

#[tokio::test]
async fn a_corrupted_message_is_reported_and_not_consumed() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "i").await;
    p.enqueue_for_orchestrator(raised("i", "good"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(raised("i", "bad"), None)
        .await
        .expect("enqueue");
    let client = schema.client().await;
    client
        .execute(
            "update orchestrator_queue set work_item = '{\"FromTheFuture\": {}}' where work_item like '%bad%'",
            &[],
        )
        .await
        .expect("corrupt");
    for attempt in 1..=3 {
        let (item, token, attempts) = turn(p, LOCK).await;
        assert_eq!(attempts, attempt);
        let error = item.history_error.expect("reported");
        assert!(error.contains("message") && error.contains("FromTheFuture"), "{error}");
        p.abandon_orchestration_item(&token, None, false)
            .await
            .expect("abandon");
    }
    let left: i64 = client
        .query_one("select count(*) from orchestrator_queue", &[])
        .await
        .expect("count")
        .get(0);
    assert_eq!(left, 2);
}

#[tokio::test]
async fn a_corrupted_activity_does_not_stop_the_line() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    p.enqueue_for_worker(activity("bad", 1)).await.expect("enqueue");
    p.enqueue_for_worker(activity("good", 1)).await.expect("enqueue");
    let client = schema.client().await;
    client
        .execute(
            "update worker_queue set work_item = 'not JSON' where instance_id = 'bad'",
            &[],
        )
        .await
        .expect("corrupt");
    permanent(
        p.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await,
        &["\"bad\"", "activity 1", "cannot be read"],
    );
    let (item, _, _) = work(p, LOCK).await;
    assert_eq!(item, activity("good", 1));
    let left: i64 = client
        .query_one("select count(*) from worker_queue where instance_id = 'bad'", &[])
        .await
        .expect("count")
        .get(0);
    assert_eq!(left, 1);
}

/// A row that cannot even be read: its out-of-line value is gone.
#[tokio::test]
async fn a_history_that_the_server_cannot_read_does_not_stop_the_line() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    create(p, "bad").await;
    let client = schema.client().await;
    if !damage_history(&client, "bad", 100_000).await {
        return;
    }
    p.enqueue_for_orchestrator(raised("bad", "x"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(start("good"), None).await.expect("enqueue");
    let (item, token, attempts) = turn(p, LOCK).await;
    assert_eq!((item.instance.as_str(), attempts), ("bad", 1));
    let error = item.history_error.expect("reported");
    assert!(error.contains("missing chunk"), "{error}");
    let (item, _, _) = turn(p, LOCK).await;
    assert_eq!(item.instance, "good");
    p.abandon_orchestration_item(&token, None, false)
        .await
        .expect("abandon");
    let (item, token, attempts) = turn(p, LOCK).await;
    assert_eq!((item.instance.as_str(), attempts), ("bad", 2));
    // As the runtime ends it: with a failure that needs no reading.
    let failed = Ack {
        events: vec![scheduled("bad", 99999)],
        metadata: ending("Failed"),
        ..Ack::default()
    };
    ack(p, &token, failed).await.expect("append-only");
}

/// Messages that come before their instance was started wait for it, and are in nobody's way.
#[tokio::test]
async fn messages_for_an_instance_never_started_wait_without_blocking() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let p = &*provider;
    p.enqueue_for_orchestrator(raised("early", "x"), None)
        .await
        .expect("enqueue");
    p.enqueue_for_orchestrator(start("other"), None).await.expect("enqueue");
    let (item, token, _) = turn(p, LOCK).await;
    assert_eq!(item.instance, "other");
    let first = Ack {
        events: vec![started("other")],
        metadata: named(),
        ..Ack::default()
    };
    ack(p, &token, first).await.expect("ack");
    for _ in 0..3 {
        assert!(
            p.fetch_orchestration_item(LOCK, NOW, None)
                .await
                .expect("fetch")
                .is_none()
        );
    }
    p.enqueue_for_orchestrator(start("early"), None).await.expect("enqueue");
    let (item, _, attempts) = turn(p, LOCK).await;
    assert_eq!(item.messages, vec![raised("early", "x"), start("early")]);
    assert_eq!(attempts, 1);
}
