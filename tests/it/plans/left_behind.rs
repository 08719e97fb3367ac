//! What was claimed stays in the index of the queue until a vacuum: whoever looks often begins behind it, and misses nothing.

use std::time::{Duration, Instant};

use duroxide::providers::{Provider, TagFilter};
use uuid::Uuid;

use super::{Explained, json, number};
use crate::fixtures::{LOCK, activity};
use crate::support::TestSchema;

const FETCH: &str = "select lease, instance_id, due_ms, next_ms \
     from fetch_work_item(30000, array[''], null, 0, false, '{}', '{}', $1, $2, null, false)";

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
        for from in [Some(time_ms(&client, 250).await), None] {
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

#[tokio::test]
async fn a_look_that_begins_at_the_head_and_finds_nothing_looks_at_all() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let found = async |limit: i32| -> Vec<(Option<String>, Option<i64>)> {
        let from = Some(time_ms(&client, 250).await);
        let rows = client.query(FETCH, &[&from, &limit]).await.expect("a look");
        let claimed = |row: &tokio_postgres::Row| row.get::<_, Option<Uuid>>("lease").and(row.get("instance_id"));
        rows.iter().map(|row| (claimed(row), row.get("next_ms"))).collect()
    };
    for limit in [1, 8] {
        add(&client, "late", 60_000).await;
        let one = found(limit).await;
        assert_eq!(one[0].0.as_deref(), Some("late"));

        // As long as there are others it can wait; but not long.
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("an empty queue");
        add(&client, "late", 60_000).await;
        add(&client, "new", 0).await;
        let two = found(limit).await;
        assert_eq!(two[0].0.as_deref(), Some("new"));
        match two.as_slice() {
            [_] if limit == 1 => {}
            [_, (None, Some(next))] => assert!((0..=1000).contains(next), "{next} ms"),
            _ => panic!("{two:?}"),
        }
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("an empty queue");
    }
    // Nothing at all: then it is known when there will be.
    let leased = "insert into worker_queue (instance_id, execution_id, activity_id, available_at, lease, tag, session_id, work_item) \
         values ('leased', 1, 1, clock_timestamp() + interval '1 hour', gen_random_uuid(), '', '', '{}')";
    client.batch_execute(leased).await.expect("a leased activity");
    let nothing = found(8).await;
    assert!(
        matches!(nothing.as_slice(), [(None, Some(next))] if *next > 3_500_000),
        "{nothing:?}"
    );
}

/// Looks of a provider that has just looked begin at the head, and what turns up behind it has its turn all the same.
#[tokio::test]
async fn what_turns_up_behind_the_head_is_passed_over_for_a_second_at_most() {
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
            assert!(since.elapsed() < Duration::from_secs(20), "{late} is passed over");
        }
        client
            .batch_execute("delete from worker_queue")
            .await
            .expect("an empty queue");
    }
    assert!(was_passed_over, "no look began at the head");
}
