//! Whoever fetches after each enqueue soon gets what it has put there without a look; what it does not ask for, others have.

mod trouble;

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider, ProviderAdmin, TagFilter};
use duroxide_postgres::PostgresProvider;
use uuid::Uuid;

use super::{BOTH, PATIENT, Queue, SOON, Waiting, begin, eventually};
use crate::batching::{FETCH_ACTIVITIES, FETCH_TURNS, World};
use crate::fixtures::{self, Ack, LOCK, NOW, completed, named, routed_activity, started, turn, work};

const HANDED_BACK: &str = ".abandon_";

impl Queue {
    fn fetch_call(self) -> &'static str {
        match self {
            Self::Turns => FETCH_TURNS,
            Self::Activities => FETCH_ACTIVITIES,
        }
    }

    fn looks(self, world: &World) -> usize {
        world.proxy.calls_of(self.fetch_call())
    }

    /// What it has put there, somebody fetches at once.
    async fn goes_round(self, provider: &PostgresProvider, instance: &str) {
        self.enqueue(provider, instance).await;
        let fetched = self.fetch(provider, LOCK, NOW).await.expect("fetch");
        assert_eq!(fetched, Some((instance.to_string(), 1)));
    }

    /// Goes round until nobody has to look. On a busy machine that may take a while.
    async fn forms_a_habit(self, world: &World, name: &str) {
        for round in 0..1000 {
            let before = self.looks(world);
            self.goes_round(&world.provider, &format!("{name}-{round}")).await;
            if self.looks(world) == before {
                return;
            }
        }
        panic!("there is always a look");
    }

    /// Enqueues something that is leased for who usually asks at once, and returns its instance: nobody has.
    async fn hands_over(self, world: &World) -> String {
        for _ in 0..50 {
            let instance = Uuid::new_v4().to_string();
            self.forms_a_habit(world, &format!("before-{instance}")).await;
            self.enqueue(&world.provider, &instance).await;
            if self.is_leased(world, &instance).await {
                return instance;
            }
            // Too slow, or it was handed back already.
            let fetched = self.fetch(&world.provider, LOCK, PATIENT).await.expect("fetch");
            assert_eq!(fetched, Some((instance, 1)));
        }
        panic!("nothing is ever leased");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_fetches_after_each_enqueue_needs_no_look() {
    for queue in BOTH {
        let world = World::new().await;
        let provider = &world.provider;
        for round in 0..15 {
            let before = queue.looks(&world);
            queue.goes_round(provider, &format!("once-{round}")).await;
            assert_eq!(queue.looks(&world), before + 1, "{round} times are no habit");
        }
        queue.forms_a_habit(&world, "often").await;
    }
}

/// A lease from an enqueue is as good as one from a fetch.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_over_can_be_acked() {
    let world = World::new().await;
    let provider = &world.provider;
    Queue::Turns.hands_over(&world).await;
    let (item, token, attempt) = turn(&**provider, LOCK).await;
    assert_eq!((item.messages.len(), attempt), (1, 1));
    let first = Ack {
        events: vec![started(&item.instance)],
        metadata: named(),
        ..Ack::default()
    };
    fixtures::ack(&**provider, &token, first).await.expect("ack");

    let instance = Queue::Activities.hands_over(&world).await;
    let (item, token, attempt) = work(&**provider, LOCK).await;
    assert_eq!((item, attempt), (fixtures::activity(&instance, 1), 1));
    let acked = provider.ack_work_item(&token, Some(completed(&instance, 1))).await;
    acked.expect("ack");
}

/// Those who enqueue together fetch together: all of them find something.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_go_round_together_need_no_look() {
    const CALLERS: usize = 5;
    for queue in BOTH {
        let world = World::new().await;
        let mut fewest = usize::MAX;
        for round in 0..300 {
            let before = queue.looks(&world);
            let rounds = (0..CALLERS).map(|caller| {
                let (provider, instance) = (Arc::clone(&world.provider), format!("{round}-{caller}"));
                tokio::spawn(async move {
                    queue.enqueue(&provider, &instance).await;
                    queue.fetch(&provider, LOCK, NOW).await.expect("fetch")
                })
            });
            let mut got = Vec::new();
            for fetched in rounds.collect::<Vec<_>>() {
                got.extend(fetched.await.expect("no panic"));
            }
            got.sort();
            let expected: Vec<_> = (0..CALLERS).map(|caller| (format!("{round}-{caller}"), 1)).collect();
            assert_eq!(got, expected, "{queue:?}");
            fewest = fewest.min(queue.looks(&world) - before);
        }
        assert_eq!(fewest, 0, "{queue:?}");
    }
}

