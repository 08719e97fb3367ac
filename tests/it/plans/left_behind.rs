//! What was claimed stays in the index of the queue until a vacuum: whoever looks often begins behind it, and misses nothing.

use std::time::{Duration, Instant};

use duroxide::providers::{Provider, TagFilter};

use super::{Explained, json, number};
use crate::fixtures::{LOCK, activity};
use crate::support::TestSchema;

const FETCH: &str = "select lease, instance_id, due_ms, next_ms \
     from fetch_work_item(3600000, array[''], null, 0, false, '{}', '{}', $1, $2, null, false)";

/// A new activity that has been due for so long.
const ADD: &str = "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
     values ($1, 1, 1, clock_timestamp() - $2::bigint * interval '1 ms', '', '', $3)";

async fn add(client: &tokio_postgres::Client, instance: &str, due_for_ms: i64) {
    let item = json(&activity(instance, 1));
    (client.execute(ADD, &[&instance, &due_for_ms, &item]).await).expect("an activity");
}

/// The server's clock, before so much.
async fn time_ms(client: &tokio_postgres::Client, before_ms: i64) -> i64 {
    let now = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint - $1";
    client.query_one(now, &[&before_ms]).await.expect("time").get(0)
}

/// It looks from the head of the queue, and then at all: what it has claimed is due again at once.
#[tokio::test]
async fn nothing_is_claimed_twice_by_one_look() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let fetch = "select instance_id from fetch_work_item(0, array[''], null, 0, false, '{}', '{}', $1, 10, null, $2) where lease is not null";
    for (round, care) in [(1, false), (2, true)] {
        for name in ["a", "b", "c"] {
            add(&client, &format!("{name}{round}"), 0).await;
        }
        let from = Some(time_ms(&client, 10_000).await);
        let rows = client.query(fetch, &[&from, &care]).await.expect("a look");
        let mut found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        found.sort();
        assert_eq!(found, ["a", "b", "c"].map(|name| format!("{name}{round}")));
        let attempts = "select max(attempt_count) from worker_queue";
        assert_eq!(
            client
                .query_one(attempts, &[])
                .await
                .expect("attempts")
                .get::<_, i32>(0),
            1
        );
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("the next round");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_need_not_pass_what_was_claimed_before() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "alter table worker_queue set (autovacuum_enabled = off); \
             insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select 'gone', 1, n, now() - interval '1 minute' + n * interval '1 ms', '', '', '{}' from generate_series(1, 30000) as n; \
             delete from worker_queue",
        )
        .await
        .expect("a busy minute");
    let explained = Explained::new(&schema).await;
    for (limit, round) in [(1, "a"), (1, "b"), (8, "c"), (8, "d")] {
        for number in 0..limit {
            add(&client, &format!("{round}{number}"), 0).await;
        }
        let mut pages = Vec::new();
        for from in [Some(time_ms(&client, 10_000).await), None] {
            let transaction = explained.client.batch_execute("begin").await;
            transaction.expect("begin");
            let plans = explained.plans(FETCH, FETCH, &[&from, &limit]).await;
            explained.client.batch_execute("rollback").await.expect("rollback");
            let touched = plans.iter().map(|plan| number(&plan["Plan"], "Shared Hit Blocks"));
            pages.push(touched.sum::<f64>());
        }
        let (from_head, from_start) = (pages[0], pages[1]);
        assert!(
            from_head + 100.0 < from_start,
            "{from_head} pages instead of {from_start} for {limit}"
        );
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("the next round");
    }
}

/// What a look finds that begins at the head, by instance.
async fn found(
    client: &tokio_postgres::Client,
    tags: Option<&[&str]>,
    owner: Option<&str>,
    limit: i32,
    care: bool,
) -> Vec<String> {
    let fetch = "select instance_id from fetch_work_item(3600000, $1, $2, 3600000, false, '{}', '{}', $3, $4, null, $5) where lease is not null";
    let from = Some(time_ms(client, 10_000).await);
    let rows = client
        .query(fetch, &[&tags, &owner, &from, &limit, &care])
        .await
        .expect("a look");
    client
        .batch_execute("delete from worker_queue")
        .await
        .expect("an empty queue");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Enough at the head is all it takes; where that is too little, it looks at all, whatever it is about.
#[tokio::test]
async fn a_look_that_begins_at_the_head_and_finds_too_little_looks_at_all() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = &schema.client().await;
    let one: &[&str] = &[""];
    let two: &[&str] = &["", "#other"];
    for tags in [Some(one), Some(two), None] {
        for (owner, care) in [(None, false), (Some("me"), false), (Some("me"), true)] {
            for limit in [1, 8] {
                let with_session = owner.is_some() && limit > 1;
                add(client, "late", 60_000).await;
                assert_eq!(found(client, tags, owner, limit, care).await, ["late"]);

                add(client, "late", 60_000).await;
                add(client, "new", 0).await;
                if with_session {
                    add(client, "of a session", 60_000).await;
                    let session = "update worker_queue set session_id = '#s' where instance_id = 'of a session'";
                    client.batch_execute(session).await.expect("a session");
                }
                let mut all = found(client, tags, owner, limit, care).await;
                all.sort_unstable();
                match limit {
                    1 => assert_eq!(all, ["new"]),
                    _ if with_session => assert_eq!(all, ["late", "new", "of a session"]),
                    _ => assert_eq!(all, ["late", "new"]),
                }
            }
        }
    }
    let forever = "insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
         select 'forever', 1, n, '-infinity', '', '', '{}' from generate_series(1, 8) as n";
    for limit in [1, 8] {
        client.batch_execute(forever).await.expect("set by hand");
        assert_eq!(found(client, Some(one), None, limit, false).await.len(), limit as usize);
    }
}

/// Also those who share a look, and do not wait.
#[tokio::test]
async fn nobody_is_told_that_there_is_nothing_while_there_is_something_behind_the_head() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    let client = schema.client().await;
    let fetch = || provider.fetch_work_item(LOCK, Duration::ZERO, None, &TagFilter::DefaultOnly);
    for round in 0..5 {
        add(&client, &format!("first-{round}"), 0).await;
        assert!(fetch().await.expect("fetch").is_some());
        add(&client, &format!("late-{round}"), 60_000).await;
        add(&client, &format!("new-{round}"), 0).await;
        let (one, other) = tokio::join!(fetch(), fetch());
        assert!(one.expect("fetch").is_some() && other.expect("fetch").is_some());
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("an empty queue");
    }
}

/// Looks of a provider that has just looked begin at the head, and what turns up behind it has its turn all the same.
#[tokio::test]
async fn what_turns_up_behind_the_head_has_its_turn() {
    let schema = TestSchema::new();
    let provider = &*schema.provider().await;
    let client = schema.client().await;
    let fetch = async || {
        let fetched = provider.fetch_work_item(LOCK, Duration::ZERO, None, &TagFilter::DefaultOnly);
        let (item, _, _) = fetched.await.expect("fetch").expect("an activity");
        item
    };
    let mut was_passed_over = false;
    for round in 0..3 {
        add(&client, &format!("first-{round}"), 0).await;
        fetch().await;
        let late = format!("late-{round}");
        add(&client, &late, 60_000).await;
        let since = Instant::now();
        for number in 0.. {
            add(&client, &format!("new-{round}-{number}"), 0).await;
            if fetch().await == activity(&late, 1) {
                break;
            }
            was_passed_over = true;
            assert!(since.elapsed() < Duration::from_secs(5), "{late} is passed over");
        }
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("an empty queue");
    }
    assert!(was_passed_over, "no look began at the head");
}
