//! The connection is cut while a call is under way that carries many requests.

use duroxide::providers::{Provider, ProviderError};

use super::{
    ACTIVITIES, ACTIVITY_ACKS, CALLERS, MESSAGES, SINK, TURN_ACKS, World, ack_activity, ack_first, instances, senders,
    sorted, together_after,
};
use crate::fixtures::{Ack, ack, activity, raised, start};
use crate::proxy::Mode;

/// What the cut takes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Request,
    /// The server has committed.
    Answer,
}

impl Lost {
    fn set(self, world: &World, function: &str) {
        match self {
            Self::Request => world.proxy.lose_request_of(function, Mode::Pass),
            Self::Answer => world.proxy.lose_answer_of(function, Mode::Pass),
        };
    }

    /// How many of the enqueued arrive: the first, whose call went well, and those of the call that committed.
    fn arrived(self) -> i64 {
        match self {
            Self::Request => 1,
            Self::Answer => CALLERS as i64,
        }
    }
}

/// The first went alone; none of the others is repeated, and all of them know that they know nothing.
fn assert_unknown(world: &World, function: &str, answers: Vec<Result<(), ProviderError>>) {
    let mut answers = answers.into_iter();
    answers.next().expect("an answer").expect("alone");
    for answer in answers {
        let error = answer.expect_err("cut");
        assert!(error.is_retryable(), "{error}");
        assert!(error.message.contains("may or may not have been enqueued"), "{error}");
    }
    assert_eq!(world.proxy.calls_of(function), 2, "not repeated");
}

#[tokio::test]
async fn enqueued_messages_of_unknown_outcome_say_so() {
    for lost in [Lost::Request, Lost::Answer] {
        let world = World::new().await;
        let sent = instances(CALLERS).into_iter().map(|name| {
            let provider = world.provider.clone();
            async move { provider.enqueue_for_orchestrator(start(&name), None).await }
        });
        let calls: Vec<_> = sent.collect();
        let answers = together_after(&world, MESSAGES, calls, async || lost.set(&world, MESSAGES)).await;
        assert_unknown(&world, MESSAGES, answers);
        let arrived = world.number("select count(*) from orchestrator_queue", &[]).await;
        assert_eq!(arrived, lost.arrived(), "{lost:?}");
    }
}

#[tokio::test]
async fn enqueued_activities_of_unknown_outcome_say_so() {
    for lost in [Lost::Request, Lost::Answer] {
        let world = World::new().await;
        let sent = (0..CALLERS as u64).map(|id| {
            let provider = world.provider.clone();
            async move { provider.enqueue_for_worker(activity("i", id)).await }
        });
        let calls: Vec<_> = sent.collect();
        let answers = together_after(&world, ACTIVITIES, calls, async || lost.set(&world, ACTIVITIES)).await;
        assert_unknown(&world, ACTIVITIES, answers);
        let arrived = world.number("select count(*) from worker_queue", &[]).await;
        assert_eq!(arrived, lost.arrived(), "{lost:?}");
    }
}

#[tokio::test]
async fn turn_acks_all_end_committed_once() {
    for lost in [Lost::Request, Lost::Answer] {
        let world = World::new().await;
        let names = instances(CALLERS);
        let turns = world.turns(&names).await;
        let acks = turns.into_iter().map(|turn| ack_first(world.provider.clone(), turn));
        let calls: Vec<_> = acks.collect();
        for answer in together_after(&world, TURN_ACKS, calls, async || lost.set(&world, TURN_ACKS)).await {
            answer.expect("ack");
        }
        assert_eq!(senders(&world).await, sorted(names), "{lost:?}");
        let events = world.number("select count(*) from history", &[]).await;
        assert_eq!(events, CALLERS as i64, "{lost:?}");
    }
}

#[tokio::test]
async fn activity_acks_all_end_committed_once() {
    for lost in [Lost::Request, Lost::Answer] {
        let world = World::new().await;
        let activities = world.activities(&instances(CALLERS)).await;
        let acks = activities
            .into_iter()
            .map(|done| ack_activity(world.provider.clone(), done));
        let calls: Vec<_> = acks.collect();
        for answer in together_after(&world, ACTIVITY_ACKS, calls, async || lost.set(&world, ACTIVITY_ACKS)).await {
            answer.expect("ack");
        }
        let each_once = "select count(distinct instance_id) * 1000 + count(*) from orchestrator_queue";
        assert_eq!(world.number(each_once, &[]).await, 16_016, "{lost:?}");
        assert_eq!(world.number("select count(*) from worker_queue", &[]).await, 0);
    }
}

/// Without events no row tells that the first attempt has committed.
#[tokio::test]
async fn turn_acks_without_events_all_end_committed_once() {
    for lost in [Lost::Request, Lost::Answer] {
        let world = World::new().await;
        let names = instances(CALLERS);
        let acks = world.turns(&names).await.into_iter().map(|turn| {
            let provider = world.provider.clone();
            let only = Ack {
                messages: vec![raised(SINK, &turn.instance)],
                ..Ack::default()
            };
            async move { ack(&*provider, &turn.token, only).await }
        });
        let calls: Vec<_> = acks.collect();
        for answer in together_after(&world, TURN_ACKS, calls, async || lost.set(&world, TURN_ACKS)).await {
            answer.expect("ack");
        }
        assert_eq!(senders(&world).await, sorted(names), "{lost:?}");
    }
}
