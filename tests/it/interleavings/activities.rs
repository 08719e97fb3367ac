//! Activities and sessions.

use duroxide::providers::{Provider, ScheduledActivityIdentifier, SessionFetchConfig, TagFilter};

use super::{Stage, WORKER_ROWS, assert_lost};
use crate::fixtures::{LOCK, NOW, activity, completed, create, ending, raised, routed_activity, turn, work};

#[tokio::test]
async fn a_worker_renewal_after_an_ack_or_abandon_it_waited_for_fails() {
    let stage = Stage::new().await;
    for end in ["ack", "abandon"] {
        stage
            .provider
            .enqueue_for_worker(activity(end, 1))
            .await
            .expect("enqueue");
        let (_, token, _) = work(&*stage.provider, LOCK).await;
        stage.hold(WORKER_ROWS, end).await;
        let (provider, ended) = (stage.provider(), token.clone());
        let ending = stage
            .waiting(1, async move {
                if end == "ack" {
                    provider.ack_work_item(&ended, Some(completed(end, 1))).await
                } else {
                    provider.abandon_work_item(&ended, Some(LOCK), false).await
                }
            })
            .await;
        let provider = stage.provider();
        let renewal = stage
            .waiting(2, async move { provider.renew_work_item_lock(&token, LOCK).await })
            .await;
        stage.let_go().await;
        ending.await.expect("task").expect("the lease ends");
        assert_lost(renewal.await.expect("task"));
    }
    assert_eq!(stage.count("select count(*) from orchestrator_queue").await, 1);
}

#[tokio::test]
async fn an_activity_ack_whose_lease_expires_while_it_waits_delivers_nothing() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_worker(activity("i", 1))
        .await
        .expect("enqueue");
    let (_, token, _) = work(&*stage.provider, LOCK).await;
    stage.hold(WORKER_ROWS, "i").await;
    let provider = stage.provider();
    let late = stage
        .waiting(1, async move {
            provider.ack_work_item(&token, Some(completed("i", 1))).await
        })
        .await;
    stage.expire_activity("i").await;
    stage.let_go().await;
    assert_lost(late.await.expect("task"));
    assert_eq!(stage.count("select count(*) from orchestrator_queue").await, 0);
    let (_, _, attempts) = work(&*stage.provider, LOCK).await;
    assert_eq!(attempts, 2);
}

