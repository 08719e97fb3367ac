//! Everything at once, on few instances, from many connections: no deadlock, no lost wake-up, no strange error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::providers::{
    InstanceFilter, Provider, ProviderAdmin, ProviderError, PruneOptions, ScheduledActivityIdentifier,
    SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide_postgres::PostgresProvider;

use crate::fixtures::{
    NOW, child_start, completed, ending, named, raised, routed_activity, scheduled, start, started, timer,
};
use crate::support::{connect, in_own_database};

const CONNECTIONS: usize = 16;
const DURATION: Duration = Duration::from_secs(6);
/// Short, so that leases expire all the time.
const SHORT: Duration = Duration::from_millis(30);
const INSTANCES: [&str; 4] = ["a", "b", "c", "d"];

/// A small generator: the mix must differ from run to run, not be unpredictable.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn instance(&mut self) -> &'static str {
        INSTANCES[self.roll(4) as usize]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_mix_of_all_methods_does_not_deadlock_or_lose_wake_ups() {
    let deadlocks = in_own_database(|url| async move { mix(&url).await }).await;
    assert_eq!(deadlocks, 0);
}

async fn mix(url: &str) {
    let provider = Arc::new(
        PostgresProvider::builder(url)
            .schema("mix")
            .pool_size(CONNECTIONS)
            .long_poll(false)
            .connect()
            .await
            .expect("provider"),
    );
    let end = Instant::now() + DURATION;
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let provider = Arc::clone(&provider);
            let mut dice = Dice(uuid::Uuid::new_v4().as_u128() as u64 | 1);
            tokio::spawn(async move {
                let mut steps = 0_u64;
                while Instant::now() < end {
                    step(&provider, &mut dice).await;
                    steps += 1;
                }
                steps
            })
        })
        .collect();
    let mut steps = 0;
    for task in tasks {
        steps += task.await.expect("task");
    }
    println!("{steps} steps");
    assert!(steps > 100, "only {steps} steps");

    let client = connect(url).await;
    client
        .batch_execute("set search_path = mix")
        .await
        .expect("search_path");
    // A message is stuck when its mailbox is neither leased nor due, though it is visible, unless it waits for a start.
    // For a moment it may be: when it could not be proven idle, or was handed back.
    let stuck = "select concat_ws(' ', q.instance_id, min(q.visible_at), m.available_at, m.lease, clock_timestamp()) \
                   from orchestrator_queue as q left join mailboxes as m using (instance_id) \
                  group by q.instance_id, m.instance_id \
                 having m.instance_id is null \
                     or (m.lease is null and m.available_at > greatest(min(q.visible_at), clock_timestamp()) \
                         and (exists (select from history as h where h.instance_id = q.instance_id) \
                              or exists (select from instances as i where i.instance_id = q.instance_id) \
                              or bool_or(q.kind = 's')))";
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let rows = client.query(stuck, &[]).await.expect("stuck messages");
        if rows.is_empty() {
            break;
        }
        let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert!(Instant::now() < deadline, "{rows:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let orphans: i64 = client
        .query_one(
            "select count(*) from executions as e where not exists (select from history as h \
              where h.instance_id = e.instance_id) and e.status = 'Running' and exists (select from instances as i \
              where i.instance_id = e.instance_id and i.current_execution_id < e.execution_id)",
            &[],
        )
        .await
        .expect("orphans")
        .get(0);
    assert_eq!(orphans, 0);
    provider.close();
}

/// What a race may legitimately come to.
fn expected<T>(result: Result<T, ProviderError>) {
    if let Err(error) = result {
        let fine = ["DX001", "DX003", "DX004", "DX005", "DX006", "23505", "not found"]
            .iter()
            .any(|text| error.message.contains(text));
        assert!(fine, "{error}");
    }
}

