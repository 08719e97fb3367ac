//! Histories that change by other hands: another process, a deletion, an administrator.

use duroxide::providers::{Provider, ProviderAdmin};

use super::{
    INSTANCE, ack, ack_first_of, assert_sees_what_is_stored, claim, continue_as_new, create_cached, next, noted,
    stored, take_turn,
};
use crate::batching::World;
use crate::fixtures::{self, Ack, LOCK, create};

#[tokio::test]
async fn two_processes_take_turns_on_one_instance() {
    two_take_turns(1).await;
}

/// So long that copies are made ahead of the turns.
#[tokio::test]
async fn two_processes_take_turns_on_one_instance_with_a_long_history() {
    two_take_turns(600).await;
}

async fn two_take_turns(events: usize) {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create(near, INSTANCE).await;
    if events > 1 {
        let (_, token) = claim(near, INSTANCE).await;
        let more = (2..=events).map(|id| noted(INSTANCE, id as u64, "before"));
        ack(near, &token, more.collect()).await.expect("ack");
    }
    for round in 0..20 {
        // Sometimes one of them has two turns in a row, and sometimes it has seen what the other did.
        let runs = if [0, 1, 3, 6, 7, 8].contains(&(round % 9)) {
            near
        } else {
            far
        };
        let all = stored(far, INSTANCE).await;
        assert_eq!(all.len(), events + round);
        assert_eq!(
            take_turn(runs, INSTANCE, &format!("round {round}")).await,
            all,
            "round {round}"
        );
        if round % 3 == 0 {
            let all = stored(far, INSTANCE).await;
            assert_eq!(near.read(INSTANCE).await.expect("read"), all, "round {round}");
            assert_eq!(far.read(INSTANCE).await.expect("read"), all, "round {round}");
        }
    }
}

/// Deleted and created again elsewhere, with fewer, as many and more events than before.
#[tokio::test]
async fn a_new_instance_of_the_same_name_has_nothing_of_the_old_one() {
    for events in [1, 4, 7] {
        for looks_first in ["read", "turn"] {
            let world = World::new().await;
            let (near, far) = (&*world.provider, &*world.schema.provider().await);
            create_cached(near, INSTANCE).await;
            far.delete_instance(INSTANCE, true).await.expect("delete");
            create(far, INSTANCE).await;
            for note in 1..events {
                take_turn(far, INSTANCE, &format!("new {note}")).await;
            }
            let new = stored(far, INSTANCE).await;
            assert_eq!(new.len(), events);
            if looks_first == "read" {
                assert_eq!(near.read(INSTANCE).await.expect("read"), new);
            }
            assert_eq!(
                take_turn(near, INSTANCE, "after").await,
                new,
                "{events} events, {looks_first} first"
            );
            assert_sees_what_is_stored(near, INSTANCE).await;
        }
    }
}

/// Deleted while a turn of it is under way: the turn comes to nothing, and leaves nothing in memory.
#[tokio::test]
async fn an_instance_recreated_under_a_running_turn_has_nothing_of_it() {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create_cached(near, INSTANCE).await;
    let (item, token) = claim(near, INSTANCE).await;
    far.delete_instance(INSTANCE, true).await.expect("delete");
    create(far, INSTANCE).await;
    let late = vec![next(INSTANCE, &item.history, "late")];
    ack(near, &token, late).await.expect_err("the lease is gone");
    assert_sees_what_is_stored(near, INSTANCE).await;
}

#[tokio::test]
async fn each_execution_has_its_own_history() {
    let world = World::new().await;
    let (near, far) = (&*world.provider, &*world.schema.provider().await);
    create_cached(near, INSTANCE).await;
    for execution_id in 2..5 {
        // The execution before ends, and a message starts the next.
        continue_as_new(near, execution_id - 1).await;

        let runs = if execution_id % 2 == 0 { near } else { far };
        let (item, token, _) = fixtures::turn(runs, LOCK).await;
        assert_eq!(item.execution_id, execution_id - 1);
        let before = near.read_with_execution(INSTANCE, execution_id - 1).await;
        assert_eq!(item.history, before.expect("read"));
        ack_first_of(runs, &token, execution_id).await;

        for note in 2..5 {
            let all = far.read_with_execution(INSTANCE, execution_id).await.expect("read");
            assert_eq!(near.read(INSTANCE).await.expect("read"), all);
            let (item, token) = claim(near, INSTANCE).await;
            assert_eq!(
                (item.execution_id, &item.history),
                (execution_id, &all),
                "execution {execution_id}"
            );
            let more = Ack {
                execution_id: Some(execution_id),
                events: vec![noted(INSTANCE, note, "again")],
                ..Ack::default()
            };
            fixtures::ack(near, &token, more).await.expect("ack");
        }
    }
}

/// What an administrator, or another process without a turn, can do to a history.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Update,
    DeleteFirst,
    DeleteLast,
    DeleteAll,
    Truncate,
    InsertLater,
    /// An id between others: there is a gap for it.
    AppendEarlier,
}

impl Change {
    pub(super) const ALL: [Self; 7] = [
        Self::Update,
        Self::DeleteFirst,
        Self::DeleteLast,
        Self::DeleteAll,
        Self::Truncate,
        Self::InsertLater,
        Self::AppendEarlier,
    ];

