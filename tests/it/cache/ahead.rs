//! What comes along with an answer because it is asked for next: a history with an activity, a custom status with a history.

use std::sync::Arc;

use duroxide::providers::{Provider, ProviderAdmin};
use duroxide::{Event, EventKind};
use duroxide_postgres::PostgresProvider;

use super::changes::Change;
use super::{INSTANCE, ack, ack_first_of, claim, continue_as_new, create_cached, noted, stored, take_turn};
use crate::batching::World;
use crate::fixtures::{self, Ack, LOCK, activity, create, event, named, scheduled, start, started, turn, work};
use crate::proxy::Proxy;
use crate::support::damage_history;

const READ: &str = ".read(";
const STATUS: &str = ".get_custom_status(";
const FETCH: &str = ".fetch_work_item(";
/// A task that is held up after the first answer asks again: then it is tried again.
const TRIES: u64 = 20;

/// A process, and what it asks of the server.
struct Process {
    provider: Arc<PostgresProvider>,
    proxy: Proxy,
}

impl Process {
    async fn new(world: &World) -> Self {
        let (provider, proxy) = world.another_process().await;
        Self { provider, proxy }
    }

    /// Fetches an activity and reads the history of its instance, which must be this one. Whether it came along.
    async fn reads(&self, all: &[Event]) -> bool {
        let before = self.proxy.calls_of(READ);
        work(&*self.provider, LOCK).await;
        let history = self.provider.read(INSTANCE).await.expect("read");
        assert_eq!(history, all);
        self.proxy.calls_of(READ) == before
    }

    /// Whether a history ever comes with an activity, in as many tries. Either way it is the right one.
    async fn gets_it(&self, tries: u64) -> bool {
        let all = stored(&*self.provider, INSTANCE).await;
        for _ in 0..tries {
            if self.reads(&all).await {
                return true;
            }
        }
        false
    }
}

async fn two_processes() -> (World, Process, Process) {
    let world = World::new().await;
    let (near, far) = (Process::new(&world).await, Process::new(&world).await);
    (world, near, far)
}

/// Several times, so that it comes along at least once.
async fn both_read(near: &Process, far: &Process, all: &[Event]) {
    for process in [near, far].repeat(5) {
        process.reads(all).await;
    }
}

/// Activities for all tries.
async fn enqueue_activities(provider: &dyn Provider) {
    for id in 0..4 * TRIES {
        let enqueued = provider.enqueue_for_worker(activity(INSTANCE, 1000 + id)).await;
        enqueued.expect("enqueue");
    }
}

/// Begins an instance with activities for all tries, and further events.
async fn begin(provider: &dyn Provider, further: impl IntoIterator<Item = Event>) {
    let started_by = provider.enqueue_for_orchestrator(start(INSTANCE), None).await;
    started_by.expect("enqueue");
    let (_, token, _) = turn(provider, LOCK).await;
    let mut events = vec![started(INSTANCE), scheduled(INSTANCE, 2)];
    events.extend(further);
    let first = Ack {
        events,
        metadata: named(),
        ..Ack::default()
    };
    fixtures::ack(provider, &token, first).await.expect("ack");
    enqueue_activities(provider).await;
}

#[tokio::test]
async fn a_history_comes_with_an_activity() {
    let (_world, near, far) = two_processes().await;
    begin(&*near.provider, []).await;
    assert!(near.gets_it(TRIES).await, "in memory");
    assert!(far.gets_it(TRIES).await, "in the memory of another process");
    // Now of another process, and longer.
    take_turn(&*far.provider, INSTANCE, "far").await;
    assert!(near.gets_it(TRIES).await, "no longer in memory");
}

/// Many activities in one call.
#[tokio::test]
async fn a_history_comes_with_each_of_many_activities() {
    let (_world, near, far) = two_processes().await;
    begin(&*near.provider, []).await;
    let all = stored(&*near.provider, INSTANCE).await;
    for process in [&near, &far] {
        let mut fewest = usize::MAX;
        for _ in 0..TRIES / 4 {
            let before = process.proxy.calls_of(READ);
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    let provider = Arc::clone(&process.provider);
                    tokio::spawn(async move {
                        work(&*provider, LOCK).await;
                        provider.read(INSTANCE).await.expect("read")
                    })
                })
                .collect();
            for reader in readers {
                assert_eq!(reader.await.expect("task"), all);
            }
            fewest = fewest.min(process.proxy.calls_of(READ) - before);
        }
        assert_eq!(fewest, 0);
    }
}