async fn step(provider: &PostgresProvider, dice: &mut Dice) {
    let (one, other) = (dice.instance(), dice.instance());
    match dice.roll(24) {
        0..=1 => expected(provider.enqueue_for_orchestrator(start(one), None).await),
        2..=4 => expected(provider.enqueue_for_orchestrator(raised(one, "x"), None).await),
        5 => expected(
            provider
                .enqueue_for_orchestrator(raised(one, "later"), Some(SHORT))
                .await,
        ),
        6..=10 => run_turn(provider, dice, other).await,
        11..=12 => {
            let session = (dice.roll(2) == 0).then_some(other);
            let item = routed_activity(one, dice.roll(5) + 2, None, session);
            expected(provider.enqueue_for_worker(item).await);
        }
        13..=17 => run_activity(provider, dice).await,
        18 => expected(provider.renew_session_lock(&["w0", "w1"], SHORT, SHORT).await),
        19 => expected(provider.cleanup_orphaned_sessions(SHORT).await),
        20 => match dice.roll(4) {
            0 => expected(provider.delete_instance(one, true).await),
            1 => expected(
                provider
                    .delete_instances_atomic(&INSTANCES.map(str::to_string), dice.roll(2) == 0)
                    .await,
            ),
            2 => expected(provider.delete_instance_bulk(InstanceFilter::default()).await),
            _ => expected(
                provider
                    .prune_executions_bulk(InstanceFilter::default(), PruneOptions::default())
                    .await,
            ),
        },
        21 => expected(provider.read(one).await),
        22 => expected(provider.get_queue_depths().await),
        _ => expected(provider.get_kv_all_values(one).await),
    }
}

async fn run_turn(provider: &PostgresProvider, dice: &mut Dice, other: &str) {
    let fetched = provider
        .fetch_orchestration_item(SHORT, NOW, None)
        .await
        .expect("fetch");
    let Some((item, token, _)) = fetched else { return };
    let own = item.instance.as_str();
    match dice.roll(8) {
        0 => return, // Left to expire.
        1 => {
            return expected(
                provider
                    .abandon_orchestration_item(&token, Some(SHORT), dice.roll(2) == 0)
                    .await,
            );
        }
        2 => expected(provider.renew_orchestration_item_lock(&token, SHORT).await),
        3 => tokio::time::sleep(SHORT).await, // The ack comes too late, or just in time.
        _ => {}
    }
    let (execution_id, mut events) = if item.history.is_empty() {
        (item.execution_id, vec![started(own)])
    } else {
        let next = item.history.iter().map(|event| event.event_id()).max().unwrap_or(0) + 1;
        (item.execution_id, vec![scheduled(own, next)])
    };
    let mut metadata = if dice.roll(6) == 0 {
        ending("Completed")
    } else {
        named()
    };
    if own.contains("::") {
        metadata.parent_instance_id = own.split("::").next().map(str::to_string);
    }
    let mut messages: Vec<WorkItem> = (0..dice.roll(3)).map(|_| raised(dice.instance(), "sent")).collect();
    if dice.roll(4) == 0 {
        messages.push(child_start(&format!("{own}::{other}"), Some(own)));
    }
    if dice.roll(4) == 0 {
        messages.push(timer(own, 1));
    }
    if dice.roll(10) == 0 {
        events.clear();
    }
    let cancelled = (0..dice.roll(3))
        .map(|_| ScheduledActivityIdentifier {
            instance: dice.instance().to_string(),
            execution_id: 1,
            activity_id: dice.roll(5) + 2,
        })
        .collect();
    let activities = (0..dice.roll(3))
        .map(|id| routed_activity(own, id + 2, None, None))
        .collect();
    expected(
        provider
            .ack_orchestration_item(&token, execution_id, events, activities, messages, metadata, cancelled)
            .await,
    );
}

async fn run_activity(provider: &PostgresProvider, dice: &mut Dice) {
    let session = SessionFetchConfig {
        owner_id: format!("w{}", dice.roll(2)),
        lock_timeout: SHORT,
    };
    let session = (dice.roll(3) > 0).then_some(&session);
    let filter = if dice.roll(2) == 0 {
        TagFilter::Any
    } else {
        TagFilter::DefaultOnly
    };
    let fetched = provider
        .fetch_work_item(SHORT, NOW, session, &filter)
        .await
        .expect("fetch");
    let Some((WorkItem::ActivityExecute { instance, id, .. }, token, _)) = fetched else {
        return;
    };
    match dice.roll(6) {
        0 => {} // Left to expire.
        1 => expected(provider.abandon_work_item(&token, None, dice.roll(2) == 0).await),
        2 => {
            expected(provider.renew_work_item_lock(&token, SHORT).await);
            expected(provider.ack_work_item(&token, None).await);
        }
        _ => expected(provider.ack_work_item(&token, Some(completed(&instance, id))).await),
    }
}
