//! One statement in one round trip for each provider call, and next to none without one.
//!
//! What calls send is counted on the way, by a proxy: whatever asks the server for an answer is a round trip, also what
//! surrounds or prepares a statement. Elsewhere `pg_stat_statements` counts, which sees each statement that names this
//! test's schema: every call does, and nothing else.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use duroxide::EventKind;
use duroxide::providers::{
    ExecutionMetadata, InstanceFilter, Provider, ProviderAdmin, PruneOptions, ScheduledActivityIdentifier,
    SessionFetchConfig, TagFilter,
};
use duroxide_postgres::Builder;
use futures_util::future::poll_fn;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::batching::World;
use crate::fixtures::{
    Ack, LOCK, NOW, ack, activity, completed, create, event, named, raised, routed_activity, scheduled, start, started,
    turn, work,
};
use crate::proxy::Proxy;
use crate::support::{TestSchema, create_extension, database_url, eventually};

struct Counter {
    client: Client,
    pattern: String,
}

impl Counter {
    /// None when the server cannot count.
    async fn new(schema: &TestSchema) -> Option<Self> {
        let client = schema.client().await;
        let preloaded: String = client
            .query_one("select current_setting('shared_preload_libraries')", &[])
            .await
            .expect("settings")
            .get(0);
        if !preloaded.contains("pg_stat_statements") {
            let advice = "pg_stat_statements is not in shared_preload_libraries of this server";
            assert!(std::env::var_os("CI").is_none(), "{advice}");
            eprintln!("SKIPPED, NOTHING WAS COUNTED: {advice}");
            return None;
        }
        create_extension(&client, "pg_stat_statements").await;
        Some(Self {
            client,
            pattern: format!("%\"{}\".%", schema.name),
        })
    }

    async fn statements(&self) -> i64 {
        self.client
            .query_one(
                "select coalesce(sum(calls), 0)::bigint from public.pg_stat_statements where query like $1 and toplevel",
                &[&self.pattern],
            )
            .await
            .expect("statistics")
            .get(0)
    }
}

/// What each method sends, the last time it is called.
struct Sent<'a> {
    proxy: &'a Proxy,
    /// How every statement of the provider names its schema.
    schema: String,
    counts: HashMap<&'static str, Cost>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    connections: usize,
    round_trips: usize,
    statements: usize,
}

impl<'a> Sent<'a> {
    fn new(world: &'a World) -> Self {
        Self {
            proxy: &world.proxy,
            schema: format!("\"{}\".", world.schema.name),
            counts: HashMap::new(),
        }
    }

    fn so_far(&self) -> Cost {
        Cost {
            connections: self.proxy.accepted(),
            round_trips: self.proxy.round_trips(),
            statements: self.proxy.calls_of(&self.schema),
        }
    }

    async fn count<T>(&mut self, method: &'static str, call: impl Future<Output = T>) -> T {
        let before = self.so_far();
        let result = call.await;
        let after = self.so_far();
        let cost = Cost {
            connections: after.connections - before.connections,
            round_trips: after.round_trips - before.round_trips,
            statements: after.statements - before.statements,
        };
        self.counts.insert(method, cost);
        result
    }
}

/// The methods of both traits, as the framework's source lists them.
pub fn trait_methods() -> Vec<String> {
    let source = crate::support::source_of("duroxide").join("src/providers/mod.rs");
    let text = std::fs::read_to_string(source).expect("source");
    let traits = text.split("pub trait Provider").skip(1);
    let mut methods: Vec<String> = traits
        .flat_map(|body| body.split("\n}\n").next().expect("a body").lines())
        .filter_map(|line| line.strip_prefix("    async fn ")?.split(['(', '<']).next())
        .map(str::to_string)
        .collect();
    methods.sort();
    methods.dedup();
    methods
}

#[tokio::test]
async fn every_call_is_one_statement_in_one_round_trip() {
    for transaction_pooler in [false, true] {
        let settings = |builder: Builder| {
            // One connection: what was prepared once stays prepared.
            let builder = builder.pool_size(1).long_poll(false);
            match transaction_pooler {
                false => builder,
                true => builder.transaction_pooler(true).direct_url(&database_url()),
            }
        };
        let world = World::with(settings).await;
        if !transaction_pooler {
            // Its connection would count, too, and comes when it likes.
            let listens = || async { (world.proxy.calls_of("listen \"") > 0).then_some(()) };
            eventually("a listener", listens).await;
        }
        let costs = costs(&world).await;
        let one = Cost {
            connections: 0,
            round_trips: 1,
            statements: 1,
        };
        let others: Vec<_> = costs.iter().filter(|(_, cost)| **cost != one).collect();
        assert!(
            others.is_empty(),
            "transaction pooler: {transaction_pooler}: {others:?}"
        );
        let mut counted: Vec<String> = costs.keys().map(|name| name.to_string()).collect();
        counted.sort();
        assert_eq!(counted, trait_methods());
    }
}

