//! A request that cannot succeed fails alone, with its own error; those beside it succeed, once.

use duroxide::providers::Provider;

use super::{
    ACTIVITY_ACKS, CALLERS, MESSAGES, TURN_ACKS, Turn, World, ack_activity, ack_first, assert_permanent, instances,
    senders, sorted, together, together_after,
};
use crate::fixtures::{create, raised, start};

/// The instances whose requests are bad: both somewhere among the fifteen that share a call.
const DUPLICATE: usize = 4;
const LOST: usize = 9;

/// The number in the name of an instance.
fn number(turn: &Turn) -> usize {
    turn.instance[1..].parse().expect("a number")
}

#[tokio::test]
async fn bad_turn_acks_fail_alone() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let mut turns = world.turns(&names).await;
    turns.sort_by_key(number);
    // Somebody has written an event with the id that this turn wants to use.
    world
        .execute(
            "insert into history (instance_id, execution_id, event_id, event_data) values ($1, 1, 1, 'first')",
            &[&names[DUPLICATE]],
        )
        .await;
    world
        .execute(
            "update mailboxes set lease = gen_random_uuid() where instance_id = $1",
            &[&names[LOST]],
        )
        .await;

    let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
    let answers = together(&world, TURN_ACKS, acks).await;
    assert_permanent(&answers[DUPLICATE], "23505");
    assert_permanent(&answers[LOST], "DX001");
    let mut good = Vec::new();
    for (position, name) in names.into_iter().enumerate() {
        if position != DUPLICATE && position != LOST {
            answers[position].as_ref().expect("a good neighbour");
            good.push(name);
        }
    }
    assert_eq!(senders(&world).await, sorted(good));
    let events = "select count(*) from history where event_data <> 'first'";
    assert_eq!(world.number(events, &[]).await, CALLERS as i64 - 2);
}

/// An answer for each, not an error for all: nothing has to be sent again.
#[tokio::test]
async fn lost_leases_cost_their_neighbours_no_second_call() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let mut turns = world.turns(&names).await;
    turns.sort_by_key(number);
    let lost = "update mailboxes set available_at = clock_timestamp() where instance_id = $1";
    world.execute(lost, &[&names[LOST]]).await;
    let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
    let answers = together(&world, TURN_ACKS, acks).await;
    assert_permanent(&answers[LOST], "DX001");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), CALLERS - 1);
    assert_eq!(world.proxy.calls_of(TURN_ACKS), 2);
}

/// Few are ended one after the other: the whole call fails, and each goes again by itself.
#[tokio::test]
async fn an_expired_activity_ack_among_few_fails_alone() {
    const FEW: usize = 5;
    const EXPIRED: usize = 3;
    let world = World::new().await;
    let names = instances(FEW);
    let mut activities = world.activities(&names).await;
    activities.sort_by_key(number);
    let expired = "update worker_queue set available_at = clock_timestamp() where instance_id = $1";
    world.execute(expired, &[&names[EXPIRED]]).await;
    let acks = activities
        .into_iter()
        .map(|done| ack_activity(world.provider.clone(), done));
    let answers = together(&world, ACTIVITY_ACKS, acks).await;
    // The first, those behind it together, and each of those.
    assert_eq!(world.proxy.calls_of(ACTIVITY_ACKS), 1 + 1 + (FEW - 1));
    for (position, name) in names.iter().enumerate() {
        let left = "select (select count(*) from orchestrator_queue where instance_id = $1) * 10 \
                         + (select count(*) from worker_queue where instance_id = $1)";
        let left = world.number(left, &[name]).await;
        if position == EXPIRED {
            assert_permanent(&answers[position], "DX001");
            assert_eq!(left, 1, "{name}");
        } else {
            answers[position].as_ref().expect("a good neighbour");
            assert_eq!(left, 10, "{name}");
        }
    }
}