#[tokio::test]
async fn what_is_long_or_large_comes_along_only_from_memory() {
    let many = (3..=33)
        .map(|id| noted(INSTANCE, id, "one of many"))
        .collect::<Vec<_>>();
    let large = vec![noted(INSTANCE, 3, &"large ".repeat(1500))];
    for further in [many, large] {
        let (_world, near, far) = two_processes().await;
        begin(&*near.provider, further).await;
        assert!(!far.gets_it(5).await);
        assert!(near.gets_it(TRIES).await);
    }
}

#[tokio::test]
async fn without_a_memory_nothing_comes_along() {
    let world = World::with(|builder| builder.history_cache(0)).await;
    begin(&*world.provider, []).await;
    let all = stored(&*world.provider, INSTANCE).await;
    let before = world.proxy.calls_of(READ);
    for _ in 0..5 {
        work(&*world.provider, LOCK).await;
        assert_eq!(world.provider.read(INSTANCE).await.expect("read"), all);
    }
    assert_eq!(world.proxy.calls_of(READ) - before, 5);
}

/// What the database said is in memory may have been forgotten.
#[tokio::test]
async fn a_history_that_was_forgotten_is_read() {
    // Room for about one of them.
    let world = World::with(|builder| builder.history_cache(40_000)).await;
    let note = "note".repeat(500);
    begin(&*world.provider, [noted(INSTANCE, 3, &note)]).await;
    let all = stored(&*world.provider, INSTANCE).await;
    for other in 0..20 {
        create(&*world.provider, &format!("other {other}")).await;
    }
    let before = world.proxy.calls_of(READ);
    work(&*world.provider, LOCK).await;
    assert_eq!(world.provider.read(INSTANCE).await.expect("read"), all);
    assert_eq!(world.proxy.calls_of(READ) - before, 1, "it was not forgotten");
}

/// Whatever was done to a history before the activity was fetched.
#[tokio::test]
async fn changes_by_other_hands_come_along() {
    for change in Change::ALL {
        let (world, near, far) = two_processes().await;
        create_cached(&*near.provider, INSTANCE).await;
        change.prepare(&world).await;
        take_turn(&*near.provider, INSTANCE, "cached again").await;
        enqueue_activities(&*near.provider).await;
        change.make(&world, &*far.provider).await;
        let all = stored(&*world.provider, INSTANCE).await;
        both_read(&near, &far, &all).await;
    }
}

/// Events of an execution that has not begun are there before its first turn.
#[tokio::test]
async fn the_history_of_the_latest_execution_comes_along() {
    let (world, near, far) = two_processes().await;
    create_cached(&*near.provider, INSTANCE).await;
    enqueue_activities(&*near.provider).await;
    let early = Event {
        execution_id: 2,
        ..noted(INSTANCE, 20, "before its first turn")
    };
    let appended = far.provider.append_with_execution(INSTANCE, 2, vec![early]).await;
    appended.expect("append");
    continue_as_new(&*near.provider, 1).await;
    let all_of = |execution_id| {
        let provider = Arc::clone(&world.provider);
        async move {
            provider
                .read_with_execution(INSTANCE, execution_id)
                .await
                .expect("read")
        }
    };
    let before = all_of(1).await;
    assert_eq!(near.provider.read(INSTANCE).await.expect("read"), before);
    both_read(&near, &far, &before).await;

    let (_, token, _) = turn(&*near.provider, LOCK).await;
    ack_first_of(&*near.provider, &token, 2).await;
    let after = all_of(2).await;
    assert_eq!(after.len(), 2);
    both_read(&near, &far, &after).await;
}

#[tokio::test]
async fn a_new_instance_of_the_same_name_brings_its_own_history() {
    let (_world, near, far) = two_processes().await;
    begin(&*near.provider, [noted(INSTANCE, 3, "of the old one")]).await;
    assert!(near.gets_it(TRIES).await);
    far.provider.delete_instance(INSTANCE, true).await.expect("delete");
    begin(&*far.provider, [noted(INSTANCE, 3, "of the new one")]).await;
    assert!(near.gets_it(TRIES).await);
    assert!(far.gets_it(TRIES).await);
}

/// Asked for in between, it would be seen: so it is seen.
#[tokio::test]
async fn what_happened_in_between_is_seen() {
    let (_world, near, far) = two_processes().await;
    begin(&*near.provider, []).await;
    let mut events = 2;
    for process in [&near, &far].repeat(5) {
        work(&*process.provider, LOCK).await;
        take_turn(&*far.provider, INSTANCE, "meanwhile").await;
        events += 1;
        let history = process.provider.read(INSTANCE).await.expect("read");
        assert_eq!(history.len(), events);
        assert_eq!(history, stored(&*process.provider, INSTANCE).await);
    }
}