/// As many as usually ask, and a few more: not all that there may be some day.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_leased_than_is_usually_asked_for() {
    for queue in BOTH {
        let world = World::new().await;
        queue.forms_a_habit(&world, "one").await;
        let enqueues = (0..60).map(|number| {
            let provider = Arc::clone(&world.provider);
            tokio::spawn(async move { queue.enqueue(&provider, &format!("many-{number}")).await })
        });
        for enqueue in enqueues.collect::<Vec<_>>() {
            enqueue.await.expect("no panic");
        }
        let leased = format!(
            "select count(*) from {} where instance_id like 'many-%' and lease is not null",
            queue.table()
        );
        assert!(world.number(&leased, &[]).await <= 4, "{queue:?}");
    }
}

/// Where there is only one thread, nobody may ever hand back what is leased.
#[tokio::test]
async fn nothing_is_leased_where_nobody_may_hand_it_back() {
    for queue in BOTH {
        let world = World::new().await;
        for round in 0..50 {
            let before = queue.looks(&world);
            queue.goes_round(&world.provider, &format!("i{round}")).await;
            assert_eq!(queue.looks(&world), before + 1);
        }
        // Nor what others have put there.
        let other = world.schema.provider().await;
        for instance in ["one", "two", "three"] {
            queue.enqueue(&other, instance).await;
        }
        let fetched = queue.fetch(&world.provider, LOCK, NOW).await.expect("fetch");
        assert!(fetched.is_some());
        let leased = format!(
            "select count(*) from {} where instance_id = any ('{{one,two,three}}') and lease is not null",
            queue.table()
        );
        assert_eq!(world.number(&leased, &[]).await, 1);
    }
}

/// What happens to an instance after its turn was leased for somebody who has yet to ask is part of the turn all the same.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_less_than_there_is() {
    let world = World::new().await;
    let provider = &world.provider;
    for _ in 0..5 {
        let instance = Queue::Turns.hands_over(&world).await;
        let sent = provider
            .enqueue_for_orchestrator(fixtures::raised(&instance, "x"), None)
            .await;
        sent.expect("enqueue");
        let (item, _, attempt) = turn(&**provider, LOCK).await;
        assert_eq!((item.instance, item.messages.len(), attempt), (instance, 2, 1));
    }
}

/// An instance that is deleted has no turn, whoever has it in memory.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_what_was_deleted() {
    let world = World::new().await;
    let provider = &world.provider;
    world.settle().await;
    eventually("a turn is leased for who usually asks", || async {
        let instance = Uuid::new_v4().to_string();
        Queue::Turns.forms_a_habit(&world, &format!("before-{instance}")).await;
        fixtures::create(&**provider, &instance).await;
        let sent = provider
            .enqueue_for_orchestrator(fixtures::raised(&instance, "x"), None)
            .await;
        sent.expect("enqueue");
        let is_leased = Queue::Turns.is_leased(&world, &instance).await;
        provider.delete_instance(&instance, true).await.expect("delete");
        let fetched = Queue::Turns.fetch(provider, LOCK, NOW).await.expect("fetch");
        assert_eq!(fetched, None);
        is_leased.then_some(())
    })
    .await;
}

/// A look that brings one more than was asked for hides it from nobody.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_to_nobody_is_waited_for() {
    for queue in BOTH {
        let world = World::new().await;
        let other = world.schema.provider().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        for instance in ["a", "b"] {
            queue.enqueue(&other, instance).await;
        }
        let held = world.proxy.hold_answer_of(queue.fetch_call());
        let provider = Arc::clone(&world.provider);
        let one = tokio::spawn(async move { queue.fetch(&provider, LOCK, NOW).await });
        let provider = Arc::clone(&world.provider);
        let two = async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            queue.fetch(&provider, LOCK * 2, NOW).await
        };
        let two = tokio::spawn(two);
        tokio::time::sleep(Duration::from_millis(15)).await;
        held.release();
        for fetched in [one, two] {
            assert!(fetched.await.expect("no panic").expect("fetch").is_some(), "{queue:?}");
        }
    }
}

/// Another process has it soon, and the delivery counts as the first.
#[tokio::test(flavor = "multi_thread")]
async fn others_have_what_nobody_asks_for() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        let instance = queue.hands_over(&world).await;
        let fetched = tokio::time::timeout(SOON, queue.fetch(&other, LOCK, PATIENT)).await;
        assert_eq!(fetched.expect("in time").expect("fetch"), Some((instance, 1)));
        // And the habit is over.
        queue.enqueue(&world.provider, "later").await;
        assert!(!queue.is_leased(&world, "later").await);
    }
}

