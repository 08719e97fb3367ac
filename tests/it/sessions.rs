//! Sessions: each has its turn, and is found by whoever may serve it, however many there are.

use std::time::Duration;

use duroxide::providers::{Provider, SessionFetchConfig, TagFilter, WorkItem};

use crate::fixtures::{LOCK, routed_activity};
use crate::support::TestSchema;

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

/// Sessions stand in the order of their bytes, and databases have orders of their own.
#[tokio::test]
async fn sessions_are_found_whatever_the_order_of_the_database() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    let me = owner("me");
    for (id, session) in ["alice", "Bob", "álvaro", "_", "Zoë", "bob"].into_iter().enumerate() {
        let item = routed_activity("i", id as u64, None, Some(session));
        provider.enqueue_for_worker(item.clone()).await.expect("enqueue");
        assert_eq!(fetch(provider, &me).await, item, "{session}");
    }
}

const FETCH: &str = "select count(lease), max(next_ms) from fetch_work_item(60000, '{\"\"}', 'me', 60000, false, '{}', '{}', null, $1, null, false)";

/// What a fetch costs does not depend on how many sessions its owner holds, or others do.
#[tokio::test]
async fn a_fetch_visits_few_of_many_sessions() {
    let schema = TestSchema::new();
    drop(schema.provider().await);
    let mut client = schema.client().await;
    client
        .batch_execute(
            "insert into sessions (session_id, owner_id, locked_until, last_activity_at) \
             select '#' || owner || n, owner, now() + interval '1 hour', now() \
               from generate_series(1, 5000) as n, (values ('me'), ('you')) as o (owner); \
             insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select 'i', 1, n, now(), '', '', '{}' from generate_series(1, 5000) as n; \
             insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select 'i', 2, n, now(), '', '#you' || n, '{}' from generate_series(1, 5000) as n; \
             analyze sessions, worker_queue",
        )
        .await
        .expect("sessions");
    for (adds_work, limit) in [(false, 1), (true, 1), (false, 64)] {
        if adds_work {
            client
                .batch_execute(
                    "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
                     select 'i', 3, n, now(), '', '#me' || n, '{}' from generate_series(1, 5000) as n; \
                     analyze worker_queue",
                )
                .await
                .expect("work");
        }
        let transaction = client.transaction().await.expect("begin");
        let claimed: i64 = transaction.query_one(FETCH, &[&limit]).await.expect("fetch").get(0);
        assert_eq!(claimed, i64::from(limit));
        let visited: i64 = transaction
            .query_one(
                "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + (select sum(pg_stat_get_xact_tuples_returned(indexrelid)) \
                                                                            from pg_index where indrelid = relid))::bigint \
                   from pg_stat_xact_user_tables where schemaname = $1 and relname in ('sessions', 'worker_queue')",
                &[&schema.name],
            )
            .await
            .expect("statistics")
            .get(0);
        assert!(
            visited < 1000 + 100 * i64::from(limit),
            "{visited} rows and entries for {limit}"
        );
        transaction.commit().await.expect("commit");
    }
}

/// Who waits for a session is told when its next item is due.
#[tokio::test]
async fn a_fetch_tells_when_an_item_of_a_session_is_due() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    let me = owner("me");
    let item = routed_activity("i", 1, None, Some("s"));
    provider.enqueue_for_worker(item).await.expect("enqueue");
    let fetched = provider.fetch_work_item(LOCK, Duration::ZERO, Some(&me), &TagFilter::DefaultOnly);
    let (_, token, _) = fetched.await.expect("fetch").expect("an activity");
    let client = schema.client().await;
    // Less than the second after which whoever waits for sessions looks again in any case.
    let later = Duration::from_millis(700);
    provider
        .abandon_work_item(&token, Some(later), true)
        .await
        .expect("abandon");
    for _ in 0..10 {
        let row = client.query_one(FETCH, &[&1]).await.expect("fetch");
        let (claimed, next_ms): (i64, Option<i64>) = (row.get(0), row.get(1));
        if claimed == 0 {
            let next_ms = next_ms.expect("when it is due");
            assert!((1..=700).contains(&next_ms), "{next_ms}");
            return;
        }
        // This machine was slow, and it is due already.
        let delay = "update worker_queue set lease = null, available_at = clock_timestamp() + interval '700 ms'";
        client.execute(delay, &[]).await.expect("delay");
    }
    panic!("always due already");
}