/// What each method costs when its connection is there and knows its statement: the second time.
async fn costs(world: &World) -> HashMap<&'static str, Cost> {
    let mut sent = Sent::new(world);
    let any = TagFilter::Any;
    let session = SessionFetchConfig {
        owner_id: "w".to_string(),
        lock_timeout: LOCK,
    };
    let p = &*world.provider;
    for _warm in 0..2 {
        let c = &mut sent;
        c.count("enqueue_for_orchestrator", p.enqueue_for_orchestrator(start("i"), None))
            .await
            .expect("enqueue");
        let (_, token, _) = c.count("fetch_orchestration_item", turn(p, LOCK)).await;
        c.count(
            "renew_orchestration_item_lock",
            p.renew_orchestration_item_lock(&token, LOCK),
        )
        .await
        .expect("renew");
        c.count(
            "abandon_orchestration_item",
            p.abandon_orchestration_item(&token, None, true),
        )
        .await
        .expect("abandon");
        let (_, token, _) = turn(p, LOCK).await;
        // A full turn: everything an ack can carry.
        let kv = |id, key: &str| {
            let kind = EventKind::KeyValueSet {
                key: key.to_string(),
                value: "v".to_string(),
                last_updated_at_ms: 1,
            };
            event("i", id, kind)
        };
        let status = EventKind::CustomStatusUpdated {
            status: Some("s".to_string()),
        };
        let full = p.ack_orchestration_item(
            &token,
            1,
            vec![
                started("i"),
                scheduled("i", 2),
                kv(3, "a"),
                kv(4, "b"),
                event("i", 5, status),
            ],
            vec![activity("i", 2), routed_activity("i", 3, Some("t"), Some("s"))],
            vec![raised("other", "1"), raised("another", "2"), raised("i", "3")],
            ExecutionMetadata {
                status: Some("ContinuedAsNew".to_string()),
                pinned_duroxide_version: Some(semver::Version::new(0, 1, 32)),
                ..named()
            },
            vec![ScheduledActivityIdentifier {
                instance: "i".to_string(),
                execution_id: 1,
                activity_id: 9,
            }],
        );
        c.count("ack_orchestration_item", full).await.expect("ack");

        let fetch = p.fetch_work_item(LOCK, NOW, Some(&session), &any);
        let (_, token, _) = c
            .count("fetch_work_item", fetch)
            .await
            .expect("fetch")
            .expect("an activity");
        c.count("renew_work_item_lock", p.renew_work_item_lock(&token, LOCK))
            .await
            .expect("renew");
        c.count("abandon_work_item", p.abandon_work_item(&token, None, false))
            .await
            .expect("abandon");
        let (_, token, _) = work(p, LOCK).await;
        c.count("ack_work_item", p.ack_work_item(&token, Some(completed("i", 2))))
            .await
            .expect("ack");
        c.count("enqueue_for_worker", p.enqueue_for_worker(activity("i", 4)))
            .await
            .expect("enqueue");
        c.count("renew_session_lock", p.renew_session_lock(&["w"], LOCK, LOCK))
            .await
            .expect("renew");
        c.count("cleanup_orphaned_sessions", p.cleanup_orphaned_sessions(LOCK))
            .await
            .expect("cleanup");

        c.count("read", p.read("i")).await.expect("read");
        c.count("read_with_execution", p.read_with_execution("i", 1))
            .await
            .expect("read");
        c.count(
            "append_with_execution",
            p.append_with_execution("i", 1, vec![scheduled("i", 6)]),
        )
        .await
        .expect("append");
        c.count("get_custom_status", p.get_custom_status("i", 0))
            .await
            .expect("status");
        c.count("get_kv_value", p.get_kv_value("i", "a")).await.expect("value");
        c.count("get_kv_all_values", p.get_kv_all_values("i"))
            .await
            .expect("values");
        c.count("get_instance_stats", p.get_instance_stats("i"))
            .await
            .expect("stats");

        c.count("list_instances", p.list_instances()).await.expect("list");
        c.count("list_instances_by_status", p.list_instances_by_status("Running"))
            .await
            .expect("list");
        c.count("list_executions", p.list_executions("i")).await.expect("list");
        c.count("read_history", p.read_history("i")).await.expect("read");
        c.count(
            "read_history_with_execution_id",
            p.read_history_with_execution_id("i", 1),
        )
        .await
        .expect("read");
        c.count("latest_execution_id", p.latest_execution_id("i"))
            .await
            .expect("latest");
        c.count("get_instance_info", p.get_instance_info("i"))
            .await
            .expect("info");
        c.count("get_execution_info", p.get_execution_info("i", 1))
            .await
            .expect("info");
        c.count("get_system_metrics", p.get_system_metrics())
            .await
            .expect("metrics");
        c.count("get_queue_depths", p.get_queue_depths()).await.expect("depths");
        c.count("list_children", p.list_children("i")).await.expect("children");
        c.count("get_parent_id", p.get_parent_id("i")).await.expect("parent");
        c.count("get_instance_tree", p.get_instance_tree("i"))
            .await
            .expect("tree");
        c.count("prune_executions", p.prune_executions("i", PruneOptions::default()))
            .await
            .expect("prune");
        c.count(
            "prune_executions_bulk",
            p.prune_executions_bulk(InstanceFilter::default(), PruneOptions::default()),
        )
        .await
        .expect("prune");
        c.count("delete_instance", p.delete_instance("i", true))
            .await
            .expect("delete");
        c.count(
            "delete_instances_atomic",
            p.delete_instances_atomic(&["i".to_string()], true),
        )
        .await
        .expect("delete");
        c.count(
            "delete_instance_bulk",
            p.delete_instance_bulk(InstanceFilter::default()),
        )
        .await
        .expect("delete");
        world
            .admin
            .batch_execute("truncate mailboxes, orchestrator_queue, worker_queue, sessions")
            .await
            .expect("next round");
    }
    sent.counts
}