/// Whoever asks on other terms must not be told that there is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_hidden_from_who_asks_for_something_else() {
    for queue in BOTH {
        let world = World::new().await;
        let instance = queue.hands_over(&world).await;
        let other_terms = LOCK * 2;
        let fetched = queue.fetch(&world.provider, other_terms, NOW).await.expect("fetch");
        assert_eq!(fetched, Some((instance.clone(), 1)), "{queue:?}");
        let until = format!(
            "select extract(epoch from available_at - now())::bigint from {} where instance_id = $1",
            queue.table()
        );
        assert!(world.number(&until, &[&instance]).await > 40, "leased on its own terms");
    }
}

/// However long it takes to ask: there, on its way back, or in the queue again, it is found.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_later_finds_it_as_well() {
    for queue in BOTH {
        let world = World::new().await;
        for pause_ms in 0..=14 {
            for (lock, wait) in [(LOCK, NOW), (LOCK * 2, NOW), (LOCK * 2, Duration::from_millis(2))] {
                queue
                    .forms_a_habit(&world, &format!("{pause_ms}-{lock:?}-{wait:?}"))
                    .await;
                let instance = format!("later-{pause_ms}-{lock:?}-{wait:?}");
                queue.enqueue(&world.provider, &instance).await;
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                let fetched = queue.fetch(&world.provider, lock, wait).await.expect("fetch");
                assert_eq!(fetched, Some((instance, 1)), "{queue:?}");
            }
        }
    }
}

/// Those who go round and round do not pass others by.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_put_there_has_its_turn() {
    for queue in BOTH {
        let world = World::new().await;
        let (other, _proxy) = world.another_process().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        queue.enqueue(&other, "other").await;
        let provider = &world.provider;
        let rounds = async {
            for round in 0.. {
                queue.enqueue(provider, &format!("own-{round}")).await;
                let fetched = queue.fetch(provider, LOCK, NOW).await.expect("fetch");
                if fetched == Some(("other".to_string(), 1)) {
                    return;
                }
            }
        };
        let found = tokio::time::timeout(SOON, rounds).await;
        found.expect("in time");
    }
}

/// Only what its fetches ask for, and nothing of sessions, for which each of them decides.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_asked_for_is_leased() {
    let world = World::new().await;
    let provider = &world.provider;
    for (tag, session) in [(Some("foreign"), None), (None, Some("session"))] {
        Queue::Activities.forms_a_habit(&world, &format!("{tag:?}")).await;
        let sent = provider.enqueue_for_worker(routed_activity("i", 1, tag, session)).await;
        sent.expect("enqueue");
        assert!(!Queue::Activities.is_leased(&world, "i").await);
    }
    let mine = duroxide::providers::SessionFetchConfig {
        owner_id: "me".to_string(),
        lock_timeout: LOCK,
    };
    let fetched = provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await;
    assert!(fetched.expect("fetch").is_some());
}

/// A message that is due later is nobody's yet.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_leased_before_it_is_due() {
    let world = World::new().await;
    Queue::Turns.forms_a_habit(&world, "before").await;
    let later = Some(Duration::from_secs(60));
    let sent = world
        .provider
        .enqueue_for_orchestrator(fixtures::start("later"), later)
        .await;
    sent.expect("enqueue");
    assert!(!Queue::Turns.is_leased(&world, "later").await);
    assert_eq!(
        Queue::Turns.fetch(&world.provider, LOCK, NOW).await.expect("fetch"),
        None
    );
}

/// What a habit brings goes first of all to those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_come_first() {
    for queue in BOTH {
        let world = World::new().await;
        world.settle().await;
        queue.forms_a_habit(&world, "before").await;
        let waiting = Waiting::begin(&world.provider, queue).await;
        queue.enqueue(&world.provider, "i").await;
        assert_eq!(waiting.gets(SOON).await, ("i".to_string(), 1));

        // Whatever they ask for: each time another one waits.
        for round in 1..=20 {
            queue.forms_a_habit(&world, &format!("again-{round}")).await;
            let lock = LOCK + Duration::from_secs(round);
            let nothing = queue.fetch(&world.provider, lock, NOW).await.expect("fetch");
            assert_eq!(nothing, None);
            let provider = Arc::clone(&world.provider);
            let mut waiting = Box::pin(async move { queue.fetch(&provider, lock, PATIENT).await });
            assert!(begin(waiting.as_mut()).await.is_pending());
            let instance = format!("i{round}");
            let handed_back = world.proxy.calls_of(HANDED_BACK);
            queue.enqueue(&world.provider, &instance).await;
            let fetched = tokio::time::timeout(SOON, waiting).await.expect("in time");
            assert_eq!(fetched.expect("fetch"), Some((instance, 1)));
            assert_eq!(world.proxy.calls_of(HANDED_BACK), handed_back, "nobody else had it");
        }
    }
}