    /// What has to be so before the history is cached.
    pub(super) async fn prepare(self, world: &World) {
        if let Self::AppendEarlier = self {
            world.execute("delete from history where event_id = 2", &[]).await;
        }
    }

    pub(super) async fn make(self, world: &World, far: &dyn Provider) {
        let later = serde_json::to_string(&noted(INSTANCE, 9, "by hand")).expect("JSON");
        match self {
            Self::Update => {
                let changed = serde_json::to_string(&noted(INSTANCE, 3, "changed")).expect("JSON");
                world
                    .execute("update history set event_data = $1 where event_id = 3", &[&changed])
                    .await;
            }
            Self::DeleteFirst => world.execute("delete from history where event_id = 1", &[]).await,
            Self::DeleteLast => world.execute("delete from history where event_id = 4", &[]).await,
            Self::DeleteAll => world.execute("delete from history", &[]).await,
            Self::Truncate => {
                let truncated = world.admin.batch_execute("truncate history").await;
                truncated.expect("truncate");
            }
            Self::InsertLater => {
                let insert =
                    "insert into history (instance_id, execution_id, event_id, event_data) values ($1, 1, 9, $2)";
                world.execute(insert, &[&INSTANCE, &later]).await;
            }
            Self::AppendEarlier => {
                let earlier = vec![noted(INSTANCE, 2, "appended")];
                far.append_with_execution(INSTANCE, 1, earlier).await.expect("append");
            }
        }
    }
}

#[tokio::test]
async fn changes_by_other_hands_are_seen_by_the_next_read() {
    for change in Change::ALL {
        let world = World::new().await;
        let (near, far) = (&*world.provider, &*world.schema.provider().await);
        create_cached(near, INSTANCE).await;
        change.prepare(&world).await;
        near.read(INSTANCE).await.expect("read");
        change.make(&world, far).await;
        let all = stored(far, INSTANCE).await;
        assert_eq!(near.read(INSTANCE).await.expect("read"), all, "{change:?}");
        assert_sees_what_is_stored(near, INSTANCE).await;
    }
}

#[tokio::test]
async fn changes_by_other_hands_are_seen_by_the_next_turn() {
    for change in Change::ALL {
        let world = World::new().await;
        let (near, far) = (&*world.provider, &*world.schema.provider().await);
        create_cached(near, INSTANCE).await;
        change.prepare(&world).await;
        take_turn(near, INSTANCE, "cached again").await;
        change.make(&world, far).await;
        let all = stored(far, INSTANCE).await;
        assert_eq!(take_turn(near, INSTANCE, "after").await, all, "{change:?}");
        assert_sees_what_is_stored(near, INSTANCE).await;
    }
}

/// The change comes between the fetch of a turn and its ack.
#[tokio::test]
async fn changes_under_a_running_turn_are_seen_after_it() {
    for change in Change::ALL {
        let world = World::new().await;
        let (near, far) = (&*world.provider, &*world.schema.provider().await);
        create_cached(near, INSTANCE).await;
        change.prepare(&world).await;
        let (item, token) = claim(near, INSTANCE).await;
        change.make(&world, far).await;
        let event = next(INSTANCE, &item.history, "unaware");
        ack(near, &token, vec![event]).await.expect("ack");
        assert_sees_what_is_stored(near, INSTANCE).await;
    }
}

/// An event that cannot be read is reported although it could be read before, until it is repaired.
#[tokio::test]
async fn a_corrupted_event_is_reported_until_it_is_repaired() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let good: String = world
        .admin
        .query_one("select event_data from history where event_id = 2", &[])
        .await
        .expect("event")
        .get(0);
    let write = "update history set event_data = $1 where event_id = 2";
    world.execute(write, &[&"{"]).await;
    let error = near.read(INSTANCE).await.expect_err("corrupted");
    assert!(!error.is_retryable() && error.message.contains("event 2"), "{error}");
    for _ in 0..2 {
        let (item, token) = claim(near, INSTANCE).await;
        let error = item.history_error.expect("corrupted");
        assert!(error.contains("event 2") && item.history.is_empty(), "{error}");
        near.abandon_orchestration_item(&token, None, false)
            .await
            .expect("abandon");
    }
    world.execute(write, &[&good]).await;
    assert_sees_what_is_stored(near, INSTANCE).await;
}

/// Corrupted is the newest event, which this process does not have.
#[tokio::test]
async fn a_corrupted_event_that_is_new_is_reported_until_it_is_repaired() {
    let world = World::new().await;
    let near = &*world.provider;
    create_cached(near, INSTANCE).await;
    let insert = "insert into history (instance_id, execution_id, event_id, event_data) values ($1, 1, 5, '{')";
    world.execute(insert, &[&INSTANCE]).await;
    near.read(INSTANCE).await.expect_err("corrupted");
    for _ in 0..2 {
        let (item, token) = claim(near, INSTANCE).await;
        assert!(item.history_error.expect("corrupted").contains("event 5"));
        near.abandon_orchestration_item(&token, None, false)
            .await
            .expect("abandon");
    }
    near.read(INSTANCE).await.expect_err("still corrupted");
    let repaired = serde_json::to_string(&noted(INSTANCE, 5, "repaired")).expect("JSON");
    world
        .execute("update history set event_data = $1 where event_id = 5", &[&repaired])
        .await;
    assert_sees_what_is_stored(near, INSTANCE).await;
}