#[tokio::test]
async fn bad_activity_acks_fail_alone() {
    let world = World::new().await;
    let names = instances(CALLERS);
    let mut activities = world.activities(&names).await;
    activities.sort_by_key(number);
    let cancelled = "delete from worker_queue where instance_id = $1";
    world.execute(cancelled, &[&names[DUPLICATE]]).await;
    let taken_over = "update worker_queue set lease = gen_random_uuid() where instance_id = $1";
    world.execute(taken_over, &[&names[LOST]]).await;

    let acks = activities
        .into_iter()
        .map(|done| ack_activity(world.provider.clone(), done));
    let answers = together(&world, ACTIVITY_ACKS, acks).await;
    assert_eq!(world.proxy.calls_of(ACTIVITY_ACKS), 2);
    for (position, name) in names.iter().enumerate() {
        let completions = "select count(*) from orchestrator_queue where instance_id = $1";
        let delivered = world.number(completions, &[name]).await;
        if position == DUPLICATE || position == LOST {
            assert_permanent(&answers[position], "DX001");
            assert_eq!(delivered, 0, "{name}");
        } else {
            answers[position].as_ref().expect("a good neighbour");
            assert_eq!(delivered, 1, "{name}");
        }
    }
    assert_eq!(
        world.number("select count(*) from worker_queue", &[]).await,
        1,
        "taken over"
    );
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_fails_alone() {
    let world = World::new().await;
    world
        .admin
        .batch_execute("alter table orchestrator_queue add check (work_item not like '%unwelcome%')")
        .await
        .expect("check");
    let sent = (0..CALLERS).map(|position| {
        let provider = world.provider.clone();
        let message = match position {
            LOST => raised("i", "unwelcome"),
            _ => start(&format!("i{position}")),
        };
        async move { provider.enqueue_for_orchestrator(message, None).await }
    });
    let answers = together(&world, MESSAGES, sent.collect::<Vec<_>>()).await;
    for (position, answer) in answers.iter().enumerate() {
        match position {
            LOST => assert_permanent(answer, "23514"),
            _ => answer.as_ref().expect("a good neighbour").to_owned(),
        }
    }
    let each_once = "select count(distinct instance_id) * 1000 + count(*) from orchestrator_queue";
    assert_eq!(world.number(each_once, &[]).await, 15_015);
}

#[tokio::test]
async fn a_history_that_cannot_be_read_fails_alone() {
    let world = World::new().await;
    let names = instances(CALLERS);
    for name in &names {
        create(&*world.provider, name).await;
    }
    let corrupt = "update history set event_data = '{' where instance_id = $1";
    world.execute(corrupt, &[&names[LOST]]).await;
    let reads = names.iter().map(|name| {
        let (provider, name) = (world.provider.clone(), name.clone());
        async move { provider.read(&name).await.map(|events| assert_eq!(events.len(), 1)) }
    });
    let answers = together(&world, ".read(", reads.collect::<Vec<_>>()).await;
    assert_permanent(&answers[LOST], "event 1");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), CALLERS - 1);
}

/// Two calls for one lease that meet in the line: one commits, the other learns that the lease is gone.
#[tokio::test]
async fn of_two_acks_with_one_token_in_the_line_one_commits() {
    let world = World::new().await;
    let names = instances(3);
    let turns = world.turns(&names).await;
    let twice = [&turns[0], &turns[1], &turns[1], &turns[2], &turns[2]];
    let acks = twice.map(|turn| ack_first(world.provider.clone(), turn.clone()));
    let answers = together(&world, TURN_ACKS, acks).await;
    answers[0].as_ref().expect("alone");
    for pair in [&answers[1..3], &answers[3..5]] {
        pair[0].as_ref().expect("first come, first served");
        assert_permanent(&pair[1], "DX001");
    }
    assert_eq!(senders(&world).await, names);

    let activities = world.activities(&names).await;
    let twice = [&activities[0], &activities[1], &activities[1]];
    let acks = twice.map(|done| ack_activity(world.provider.clone(), done.clone()));
    let answers = together(&world, ACTIVITY_ACKS, acks).await;
    answers[1].as_ref().expect("first come, first served");
    assert_permanent(&answers[2], "DX001");
    let completions = "select count(*) from orchestrator_queue where work_item like '%ActivityCompleted%'";
    assert_eq!(world.number(completions, &[]).await, 2);
}

/// The lease ends while the ack waits in the line.
#[tokio::test]
async fn a_lease_that_ends_in_the_line_is_lost() {
    let world = World::new().await;
    let names = instances(3);
    let mut turns = world.turns(&names).await;
    turns.sort_by_key(number);
    let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
    let answers = together_after(&world, TURN_ACKS, acks, async || {
        let expired = "update mailboxes set available_at = clock_timestamp() where instance_id = $1";
        world.execute(expired, &[&names[1]]).await;
    })
    .await;
    assert_permanent(&answers[1], "DX001");
    assert_eq!(senders(&world).await, [names[0].as_str(), names[2].as_str()]);
}