/// A turn cancels an activity while its worker acks it: whoever comes second finds nothing.
#[tokio::test]
async fn a_cancellation_wins_over_the_activity_ack_behind_it() {
    let stage = Stage::new().await;
    create(&*stage.provider, "i").await;
    stage
        .provider
        .enqueue_for_worker(activity("i", 7))
        .await
        .expect("enqueue");
    let (_, work_token, _) = work(&*stage.provider, LOCK).await;
    stage
        .provider
        .enqueue_for_orchestrator(raised("i", "x"), None)
        .await
        .expect("enqueue");
    let (_, turn_token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(WORKER_ROWS, "i").await;
    let provider = stage.provider();
    let cancelling = stage
        .waiting(1, async move {
            provider
                .ack_orchestration_item(
                    &turn_token,
                    1,
                    vec![],
                    vec![],
                    vec![],
                    ending("Completed"),
                    vec![ScheduledActivityIdentifier {
                        instance: "i".to_string(),
                        execution_id: 1,
                        activity_id: 7,
                    }],
                )
                .await
        })
        .await;
    let provider = stage.provider();
    let acking = stage
        .waiting(2, async move {
            provider.ack_work_item(&work_token, Some(completed("i", 7))).await
        })
        .await;
    stage.let_go().await;
    cancelling.await.expect("task").expect("the turn commits");
    assert_lost(acking.await.expect("task"));
    assert_eq!(stage.count("select count(*) from worker_queue").await, 0);
    assert_eq!(stage.count("select count(*) from orchestrator_queue").await, 0);
}

/// A lease renewed while a cancellation waits for its row is no way out.
#[tokio::test]
async fn a_cancellation_finds_an_activity_that_was_renewed_meanwhile() {
    let stage = Stage::new().await;
    create(&*stage.provider, "i").await;
    let enqueued = stage.provider.enqueue_for_worker(activity("i", 7)).await;
    enqueued.expect("enqueue");
    work(&*stage.provider, LOCK).await;
    let enqueued = stage.provider.enqueue_for_orchestrator(raised("i", "x"), None).await;
    enqueued.expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(WORKER_ROWS, "i").await;
    let renewed = "update worker_queue set available_at = available_at + interval '1 hour'";
    stage.holder.batch_execute(renewed).await.expect("renewed");
    let provider = stage.provider();
    let cancelled = vec![ScheduledActivityIdentifier {
        instance: "i".to_string(),
        execution_id: 1,
        activity_id: 7,
    }];
    let cancelling = stage
        .waiting(1, async move {
            let end = ending("Completed");
            provider
                .ack_orchestration_item(&token, 1, vec![], vec![], vec![], end, cancelled)
                .await
        })
        .await;
    stage.let_go().await;
    cancelling.await.expect("task").expect("the turn commits");
    assert_eq!(stage.count("select count(*) from worker_queue").await, 0);
}

/// Also where many go together, and nobody has touched their rows.
#[tokio::test]
async fn leases_that_end_while_many_acks_wait_have_ended() {
    let stage = Stage::new().await;
    let leased = "insert into worker_queue (instance_id, execution_id, activity_id, available_at, lease, tag, session_id, work_item) \
                  select 'i' || n, 1, n, clock_timestamp() + interval '300 ms', gen_random_uuid(), '', '', '{}' \
                    from generate_series(1, 8) as n";
    stage.observer.batch_execute(leased).await.expect("leases");
    // The last of them.
    stage.hold(WORKER_ROWS, "i8").await;
    let client = stage.schema.client().await;
    let acks = format!(
        "select array_to_string(done, ' ') \
           from (select array_agg(instance_id) as i, array_agg(execution_id) as e, array_agg(activity_id) as a, \
                        array_agg(id) as n, array_agg(lease) as l, array_agg(work_item) as w \
                   from worker_queue) as w, \
                {}.ack_work_items(w.i, w.e, w.a, w.n, w.l, w.i, w.w)",
        stage.schema.name
    );
    let acks = stage
        .waiting(1, async move { client.query_one(&acks, &[]).await })
        .await;
    stage
        .until("select bool_and(available_at < clock_timestamp()) from worker_queue")
        .await;
    stage.let_go().await;
    let done: String = acks.await.expect("task").expect("acks").get(0);
    assert_eq!(done, ["f"; 8].join(" "));
    assert_eq!(stage.count("select count(*) from worker_queue").await, 8);
    assert_eq!(stage.count("select count(*) from orchestrator_queue").await, 0);
}

/// Two workers claim the first activities of one session at once: one gets the session, the other nothing of it.
#[tokio::test]
async fn a_session_is_claimed_once() {
    let stage = Stage::new().await;
    for round in 0..10 {
        for id in 0..8 {
            let item = routed_activity(&format!("i{round}"), id, None, Some(&format!("s{round}")));
            stage.provider.enqueue_for_worker(item).await.expect("enqueue");
        }
        let fetches: Vec<_> = (0..8)
            .map(|worker| {
                let provider = stage.provider();
                tokio::spawn(async move {
                    let session = SessionFetchConfig {
                        owner_id: format!("worker-{worker}"),
                        lock_timeout: LOCK,
                    };
                    let found = provider
                        .fetch_work_item(LOCK, NOW, Some(&session), &TagFilter::DefaultOnly)
                        .await
                        .expect("fetch");
                    found.map(|_| worker)
                })
            })
            .collect();
        let mut owners = Vec::new();
        for fetch in fetches {
            owners.extend(fetch.await.expect("task"));
        }
        assert_eq!(owners.len(), 1, "{owners:?}");
        stage
            .holder
            .batch_execute("delete from worker_queue")
            .await
            .expect("next round");
    }
}

/// Acks of many take sessions in the order that renewals take them in, whatever the order of the database: a renewal that
/// died in a deadlock would cost its owner all its sessions.
#[tokio::test]
async fn acks_take_sessions_in_the_order_of_renewals() {
    let stage = Stage::new().await;
    let session = SessionFetchConfig {
        owner_id: "me".to_string(),
        lock_timeout: LOCK,
    };
    let mut tokens = Vec::new();
    for (id, name) in [(1, "a"), (2, "B")] {
        let item = routed_activity("i", id, None, Some(name));
        stage.provider.enqueue_for_worker(item).await.expect("enqueue");
        let fetched = stage
            .provider
            .fetch_work_item(LOCK, NOW, Some(&session), &TagFilter::DefaultOnly)
            .await;
        tokens.push(fetched.expect("fetch").expect("an activity").1);
    }
    // The first in the order of bytes.
    stage
        .hold("select from sessions where session_id = $1 for update", "#B")
        .await;
    let acks = tokens.into_iter().map(|token| {
        let provider = stage.provider();
        async move { provider.ack_work_item(&token, None).await }
    });
    let acking = stage.waiting(1, futures_util::future::join_all(acks)).await;
    // The other is not held by whoever waits for the first.
    stage
        .observer
        .query("select from sessions where session_id = '#a' for update nowait", &[])
        .await
        .expect("not locked");
    stage.let_go().await;
    for result in acking.await.expect("task") {
        result.expect("ack");
    }
}
