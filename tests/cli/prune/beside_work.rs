//! `prune` beside a runtime that works, killed in the middle and run again.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duroxide::runtime::registry::{ActivityRegistry, OrchestrationRegistry};
use duroxide::runtime::{OrchestrationStatus, Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext};
use tokio::task::JoinSet;

use super::{count, ended};
use crate::process::{cli, command, key_values, user};
use crate::support::TestSchema;

const PATIENCE: Duration = Duration::from_secs(120);
const ROOTS: i64 = 3000;
const IN_FLIGHT: usize = 8;
const ACTIVITIES: usize = 5;

/// What an instance can leave behind, beside the rows that `ended` made: every tenth has a child, and each of those all the
/// rest.
async fn decorate(schema: &TestSchema) {
    schema
        .client()
        .await
        .batch_execute(
            "insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, parent_instance_id, \
                                    created_at, updated_at) \
             select i.instance_id || '::child', 'Child', '1.0.0', 2, i.instance_id, i.created_at, i.updated_at \
               from instances as i where i.instance_id like 'old-%0'; \
             insert into executions (instance_id, execution_id, status, started_at, completed_at) \
             select i.instance_id, n, case n when 1 then 'ContinuedAsNew' else 'Failed' end, i.created_at, i.updated_at \
               from instances as i, generate_series(1, 2) as n where i.instance_id like 'old-%::child'; \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select e.instance_id, e.execution_id, n, '{}' from executions as e, generate_series(1, 3) as n \
              where e.instance_id like 'old-%::child'; \
             insert into mailboxes (instance_id, available_at) \
             select i.instance_id, 'infinity' from instances as i where i.instance_id like 'old-%::child'; \
             insert into kv_store (instance_id, key, value, last_updated_at_ms) \
             select i.instance_id, 'k', 'v', 1 from instances as i where i.instance_id like 'old-%'; \
             insert into kv_delta (instance_id, key, value, last_updated_at_ms) \
             select i.instance_id, 'k', 'v', 1 from instances as i where i.instance_id like 'old-%::child'; \
             insert into orchestrator_queue (instance_id, visible_at, kind, work_item) \
             select i.instance_id, now() + interval '1 day', 'm', '{}' from instances as i where i.instance_id like 'old-%::child'; \
             insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
             select i.instance_id, 2, 2, now() + interval '1 day', '', '', '{}' from instances as i \
              where i.instance_id like 'old-%::child'",
        )
        .await
        .expect("all that an instance leaves behind");
}

/// Rows of old instances that are gone, and old instances of which something is missing: one statement, one snapshot.
async fn torn(schema: &TestSchema) -> i64 {
    let orphans = [
        "mailboxes",
        "orchestrator_queue",
        "worker_queue",
        "executions",
        "history",
        "kv_store",
        "kv_delta",
    ]
    .map(|table| {
        format!(
            "select t.instance_id from {table} as t where t.instance_id like 'old-%' \
             and not exists (select from instances as i where i.instance_id = t.instance_id)"
        )
    });
    let incomplete = "select i.instance_id from instances as i where i.instance_id like 'old-%' and ( \
           (select count(*) from history as h where h.instance_id = i.instance_id) \
             <> 3 * (select count(*) from executions as e where e.instance_id = i.instance_id) \
           or not exists (select from executions as e where e.instance_id = i.instance_id) \
           or not exists (select from mailboxes as m where m.instance_id = i.instance_id) \
           or not exists (select from kv_store as k where k.instance_id = i.instance_id) \
           or (i.parent_instance_id is not null \
               and not exists (select from instances as p where p.instance_id = i.parent_instance_id)))";
    let torn = format!("({} union all {incomplete}) as torn", orphans.join(" union all "));
    count(schema, &torn).await
}

/// Orchestrations that are started and awaited all the time.
struct Load {
    client: Client,
    stop: AtomicBool,
    completed: AtomicUsize,
}

