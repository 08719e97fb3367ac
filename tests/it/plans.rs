//! The plans of the hot functions on big tables: what each statement inside them really did, as auto_explain reports it.

mod deletion;
mod handing_over;
mod idle;
mod left_behind;
mod nearly_empty;
mod rows;

use std::sync::{Arc, Mutex};

use duroxide::providers::WorkItem;
use futures_util::future::poll_fn;
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use uuid::Uuid;

use self::rows::{INSTANCES, TABLES, busy_year};
use crate::fixtures::{activity, completed, raised, routed_activity, scheduled};
use crate::support::TestSchema;

/// The most rows a node may visit, and the most pages a statement may touch.
const MAX_ROWS: f64 = 300.0;
const MAX_PAGES: f64 = 600.0;

/// A connection that reports the plan of every statement, those inside functions too.
struct Explained {
    client: Client,
    plans: Arc<Mutex<Vec<Value>>>,
}

impl Explained {
    async fn new(schema: &TestSchema) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&schema.url, NoTls).await.expect("connect");
        let plans = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&plans);
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message
                    && let Some((_, plan)) = notice.message().split_once("plan:")
                {
                    let plan = serde_json::from_str(plan).expect("a plan");
                    sink.lock().expect("plans").push(plan);
                }
            }
        });
        client
            .batch_execute(&format!(
                "load 'auto_explain'; set search_path = {}; set auto_explain.log_min_duration = 0; \
                 set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on; \
                 set auto_explain.log_buffers = on; set auto_explain.log_format = json; \
                 set auto_explain.log_level = notice; set client_min_messages = notice",
                schema.name
            ))
            .await
            .expect("auto_explain");
        Self { client, plans }
    }

    /// Runs a call. The plans of what the function executed, in this order.
    async fn plans(&self, name: &str, call: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Value> {
        self.plans.lock().expect("plans").clear();
        self.client
            .query(call, parameters)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let mut plans = std::mem::take(&mut *self.plans.lock().expect("plans"));
        assert!(
            plans.len() > 1,
            "{name}: {} plans: auto_explain did not see the function",
            plans.len()
        );
        plans.retain(|plan| query(plan) != call);
        plans
    }

    /// Runs a call and judges what it did.
    async fn judge(&self, name: &str, call: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<String> {
        let plans = self.plans(name, call, parameters).await;
        plans.iter().flat_map(|plan| faults(name, plan)).collect()
    }

    /// The same for a hot function, whose plans also do when the tables grow.
    async fn judge_hot(&self, name: &str, call: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<String> {
        hot_faults(name, &self.plans(name, call, parameters).await)
    }
}

/// Where the statements of a hot function did too much, or will when the tables grow.
fn hot_faults(name: &str, plans: &[Value]) -> Vec<String> {
    let faults = plans
        .iter()
        .map(|plan| [faults(name, plan), whole_indexes(name, plan)].concat());
    faults.flatten().collect()
}

fn query(plan: &Value) -> &str {
    plan["Query Text"].as_str().unwrap_or_default()
}

/// Where a statement touched more than it should.
fn faults(name: &str, plan: &Value) -> Vec<String> {
    let words: Vec<_> = query(plan).split_whitespace().collect();
    let shown: String = words.join(" ").chars().take(100).collect();
    let mut faults = Vec::new();
    let root = &plan["Plan"];
    let pages = number(root, "Shared Hit Blocks") + number(root, "Shared Read Blocks");
    if pages > MAX_PAGES {
        faults.push(format!("{name}: {pages} pages: {shown}"));
    }
    visit(root, &mut |node| {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let rows = (number(node, "Actual Rows")
            + number(node, "Rows Removed by Filter")
            + number(node, "Rows Removed by Index Recheck"))
            * number(node, "Actual Loops");
        if kind == "Seq Scan" {
            faults.push(format!("{name}: sequential scan of {}: {shown}", node["Relation Name"]));
        }
        if rows > MAX_ROWS {
            faults.push(format!("{name}: {rows} rows in {kind}: {shown}"));
        }
    });
    faults
}

/// Where an index is read without a condition. Whoever looks for the head of a queue, or its tags, begins at the beginning.
fn whole_indexes(name: &str, plan: &Value) -> Vec<String> {
    let heads = ["mailboxes_claim_idx", "worker_queue_claim_idx"];
    let mut faults = Vec::new();
    visit(&plan["Plan"], &mut |node| {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let index = node["Index Name"].as_str().unwrap_or_default();
        if kind.starts_with("Index") && node["Index Cond"].is_null() && !heads.contains(&index) {
            let words: Vec<_> = query(plan).split_whitespace().collect();
            faults.push(format!("{name}: all of {index}: {}", words.join(" ")));
        }
    });
    faults
}

fn number(node: &Value, key: &str) -> f64 {
    node[key].as_f64().unwrap_or(0.0)
}

fn visit(node: &Value, look: &mut impl FnMut(&Value)) {
    look(node);
    for child in node["Plans"].as_array().into_iter().flatten() {
        visit(child, look);
    }
}

fn json(item: &WorkItem) -> String {
    serde_json::to_string(item).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_functions_touch_few_rows_on_big_tables() {
    let schema = TestSchema::new();
    schema.provider().await;
    let setup = schema.client().await;
    setup.batch_execute(&busy_year(1, 100_000)).await.expect("a busy year");
    setup.batch_execute(INSTANCES).await.expect("instances");
    setup
        .batch_execute(&format!("analyze {}", TABLES.join(", ")))
        .await
        .expect("analyze");
    let explained = Explained::new(&schema).await;
    hot_functions(&explained, 0).await;
    // Plans are cached by now, as generic plans.
    let faults = hot_functions(&explained, 1).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Calls each hot function, and judges what it did. Leases last an hour: on a busy machine the next round comes long after, and counts on them.
async fn hot_functions(explained: &Explained, round: i64) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(enqueue(explained).await);
    faults.extend(run_turn(explained, round).await);
    faults.extend(run_activity(explained, round).await);
    faults.extend(handing_over::run(explained, round).await);
    faults.extend(idle::run(explained, round).await);
    faults.extend(read_one(explained).await);
    faults.extend(
        explained
            .judge_hot(
                "fetch_orchestration_item, empty",
                "select * from fetch_orchestration_item(3600000, 0, 999999, 4, gen_random_uuid(), false)",
                &[],
            )
            .await,
    );
    for (name, call) in [
        (
            "read, many",
            "select * from read(array['target', 'idle-1'], array[null, null]::bigint[], array[null, null]::bigint[], array[null, null]::bigint[], \
             array[null, null]::text[])",
        ),
        (
            "get_custom_status",
            "select * from get_custom_status(array['target', 'idle-1'], array[-1, 0])",
        ),
        ("get_kv_value", "select * from get_kv_value('target', 'k')"),
        ("get_kv_all_values", "select * from get_kv_all_values('target')"),
        ("get_instance_info", "select * from get_instance_info('target')"),
        ("get_parent_id", "select * from get_parent_id('target')"),
        ("list_children", "select * from list_children('target')"),
        ("get_instance_tree", "select * from get_instance_tree(array['target'])"),
        (
            "renew_session_lock",
            "select * from renew_session_lock(array['me'], 1000, 1000)",
        ),
    ] {
        faults.extend(explained.judge_hot(name, call, &[]).await);
    }
    faults
}

/// Of one instance, a process has nothing in memory, or all but the last events.
async fn read_one(explained: &Explained) -> Vec<String> {
    let mut faults = Vec::new();
    let epoch: i64 = explained
        .client
        .query_one("select history_epoch from mailboxes where instance_id = 'target'", &[])
        .await
        .expect("a mailbox")
        .get(0);
    for (name, epoch, known) in [
        ("read, one", None, None),
        ("read, what is new of one", Some(epoch), Some(40)),
    ] {
        let read = "select * from read(array['target'], array[$1]::bigint[], array[$2]::bigint[], array[$3]::bigint[], array[$4])";
        let parameters: &[&(dyn ToSql + Sync)] = &[&epoch, &known.map(|_| 1_i64), &known, &known.map(|_| "{}")];
        let row = explained.client.query_one(read, parameters).await.expect(name);
        assert_eq!(row.get::<_, i64>("cached_event_id"), known.unwrap_or(0_i64), "{name}");
        faults.extend(explained.judge_hot(name, read, parameters).await);
    }
    faults
}

async fn enqueue(explained: &Explained) -> Vec<String> {
    let mut faults = Vec::new();
    // To an instance at rest, to one in the middle of a turn, to a new one.
    for instance in ["target", "locked", "new"] {
        faults.extend(
            explained
                .judge_hot(
                    &format!("enqueue_for_orchestrator to {instance}"),
                    "select * from enqueue_for_orchestrator($1, 'm', $2, null, null)",
                    &[&instance, &json(&raised(instance, "x"))],
                )
                .await,
        );
    }
    faults
}

async fn run_turn(explained: &Explained, round: i64) -> Vec<String> {
    // 999999: just below the versions that this node cannot replay.
    let fetch = "select * from fetch_orchestration_item(3600000, 0, 999999, 4, gen_random_uuid(), false)";
    let mut faults = explained.judge_hot("fetch_orchestration_item", fetch, &[]).await;
    let lease = leased(explained, "mailboxes", "target").await;
    for (name, call) in [
        (
            "renew_orchestration_item_lock",
            "select * from renew_orchestration_item_lock('target', $1, 3600000)",
        ),
        (
            "abandon_orchestration_item",
            "select * from abandon_orchestration_item('target', $1, null, true, null)",
        ),
    ] {
        faults.extend(explained.judge_hot(name, call, &[&lease]).await);
    }
    explained.client.query(fetch, &[]).await.expect("fetch");
    let lease = leased(explained, "mailboxes", "target").await;
    let event = serde_json::to_string(&scheduled("target", 2)).expect("JSON");
    let item = json(&activity("target", 7));
    faults.extend(
        explained
            .judge_hot(
                "ack_orchestration_item",
                "select * from ack_orchestration_item('target', $1, gen_random_uuid(), 1, 'Running', null, 'Test', \
                 '1.0.0', null, null, true, 'status', false, gen_random_uuid(), $2, $2, array[$2::bigint], array[$3], \
                 array['k'], array['v'], array[1]::bigint[], \
                 array['target'], array[1]::bigint[], array[7]::bigint[], array[''], array[''], array[$4], \
                 array[gen_random_uuid()], array[3600000]::bigint[], \
                 array['target', 'idle-3'], array[1, 1]::bigint[], array[99, 2]::bigint[], \
                 array['idle-7', 'target', 'locked'], array['m', 'm', 'm']::\"char\"[], \
                 array[null, 1, null]::bigint[], array['{}', '{}', '{}'], array['idle-7', 'locked'])",
                &[&lease, &(100 + round), &event, &item],
            )
            .await,
    );
    faults.extend(run_turns_together(explained, round).await);
    faults
}

async fn run_turns_together(explained: &Explained, round: i64) -> Vec<String> {
    let mut faults = explained
        .judge_hot(
            "enqueue_for_orchestrators",
            "select * from enqueue_for_orchestrators(array['target', 'idle-11', 'idle-12', 'idle-13', 'locked'], \
             array['m', 'm', 'm', 'm', 'm']::\"char\"[], array['{}', '{}', '{}', '{}', '{}'], \
             array[null, null, null, null, null]::bigint[], array[null, null, null, null, null]::bigint[])",
            &[],
        )
        .await;
    let waited_for = format!("idle-{}", 1 + round);
    faults.extend(
        explained
            .judge_hot(
                "enqueue_for_orchestrator, handed over",
                "select * from enqueue_for_orchestrator($1, 'm', '{}', null, null, \
                 gen_random_uuid(), 3600000, 0, 999999, gen_random_uuid())",
                &[&waited_for],
            )
            .await,
    );
    let waited_for_lease = leased(explained, "mailboxes", &waited_for).await;
    let fetch = "select * from fetch_orchestration_item(3600000, 0, 999999, 16, gen_random_uuid(), false)";
    faults.extend(explained.judge_hot("fetch_orchestration_item, many", fetch, &[]).await);
    let lease = leased(explained, "mailboxes", "target").await;
    faults.extend(
        explained
            .judge_hot(
                "ack_orchestration_items",
                "select * from ack_orchestration_items(array['target', $5], array[$1, $6]::uuid[], \
                 array[gen_random_uuid(), gen_random_uuid()], array[1, 2]::bigint[], array[null, 'Completed'], \
                 array[null, 'done'], array['Test', null], array['1.0.0', null], array[null, null]::text[], \
                 array[null, null]::bigint[], array[true, false], array['status', null], array[false, false], \
                 array[gen_random_uuid(), null], array[$2::bigint, 200], array[$2::bigint, 200], \
                 array[1, 2], array[$2::bigint, 200], array[$3, '{}'], \
                 array[1], array['k'], array['v'], array[1]::bigint[], \
                 array[1], array['target'], array[1]::bigint[], array[7]::bigint[], array[''], array[''], array[$4], \
                 array[gen_random_uuid()], array[3600000]::bigint[], \
                 array[1, 1], array['target', 'idle-3'], array[1, 1]::bigint[], array[99, 2]::bigint[], \
                 array[1, 1, 1], array['idle-7', 'target', 'locked'], array['m', 'm', 'm']::\"char\"[], \
                 array[null, 1, null]::bigint[], array['{}', '{}', '{}'], array['idle-7', 'locked'], array[true, true])",
                &[
                    &lease,
                    &(200 + round),
                    &serde_json::to_string(&scheduled("target", 2)).expect("JSON"),
                    &json(&activity("target", 7)),
                    &waited_for,
                    &waited_for_lease,
                ],
            )
            .await,
    );
    faults
}

async fn run_activity(explained: &Explained, round: i64) -> Vec<String> {
    let mut faults = explained
        .judge_hot(
            "enqueue_for_worker",
            "select * from enqueue_for_worker('target', 1, $1, '', '#mine', $2)",
            &[&(50 + round), &json(&routed_activity("target", 50, None, Some("mine")))],
        )
        .await;
    // Any tag; as an owner of sessions, and without.
    for call in [
        "select * from fetch_work_item(3600000, array[''], null, 0, false, '{}', '{}', null, 1, gen_random_uuid(), false)",
        "select * from fetch_work_item(3600000, array[''], null, 0, false, '{}', '{}', null, 4, gen_random_uuid(), false)",
        "select * from fetch_work_item(3600000, array['', '#cpu'], 'me', 3600000, false, '{}', '{}', null, 4, gen_random_uuid(), false)",
        "select * from fetch_work_item(3600000, null, 'me', 3600000, true, '{}', '{}', null, 4, gen_random_uuid(), false)",
        "select * from fetch_work_item(3600000, array['#cpu'], 'me', 3600000, false, '{}', '{}', null, 4, gen_random_uuid(), false)",
    ] {
        faults.extend(explained.judge_hot(call, call, &[]).await);
    }
    let row = explained
        .client
        .query_one(
            "select id, lease, activity_id from worker_queue where instance_id = 'target' and lease is not null limit 1",
            &[],
        )
        .await
        .expect("a leased activity");
    let (id, lease, activity_id): (i64, Uuid, i64) = (row.get(0), row.get(1), row.get(2));
    faults.extend(
        explained
            .judge_hot(
                "renew_work_item_lock",
                "select * from renew_work_item_lock('target', 1, $1, $2, 3600000)",
                &[&activity_id, &lease],
            )
            .await,
    );
    // Not its holder: locks and looks, but ends nothing.
    faults.extend(
        explained
            .judge_hot(
                "ack_work_item",
                "select * from ack_work_item('target', 1, $1, $2, gen_random_uuid(), 'target', '{}', \
                 gen_random_uuid(), 3600000, 0, 999999, gen_random_uuid(), 10)",
                &[&activity_id, &id],
            )
            .await,
    );
    faults.extend(
        explained
            .judge_hot(
                "ack_work_items",
                "select * from ack_work_items(array['target', 'idle-5'], array[1, 1]::bigint[], array[$1::bigint, 2], \
                 array[$2::bigint, 0], array[$3, gen_random_uuid()], array['target', 'idle-5'], array[$4, '{}'], \
                 array['idle-5', 'target'], array[gen_random_uuid(), gen_random_uuid()], 1, 3600000, 0, 999999, gen_random_uuid())",
                &[&activity_id, &id, &lease, &json(&completed("target", 7))],
            )
            .await,
    );
    faults
}

async fn leased(explained: &Explained, table: &str, instance: &str) -> Uuid {
    explained
        .client
        .query_one(
            &format!("select lease from {table} where instance_id = $1"),
            &[&instance],
        )
        .await
        .expect("a lease")
        .get(0)
}
