//! What comes along with an answer because it is asked for next: a history with an activity, a custom status with a history.

use std::sync::Arc;

use duroxide::providers::{Provider, TagFilter};
use duroxide::{Event, EventKind};
use duroxide_postgres::PostgresProvider;

use super::{INSTANCE, ack, claim, noted, stored, take_turn};
use crate::fixtures::{self, Ack, LOCK, NOW, activity, create, event, named, scheduled, start, started, turn, work};
use crate::round_trips::Counter;
use crate::support::{TestSchema, damage_history};

/// A task that is held up after the first answer asks again: then it is tried again.
const TRIES: u64 = 20;

struct Two {
    schema: TestSchema,
    near: Arc<PostgresProvider>,
    far: Arc<PostgresProvider>,
    counter: Counter,
}

impl Two {
    /// Two processes. None if the server cannot count.
    async fn new() -> Option<Self> {
        let schema = TestSchema::new();
        let near = schema.provider().await;
        let far = schema.provider().await;
        let counter = Counter::new(&schema).await?;
        Some(Self {
            schema,
            near,
            far,
            counter,
        })
    }

    /// Begins an instance with activities for all tries, and further events, here.
    async fn begin(&self, further: impl IntoIterator<Item = Event>) {
        let near = &*self.near;
        near.enqueue_for_orchestrator(start(INSTANCE), None)
            .await
            .expect("enqueue");
        let (_, token, _) = turn(near, LOCK).await;
        let mut events = vec![started(INSTANCE), scheduled(INSTANCE, 2)];
        events.extend(further);
        let first = Ack {
            events,
            activities: (0..4 * TRIES).map(|id| activity(INSTANCE, 1000 + id)).collect(),
            metadata: named(),
            ..Ack::default()
        };
        fixtures::ack(near, &token, first).await.expect("ack");
    }

    /// Whether a history ever comes with an activity, in as many tries. Either way it is the right one.
    async fn comes_along(&self, provider: &PostgresProvider, tries: u64) -> bool {
        let all = stored(provider, INSTANCE).await;
        for _ in 0..tries {
            let before = self.counter.statements().await;
            work(provider, LOCK).await;
            let history = provider.read(INSTANCE).await.expect("read");
            assert_eq!(history, all);
            match self.counter.statements().await - before {
                1 => return true,
                statements => assert_eq!(statements, 2),
            }
        }
        false
    }
}

#[tokio::test]
async fn a_history_comes_with_an_activity() {
    let Some(two) = Two::new().await else { return };
    two.begin([]).await;
    assert!(two.comes_along(&two.near, TRIES).await, "in memory");
    assert!(
        two.comes_along(&two.far, TRIES).await,
        "in the memory of another process"
    );
    // Now of another process, and longer.
    take_turn(&*two.far, INSTANCE, "far").await;
    assert!(two.comes_along(&two.near, TRIES).await, "no longer in memory");
}

/// Many activities in one call.
#[tokio::test]
async fn a_history_comes_with_each_of_many_activities() {
    let Some(two) = Two::new().await else { return };
    two.begin([]).await;
    let all = stored(&*two.near, INSTANCE).await;
    for provider in [&two.near, &two.far] {
        let mut statements = Vec::new();
        for _ in 0..TRIES / 4 {
            let before = two.counter.statements().await;
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    let provider = Arc::clone(provider);
                    tokio::spawn(async move {
                        work(&*provider, LOCK).await;
                        provider.read(INSTANCE).await.expect("read")
                    })
                })
                .collect();
            for reader in readers {
                assert_eq!(reader.await.expect("task"), all);
            }
            statements.push(two.counter.statements().await - before);
        }
        assert!(statements.contains(&1), "{statements:?}");
    }
}

#[tokio::test]
async fn what_is_long_or_large_comes_along_only_from_memory() {
    let many = (3..=65)
        .map(|id| noted(INSTANCE, id, "one of many"))
        .collect::<Vec<_>>();
    let large = vec![noted(INSTANCE, 3, &"large ".repeat(3000))];
    for further in [many, large] {
        let Some(two) = Two::new().await else { return };
        two.begin(further).await;
        assert!(!two.comes_along(&two.far, 5).await);
        assert!(two.comes_along(&two.near, TRIES).await);
    }
}