impl Load {
    /// Keeps one in flight. Each has to complete, with the result of all its activities.
    async fn keep_one(&self, number: usize) {
        for round in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let instance = format!("live-{number}-{round}");
            let started = self.client.start_orchestration(&instance, "FanOut", "").await;
            started.expect("started");
            match self.client.wait_for_orchestration(&instance, PATIENCE).await {
                Ok(OrchestrationStatus::Completed { output, .. }) => assert_eq!(output, "0,1,2,3,4"),
                other => panic!("{instance}: {other:?}"),
            }
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn at_least(&self, count: usize) {
        let begun = Instant::now();
        while self.completed.load(Ordering::Relaxed) < count {
            assert!(begun.elapsed() < PATIENCE, "the load does not get on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn start_runtime(schema: &TestSchema) -> (Arc<Runtime>, Client) {
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, input: String| async move { Ok(input) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("FanOut", |context: OrchestrationContext, _: String| async move {
            let all = (0..ACTIVITIES).map(|n| context.schedule_activity("Echo", n.to_string()));
            let results = context.join(all.collect()).await;
            Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?.join(","))
        })
        .build();
    let options = RuntimeOptions {
        orchestration_concurrency: 4,
        worker_concurrency: 4,
        ..RuntimeOptions::default()
    };
    let provider = schema.provider().await;
    let runtime = Runtime::start_with_options(provider.clone(), activities, orchestrations, options).await;
    (runtime, Client::new(provider))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prune_that_is_killed_beside_work_leaves_nothing_torn_and_goes_on() {
    let schema = TestSchema::new();
    let (runtime, client) = start_runtime(&schema).await;
    ended(&schema, ROOTS).await;
    decorate(&schema).await;
    let old = count(&schema, "instances where instance_id like 'old-%'").await;
    assert_eq!(old, ROOTS + ROOTS / 10);
    let load = Arc::new(Load {
        client,
        stop: AtomicBool::new(false),
        completed: AtomicUsize::new(0),
    });
    let mut in_flight = JoinSet::new();
    for number in 0..IN_FLIGHT {
        let load = load.clone();
        in_flight.spawn(async move { load.keep_one(number).await });
    }
    load.at_least(IN_FLIGHT).await;

    // Its connections are told from others by this name.
    let url = format!(
        "{} user={} application_name={}",
        key_values(&schema.url),
        user(&schema.url),
        schema.name
    );
    let arguments = ["prune", "instances", "--older-than", "1d", "--batch-size", "10"];
    let mut child = command(&url, &[&["--schema", &schema.name], &arguments[..]].concat())
        .spawn()
        .expect("start");
    let begun = Instant::now();
    while count(&schema, "instances where instance_id like 'old-%'").await > old - 100 {
        assert!(begun.elapsed() < PATIENCE, "it deletes nothing");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    child.kill().expect("SIGKILL");
    assert_eq!(child.wait().expect("ended").signal(), Some(9));
    assert_eq!(torn(&schema).await, 0);
    // What it had sent may still be under way.
    let sessions = format!("pg_stat_activity where application_name = '{}'", schema.name);
    while count(&schema, &sessions).await > 0 {
        assert!(begun.elapsed() < PATIENCE, "its session does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(torn(&schema).await, 0);
    let left = count(&schema, "instances where instance_id like 'old-%'").await;
    assert!(left > 0, "it had ended already");
    assert!(left <= old - 100, "what was committed is back");

    let before_the_rest = load.completed.load(Ordering::Relaxed);
    let rest = cli(&schema, &["prune", "instances", "--older-than", "1d", "--json"])
        .ok()
        .json();
    assert_eq!(rest["instances"], left);
    for table in [
        "instances",
        "executions",
        "history",
        "kv_store",
        "kv_delta",
        "mailboxes",
        "orchestrator_queue",
        "worker_queue",
    ] {
        let rows = format!("{table} where instance_id like 'old-%'");
        assert_eq!(count(&schema, &rows).await, 0, "{table}");
    }

    load.at_least(before_the_rest + IN_FLIGHT).await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = in_flight.join_next().await {
        ended.expect("all its orchestrations completed");
    }
    let completed = load.completed.load(Ordering::Relaxed) as i64;
    let live = "instance_status where instance_id like 'live-%' and status = 'Completed'";
    assert_eq!(count(&schema, live).await, completed);
    assert_eq!(
        count(&schema, "instances where instance_id like 'live-%'").await,
        completed
    );
    runtime.shutdown(None).await;
}
