//! Turns: ack, renew, fetch and takeover.

use duroxide::providers::{Provider, TagFilter};

use super::{MAILBOX, Stage, WORKER_ROWS, assert_lost};
use crate::fixtures::{Ack, LOCK, NOW, ack, activity, named, raised, scheduled, start, started, turn, work};

fn first_ack(instance: &str) -> Ack {
    Ack {
        events: vec![started(instance), scheduled(instance, 2)],
        activities: vec![activity(instance, 2)],
        messages: vec![raised("another", "x")],
        metadata: named(),
        ..Ack::default()
    }
}

/// Where many go together, and nobody has touched their mailboxes.
#[tokio::test]
async fn leases_that_end_while_many_acks_wait_have_ended() {
    let stage = Stage::new().await;
    let leased = "insert into mailboxes (instance_id, available_at, lease, claimed_ids, claimed_until) \
                  select i, clock_timestamp() + interval '300 ms', gen_random_uuid(), '{}', clock_timestamp() \
                    from unnest(array['i', 'j']) as i";
    stage.observer.batch_execute(leased).await.expect("leases");
    // The last of them.
    stage.hold(MAILBOX, "j").await;
    let client = stage.schema.client().await;
    let acks = format!(
        "select done \
           from (select array_agg(instance_id) as i, array_agg(lease) as l from mailboxes) as m, \
                {}.ack_orchestration_items(m.i, m.l, m.l, '{{1,1}}', '{{null,null}}', '{{null,null}}', '{{null,null}}', '{{null,null}}', \
                  '{{null,null}}', '{{null,null}}', '{{f,f}}', '{{null,null}}', '{{f,f}}', '{{null,null}}', '{{1,1}}', '{{1,1}}', \
                  '{{1,2}}', '{{1,1}}', '{{e,e}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', \
                  '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}')",
        stage.schema.name
    );
    let acks = stage.waiting(1, async move { client.query(&acks, &[]).await }).await;
    stage
        .until("select bool_and(available_at < clock_timestamp()) from mailboxes")
        .await;
    stage.let_go().await;
    let done = acks.await.expect("task").expect("acks");
    assert_eq!(done.iter().map(|row| row.get(0)).collect::<Vec<bool>>(), [false, false]);
    assert_eq!(stage.count("select count(*) from history").await, 0);
}

/// The ack waits for the mailbox; meanwhile its lease expires and somebody else takes the instance over.
#[tokio::test]
async fn an_ack_that_waited_past_a_takeover_commits_nothing() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(MAILBOX, "i").await;
    let provider = stage.provider();
    let late = stage
        .waiting(1, async move { ack(&*provider, &token, first_ack("i")).await })
        .await;
    // The takeover, by the holder of the lock itself: as fetch does it.
    stage
        .holder
        .execute(
            "update mailboxes set lease = gen_random_uuid(), available_at = clock_timestamp() + interval '1 min' \
              where instance_id = 'i'",
            &[],
        )
        .await
        .expect("takeover");
    stage.let_go().await;
    assert_lost(late.await.expect("task"));
    assert_eq!(
        stage
            .count("select (select count(*) from history) + (select count(*) from worker_queue) + (select count(*) from instances)")
            .await,
        0
    );
    assert_eq!(
        stage
            .count("select count(*) from orchestrator_queue where instance_id = 'another'")
            .await,
        0
    );
    // It had announced a message that never came: one look, and its target is forgotten.
    let fetched = stage.provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(fetched.expect("fetch").is_none());
    assert_eq!(
        stage
            .count("select count(*) from mailboxes where instance_id = 'another'")
            .await,
        0
    );
}

#[tokio::test]
async fn an_ack_whose_lease_expires_while_it_waits_commits_nothing() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(MAILBOX, "i").await;
    let provider = stage.provider();
    let late = stage
        .waiting(1, async move { ack(&*provider, &token, first_ack("i")).await })
        .await;
    stage.expire_turn("i").await;
    stage.let_go().await;
    assert_lost(late.await.expect("task"));
    assert_eq!(stage.count("select count(*) from history").await, 0);
    let (item, _, attempts) = turn(&*stage.provider, LOCK).await;
    assert_eq!((item.messages.len(), attempts), (1, 2));
}

#[tokio::test]
async fn of_two_acks_with_one_token_one_commits() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*stage.provider, LOCK).await;

    stage.hold(MAILBOX, "i").await;
    let mut acks = Vec::new();
    for waiters in 1..=2 {
        let (provider, token) = (stage.provider(), token.clone());
        acks.push(
            stage
                .waiting(waiters, async move { ack(&*provider, &token, first_ack("i")).await })
                .await,
        );
    }
    stage.let_go().await;
    let mut committed = 0;
    for ack in acks {
        match ack.await.expect("task") {
            Ok(()) => committed += 1,
            lost => assert_lost(lost),
        }
    }
    assert_eq!(committed, 1);
    assert_eq!(stage.count("select count(*) from history").await, 2);
    assert_eq!(stage.count("select count(*) from worker_queue").await, 1);
}