/// The task does not wait for anything in between, but a commit of somebody else has the time to happen.
#[tokio::test]
async fn what_happened_while_a_thread_was_blocked_is_seen() {
    let (world, near, _far) = two_processes().await;
    begin(&*near.provider, []).await;
    let (_, token) = claim(&*near.provider, INSTANCE).await;
    let builder = world.schema.builder();
    work(&*near.provider, LOCK).await;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("runtime").block_on(async {
                let other = builder.connect().await.expect("provider");
                let event = noted(INSTANCE, 3, "meanwhile");
                ack(&other, &token, vec![event]).await.expect("ack");
            });
        });
    });
    assert_eq!(near.provider.read(INSTANCE).await.expect("read").len(), 3);
}

fn set_status(id: u64, status: Option<&str>) -> Event {
    let status = status.map(str::to_string);
    event(INSTANCE, id, EventKind::CustomStatusUpdated { status })
}

#[tokio::test]
async fn a_custom_status_comes_with_a_history() {
    let (_world, near, far) = two_processes().await;
    create(&*near.provider, INSTANCE).await;
    let large = "large ".repeat(200);
    let changes = [None, Some(Some("half done")), Some(None), Some(Some(large.as_str()))];
    for (version, change) in (0..).zip(changes) {
        if let Some(status) = change {
            let (_, token) = claim(&*far.provider, INSTANCE).await;
            let event = set_status(version + 1, status);
            ack(&*far.provider, &token, vec![event]).await.expect("ack");
        }
        let expected = (version > 0).then(|| (change.flatten().map(str::to_string), version));
        let mut came_along = 0;
        for _ in 0..TRIES {
            let before = near.proxy.calls_of(STATUS);
            near.provider.read(INSTANCE).await.expect("read");
            let found = near.provider.get_custom_status(INSTANCE, 0).await.expect("status");
            assert_eq!(found, expected);
            came_along += u64::from(near.proxy.calls_of(STATUS) == before);
            // That was its next call; this is another. It has been seen.
            let found = near
                .provider
                .get_custom_status(INSTANCE, version)
                .await
                .expect("status");
            assert_eq!(found, None);
            // Compared with what has been seen, also when it came along.
            near.provider.read(INSTANCE).await.expect("read");
            let found = near
                .provider
                .get_custom_status(INSTANCE, version)
                .await
                .expect("status");
            assert_eq!(found, None);
        }
        let is_large = change.flatten() == Some(&large);
        assert_eq!(came_along == 0, is_large, "version {version}: {came_along}");
    }
    near.provider.read("no such").await.expect("read");
    let found = near.provider.get_custom_status("no such", 0).await.expect("status");
    assert_eq!(found, None);
}

/// The activity can be executed; whoever reads the history is told.
#[tokio::test]
async fn a_history_that_cannot_be_read_does_not_keep_an_activity() {
    let (world, near, far) = two_processes().await;
    begin(&*near.provider, []).await;
    if !damage_history(&world.admin, INSTANCE, 3000).await {
        return;
    }
    // The trigger for changes by hand made everybody forget it. As if nobody had touched it:
    let remember = "update mailboxes set cached_by = gen_random_uuid(), cached_execution_id = 1, cached_event_id = 2";
    world.execute(remember, &[]).await;
    let before = far.proxy.calls_of(FETCH);
    work(&*far.provider, LOCK).await;
    assert_eq!(far.proxy.calls_of(FETCH) - before, 2, "again, with care");
    let error = far.provider.read(INSTANCE).await.expect_err("damaged");
    assert!(error.to_string().contains("missing chunk"), "{error}");
}

/// An error of the disk counts as one that passes: it may not.
#[tokio::test]
async fn a_block_that_cannot_be_read_does_not_keep_activities() {
    let (world, near, _far) = two_processes().await;
    begin(&*near.provider, []).await;
    let columns = "history_epoch bigint, history_execution_id bigint, cached_event_id bigint, history text[]";
    let broken = format!(
        "create or replace function history_along(p_instance_id text, p_node uuid) returns table ({columns}) language plpgsql stable as \
         $$ begin raise exception 'could not read block 7' using errcode = 'io_error'; end $$"
    );
    world.admin.batch_execute(&broken).await.expect("broken");
    work(&*near.provider, LOCK).await;
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let provider = Arc::clone(&near.provider);
            tokio::spawn(async move { work(&*provider, LOCK).await })
        })
        .collect();
    for worker in workers {
        worker.await.expect("an activity");
    }
}