#[tokio::test]
async fn a_start_that_finds_everything_in_place_reads_once() {
    let schema = TestSchema::new();
    schema.provider().await;
    let Some(counter) = Counter::new(&schema).await else {
        return;
    };
    let before = counter.statements().await;
    schema.provider().await;
    assert_eq!(counter.statements().await - before, 1);
}

/// Waiting is not polling: once the listener is up, those who wait do not ask again before the fallback, which is far longer.
#[tokio::test]
async fn an_idle_long_poll_hardly_asks() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let Some(counter) = Counter::new(&schema).await else {
        return;
    };
    // Longer than the pace of those who cannot listen.
    let wait = Duration::from_secs(3);
    // However long the listener takes to connect: everybody looks once more when it did.
    for _ in 0..10 {
        let before = counter.statements().await;
        let (turn, work) = tokio::join!(
            provider.fetch_orchestration_item(LOCK, wait, None),
            provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any)
        );
        assert!(turn.expect("fetch").is_none() && work.expect("fetch").is_none());
        if counter.statements().await == before {
            return;
        }
    }
    panic!("statements in each of ten times 3 s");
}

/// What processes tell each other, from now on, as long as the client lives.
async fn notifications(schema: &TestSchema) -> (Client, UnboundedReceiver<String>) {
    let (listener, mut connection) = tokio_postgres::connect(&database_url(), NoTls).await.expect("connect");
    let (sender, received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message
                && sender.send(notification.payload().to_string()).is_err()
            {
                break;
            }
        }
    });
    listener
        .batch_execute(&format!("listen \"duroxide.{}\"", schema.name))
        .await
        .expect("listen");
    (listener, received)
}

/// A thousand enqueues are far fewer notifications.
#[tokio::test]
async fn notifications_are_coalesced() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "i").await;
    let (_listener, mut received) = notifications(&schema).await;
    let enqueues: Vec<_> = (0..8)
        .map(|_| {
            let provider = provider.clone();
            tokio::spawn(async move {
                for _ in 0..125 {
                    provider
                        .enqueue_for_orchestrator(raised("i", "x"), None)
                        .await
                        .expect("enqueue");
                }
            })
        })
        .collect();
    for enqueue in enqueues {
        enqueue.await.expect("task");
    }
    let mut count = 0;
    while let Ok(Some(payload)) = tokio::time::timeout(Duration::from_secs(1), received.recv()).await {
        assert_eq!(payload, "1", "the orchestrator queue");
        count += 1;
    }
    assert!((1..500).contains(&count), "{count} notifications for 1000 enqueues");
    let (_, token, _) = turn(&*provider, LOCK).await;
    ack(&*provider, &token, Ack::default()).await.expect("ack");
}

#[tokio::test]
async fn what_others_are_still_to_hear_is_said_when_a_provider_closes() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    let (_listener, mut received) = notifications(&schema).await;
    for instance in ["first", "second"] {
        let sent = provider.enqueue_for_orchestrator(start(instance), None).await;
        sent.expect("enqueue");
        if instance == "second" {
            // Too soon after the first to be said yet.
            provider.close();
        }
        let word = tokio::time::timeout(Duration::from_secs(10), received.recv()).await;
        assert_eq!(word.expect(instance).as_deref(), Some("1"));
    }
}