#[tokio::test]
async fn a_renewal_does_not_revive_a_lease_that_expired_while_it_waited() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    stage
        .provider
        .enqueue_for_worker(activity("i", 1))
        .await
        .expect("enqueue");
    let (_, turn_token, _) = turn(&*stage.provider, LOCK).await;
    let (_, work_token, _) = work(&*stage.provider, LOCK).await;

    stage.hold(MAILBOX, "i").await;
    let provider = stage.provider();
    let renewal = stage
        .waiting(1, async move {
            provider.renew_orchestration_item_lock(&turn_token, LOCK).await
        })
        .await;
    stage.expire_turn("i").await;
    stage.let_go().await;
    assert_lost(renewal.await.expect("task"));

    stage.hold(WORKER_ROWS, "i").await;
    let provider = stage.provider();
    let renewal = stage
        .waiting(1, async move { provider.renew_work_item_lock(&work_token, LOCK).await })
        .await;
    stage.expire_activity("i").await;
    stage.let_go().await;
    assert_lost(renewal.await.expect("task"));
    // Both are anybody's again.
    turn(&*stage.provider, LOCK).await;
    work(&*stage.provider, LOCK).await;
}

/// A renewal under way holds the row: a fetch neither waits for it nor takes the instance, though the lease is over.
#[tokio::test]
async fn a_fetch_passes_over_what_a_renewal_holds() {
    let stage = Stage::new().await;
    stage
        .provider
        .enqueue_for_orchestrator(start("held"), None)
        .await
        .expect("enqueue");
    stage
        .provider
        .enqueue_for_worker(activity("held", 1))
        .await
        .expect("enqueue");
    stage.hold(MAILBOX, "held").await;
    stage.holder.query(WORKER_ROWS, &[&"held"]).await.expect("hold");
    stage
        .provider
        .enqueue_for_orchestrator(start("free"), None)
        .await
        .expect("enqueue");
    stage
        .provider
        .enqueue_for_worker(activity("free", 1))
        .await
        .expect("enqueue");

    let (item, _, _) = turn(&*stage.provider, LOCK).await;
    assert_eq!(item.instance, "free");
    let nothing = stage
        .provider
        .fetch_orchestration_item(LOCK, NOW, None)
        .await
        .expect("fetch");
    assert!(nothing.is_none());
    let (item, _, _) = work(&*stage.provider, LOCK).await;
    assert!(format!("{item:?}").contains("free"));
    let nothing = stage
        .provider
        .fetch_work_item(LOCK, NOW, None, &TagFilter::Any)
        .await
        .expect("fetch");
    assert!(nothing.is_none());
    stage.let_go().await;
    assert_eq!(turn(&*stage.provider, LOCK).await.0.instance, "held");
}

#[tokio::test]
async fn a_renewal_after_an_ack_or_abandon_it_waited_for_fails() {
    let stage = Stage::new().await;
    for end in ["ack", "abandon"] {
        stage
            .provider
            .enqueue_for_orchestrator(start(end), None)
            .await
            .expect("enqueue");
        let (item, token, _) = turn(&*stage.provider, LOCK).await;
        assert_eq!(item.instance, end);
        stage.hold(MAILBOX, end).await;
        let (provider, ended) = (stage.provider(), token.clone());
        // Row locks are granted in the order of asking: the end of the lease comes first.
        let ending = stage
            .waiting(1, async move {
                if end == "ack" {
                    ack(&*provider, &ended, first_ack(end)).await
                } else {
                    provider.abandon_orchestration_item(&ended, Some(LOCK), false).await
                }
            })
            .await;
        let provider = stage.provider();
        let renewal = stage
            .waiting(
                2,
                async move { provider.renew_orchestration_item_lock(&token, LOCK).await },
            )
            .await;
        stage.let_go().await;
        ending.await.expect("task").expect("the lease ends");
        assert_lost(renewal.await.expect("task"));
    }
}

#[tokio::test]
async fn two_fetches_of_one_instance_grant_one_lease() {
    let stage = Stage::new().await;
    for round in 0..20 {
        let instance = format!("i{round}");
        stage
            .provider
            .enqueue_for_orchestrator(start(&instance), None)
            .await
            .expect("enqueue");
        let fetches: Vec<_> = (0..8)
            .map(|_| {
                let provider = stage.provider();
                tokio::spawn(async move { provider.fetch_orchestration_item(LOCK, NOW, None).await })
            })
            .collect();
        let mut granted = 0;
        for fetch in fetches {
            granted += usize::from(fetch.await.expect("task").expect("fetch").is_some());
        }
        assert_eq!(granted, 1);
    }
}

/// Functions refuse the isolation levels under which the protocol would not hold.
#[tokio::test]
async fn other_isolation_levels_are_refused() {
    let stage = Stage::new().await;
    stage
        .holder
        .batch_execute("begin isolation level repeatable read")
        .await
        .expect("begin");
    let error = stage
        .holder
        .query(
            "select * from fetch_orchestration_item(1000, 0, 1, 1, null, false)",
            &[],
        )
        .await
        .expect_err("refused");
    assert_eq!(error.code().map(|code| code.code()), Some("DX007"));
}
