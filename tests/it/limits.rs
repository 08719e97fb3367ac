//! More than a turn, a lock table or a visit can take.

use std::time::Duration;

use duroxide::providers::{Provider, SessionFetchConfig, TagFilter, WorkItem};

use crate::fixtures::{Ack, LOCK, NOW, ack, create, named, raised, routed_activity, start, started, turn};
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
            "select enqueue_for_orchestrator(array_agg('i'::text), array_agg($1::text::\"char\"), array_agg($2::text), \
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

/// Each with an activity that is due.
async fn sessions_of_others(schema: &TestSchema, count: i64) {
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select 'i', 1, n, now(), '', '#foreign-' || n, '{{}}' from generate_series(1, {count}) as n; \
             insert into sessions (session_id, owner_id, locked_until, last_activity_at) \
             select '#foreign-' || n, 'other', now() + interval '1 hour', now() from generate_series(1, {count}) as n",
        ))
        .await
        .expect("sessions of others");
}

fn owner(id: &str) -> SessionFetchConfig {
    SessionFetchConfig {
        owner_id: id.to_string(),
        lock_timeout: LOCK,
    }
}

/// Activities without a session.
async fn other_work(provider: &dyn Provider, count: u64) {
    for id in 0..count {
        let item = routed_activity("i", 2000 + id, None, None);
        provider.enqueue_for_worker(item).await.expect("enqueue");
    }
}

async fn fetch(provider: &dyn Provider, owner: &SessionFetchConfig) -> WorkItem {
    let fetched = provider.fetch_work_item(LOCK, Duration::ZERO, Some(owner), &TagFilter::DefaultOnly);
    fetched.await.expect("fetch").expect("an activity").0
}

/// Sessions of others, however many, do not hide a free one.
#[tokio::test]
async fn every_session_has_its_turn() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    sessions_of_others(&schema, 700).await;
    for (tag, session) in [(None, "zzz"), (Some("t"), "aaa"), (Some("t"), "zzz-2")] {
        provider
            .enqueue_for_worker(routed_activity("i", 1000, tag, Some(session)))
            .await
            .expect("enqueue");
    }
    let me = owner("me");
    for _ in 0..3 {
        provider
            .fetch_work_item(LOCK, Duration::from_secs(10), Some(&me), &TagFilter::default_and(["t"]))
            .await
            .expect("fetch")
            .expect("a free session");
    }
}

/// While there is other work a fetch visits few sessions, and the next one goes on from there.
#[tokio::test]
async fn a_free_session_has_its_turn_beside_other_work() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    sessions_of_others(&schema, 200).await;
    let free = routed_activity("i", 1000, None, Some("zzz"));
    provider.enqueue_for_worker(free.clone()).await.expect("enqueue");
    other_work(provider, 100).await;
    let me = owner("me");
    let mut before = 0;
    while fetch(provider, &me).await != free {
        before += 1;
    }
    assert!((1..=25).contains(&before), "{before} others came first");
}

/// However many sessions others have, and whoever else asks: what waits longest in a session comes first to its owner.
#[tokio::test]
async fn an_owner_need_not_look_for_its_sessions() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    let (me, you) = (owner("me"), owner("you"));
    let activity = |id| routed_activity("i", id, None, Some("mine"));
    provider.enqueue_for_worker(activity(1000)).await.expect("enqueue");
    assert_eq!(fetch(provider, &me).await, activity(1000));
    sessions_of_others(&schema, 47).await;
    for id in 1001..1004 {
        provider.enqueue_for_worker(activity(id)).await.expect("enqueue");
    }
    other_work(provider, 10).await;
    for id in 1001..1004 {
        assert_ne!(fetch(provider, &you).await, activity(id));
        assert_eq!(fetch(provider, &me).await, activity(id));
    }
}

/// Other work that somebody else is about to take does not keep a free session waiting.
#[tokio::test]
async fn a_free_session_is_found_behind_locked_work() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    sessions_of_others(&schema, 99).await;
    let free = routed_activity("i", 1000, None, Some("zzz"));
    provider.enqueue_for_worker(free.clone()).await.expect("enqueue");
    other_work(provider, 1).await;
    let mut somebody = schema.client().await;
    let transaction = somebody.transaction().await.expect("begin");
    let locked = transaction
        .execute("select from worker_queue where session_id = '' for update", &[])
        .await
        .expect("lock");
    assert_eq!(locked, 1);
    assert_eq!(fetch(provider, &owner("me")).await, free);
    transaction.rollback().await.expect("rollback");
}