/// Asked for in between, it would be seen: so it is seen.
#[tokio::test]
async fn what_happened_in_between_is_seen() {
    let Some(two) = Two::new().await else { return };
    two.begin([]).await;
    let mut events = 2;
    for provider in [&*two.near, &*two.far].repeat(5) {
        work(provider, LOCK).await;
        take_turn(&*two.far, INSTANCE, "meanwhile").await;
        events += 1;
        let history = provider.read(INSTANCE).await.expect("read");
        assert_eq!(history.len(), events);
        assert_eq!(history, stored(provider, INSTANCE).await);
    }
}

/// The task does not go on waiting for anything, but a commit of somebody else has the time to happen.
#[tokio::test]
async fn what_happened_while_a_thread_was_blocked_is_seen() {
    let Some(two) = Two::new().await else { return };
    two.begin([]).await;
    let (_, token) = claim(&*two.near, INSTANCE).await;
    work(&*two.near, LOCK).await;
    let schema = two.schema.builder();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("runtime").block_on(async {
                let other = schema.connect().await.expect("provider");
                let event = noted(INSTANCE, 3, "meanwhile");
                ack(&other, &token, vec![event]).await.expect("ack");
            });
        });
    });
    assert_eq!(two.near.read(INSTANCE).await.expect("read").len(), 3);
}

#[tokio::test]
async fn a_custom_status_comes_with_a_history() {
    let Some(two) = Two::new().await else { return };
    let set = |id, status: Option<&str>| {
        let status = status.map(str::to_string);
        event(INSTANCE, id, EventKind::CustomStatusUpdated { status })
    };
    let changes = [None, Some(Some("half done")), Some(None)];
    for (version, change) in (0..).zip(changes) {
        match change {
            None => create(&*two.near, INSTANCE).await,
            Some(status) => {
                let (_, token) = claim(&*two.far, INSTANCE).await;
                ack(&*two.far, &token, vec![set(version + 1, status)])
                    .await
                    .expect("ack");
            }
        }
        let expected = (version > 0).then(|| (change.flatten().map(str::to_string), version));
        let mut statements = Vec::new();
        for _ in 0..TRIES {
            let before = two.counter.statements().await;
            two.near.read(INSTANCE).await.expect("read");
            let found = two.near.get_custom_status(INSTANCE, 0).await.expect("status");
            assert_eq!(found, expected);
            // That was its next call; this is another.
            let found = two.near.get_custom_status(INSTANCE, version).await.expect("status");
            assert_eq!(found, None);
            statements.push(two.counter.statements().await - before);
        }
        assert!(statements.contains(&2), "version {version}: {statements:?}");
        assert!(statements.iter().all(|statements| (2..=3).contains(statements)));
    }
    two.near.read("no such").await.expect("read");
    assert_eq!(two.near.get_custom_status("no such", 0).await.expect("status"), None);
}

/// The status that came along is compared with what the caller has seen, like any other.
#[tokio::test]
async fn a_custom_status_that_was_seen_does_not_come_again() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, INSTANCE).await;
    let (_, token) = claim(&*provider, INSTANCE).await;
    let status = EventKind::CustomStatusUpdated {
        status: Some("half done".to_string()),
    };
    ack(&*provider, &token, vec![event(INSTANCE, 2, status)])
        .await
        .expect("ack");
    for _ in 0..TRIES {
        provider.read(INSTANCE).await.expect("read");
        assert_eq!(provider.get_custom_status(INSTANCE, 1).await.expect("status"), None);
    }
}

/// The activity can be executed; whoever reads the history is told.
#[tokio::test]
async fn a_history_that_cannot_be_read_does_not_keep_an_activity() {
    let Some(two) = Two::new().await else { return };
    two.begin([]).await;
    // The trigger for changes by hand makes everybody forget what they have in memory; as if nobody had touched it:
    let client = two.schema.client().await;
    if !damage_history(&client, INSTANCE, 5000).await {
        return;
    }
    let remember = "update mailboxes set cached_by = gen_random_uuid(), cached_execution_id = 1, cached_event_id = 2";
    client.execute(remember, &[]).await.expect("remember");
    let fetched = two.far.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
    assert!(fetched.expect("fetch").is_some());
    let error = two.far.read(INSTANCE).await.expect_err("damaged");
    assert!(error.to_string().contains("missing chunk"), "{error}");
}
