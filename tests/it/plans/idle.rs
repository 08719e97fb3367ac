//! What it costs to claim an instance that was idle until just now, and that the claiming process has in memory: all there is to its turn
//! is what the call brings.

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Explained, hot_faults, json, leased, query};
use crate::fixtures::{activity, completed, raised};

/// The process that has the instances in memory.
const NODE: Uuid = Uuid::from_u128(1);

/// An instance at rest. `in_memory`: which of its executions, of which there is one.
async fn rests(explained: &Explained, instance: &str, in_memory: i64) {
    explained
        .client
        .batch_execute(&format!(
            "insert into mailboxes (instance_id, available_at, pinned_version, cached_by, cached_execution_id, cached_event_id) \
             values ('{instance}', 'infinity', 64, '{NODE}', {in_memory}, 40); \
             insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at) \
             values ('{instance}', 'Test', '1.0.0', 1, now(), now()); \
             insert into executions (instance_id, execution_id, status, started_at) values ('{instance}', 1, 'Running', now()); \
             insert into history (instance_id, execution_id, event_id, event_data) \
             select '{instance}', 1, e, '{{}}' from generate_series(1, 50) as e; \
             insert into kv_store (instance_id, key, value, last_updated_at_ms) values ('{instance}', 'k', 'v', 0)"
        ))
        .await
        .expect("an instance at rest");
}

/// Judges a call that finds an instance idle.
async fn judge(explained: &Explained, name: &str, call: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<String> {
    let plans = explained.plans(name, call, parameters).await;
    let claims = plans.iter().any(|plan| query(plan).contains("from claim_idle_turn("));
    assert!(claims, "{name}: the instance was not idle");
    hot_faults(name, &plans)
}

/// An activity that somebody works on: the row, and its lease.
async fn under_way(explained: &Explained, instance: &str, activity_id: i64) -> (i64, Uuid) {
    let item = json(&activity(instance, activity_id as u64));
    let enqueue = "select * from enqueue_for_worker($1, 1, $2, '', '', $3, gen_random_uuid(), 3600000)";
    let enqueued = explained.client.query(enqueue, &[&instance, &activity_id, &item]).await;
    enqueued.expect("enqueue");
    let row = "select id, lease from worker_queue where instance_id = $1 and activity_id = $2";
    let row = explained.client.query_one(row, &[&instance, &activity_id]).await;
    let row = row.expect("an activity");
    (row.get(0), row.get(1))
}

pub(super) async fn run(explained: &Explained, round: i64) -> Vec<String> {
    let mut faults = enqueue(explained, round).await;
    // What comes of activities that ended: whether others are under way is looked up before the turn is claimed, or after.
    for rest_ms in [10_i64, 0] {
        faults.extend(ack_the_only_one(explained, &format!("only-{rest_ms}-{round}"), rest_ms).await);
    }
    faults.extend(ack_one_by_one(explained, &format!("one-by-one-{round}")).await);
    faults.extend(ack_together(explained, &format!("together-{round}")).await);
    faults
}

async fn enqueue(explained: &Explained, round: i64) -> Vec<String> {
    const ENQUEUE: &str = "select * from enqueue_for_orchestrator($1, 'm', $2, null, null, \
         gen_random_uuid(), 3600000, 0, 999999, $3)";
    let instance = format!("in-memory-{round}");
    rests(explained, &instance, 1).await;
    let message = json(&raised(&instance, "x"));
    let name = "enqueue_for_orchestrator, idle";
    let mut faults = judge(explained, name, ENQUEUE, &[&instance, &message, &NODE]).await;
    leased(explained, "mailboxes", &instance).await;

    let instance = format!("another-execution-{round}");
    rests(explained, &instance, 2).await;
    let message = json(&raised(&instance, "x"));
    let name = "enqueue_for_orchestrator, idle, another execution in memory";
    faults.extend(judge(explained, name, ENQUEUE, &[&instance, &message, &NODE]).await);
    // It was only made due: no other call is to find it.
    let takes = "update mailboxes set available_at = 'infinity' where instance_id = $1 and lease is null and available_at <= now()";
    let taken = explained.client.execute(takes, &[&instance]).await;
    assert_eq!(taken.expect("mailboxes"), 1);
    faults
}

const ACK: &str =
    "select * from ack_work_item($1, 1, $2, $3, $4, $1, $5, gen_random_uuid(), 3600000, 0, 999999, $6, $7)";

async fn ack_the_only_one(explained: &Explained, instance: &str, rest_ms: i64) -> Vec<String> {
    rests(explained, instance, 1).await;
    let (id, lease) = under_way(explained, instance, 1).await;
    let completion = json(&completed(instance, 1));
    let name = format!("ack_work_item, idle, rests {rest_ms} ms");
    let parameters: &[&(dyn ToSql + Sync)] = &[&instance, &1_i64, &id, &lease, &completion, &NODE, &rest_ms];
    let faults = judge(explained, &name, ACK, parameters).await;
    leased(explained, "mailboxes", instance).await;
    faults
}

/// The first finds the instance idle, and leaves it to a look; before that comes, the last claims it.
async fn ack_one_by_one(explained: &Explained, instance: &str) -> Vec<String> {
    rests(explained, instance, 1).await;
    let mut faults = Vec::new();
    let both = [
        under_way(explained, instance, 1).await,
        under_way(explained, instance, 2).await,
    ];
    for (activity_id, (id, lease)) in (1_i64..).zip(both) {
        let completion = json(&completed(instance, activity_id as u64));
        let parameters: &[&(dyn ToSql + Sync)] = &[&instance, &activity_id, &id, &lease, &completion, &NODE, &0_i64];
        let name = format!("ack_work_item, {activity_id} of 2");
        faults.extend(explained.judge_hot(&name, ACK, parameters).await);
    }
    leased(explained, "mailboxes", instance).await;
    faults
}

async fn ack_together(explained: &Explained, instance: &str) -> Vec<String> {
    rests(explained, instance, 1).await;
    let (first, first_lease) = under_way(explained, instance, 1).await;
    let (second, second_lease) = under_way(explained, instance, 2).await;
    let completion = json(&completed(instance, 1));
    let call = "select * from ack_work_items(array[$1, $1], array[1, 1]::bigint[], array[1, 2]::bigint[], array[$2, $3]::bigint[], \
         array[$4, $5]::uuid[], array[$1, $1], array[$6, $6], array[$1], array[gen_random_uuid()], 1, 3600000, 0, 999999, $7, 10)";
    let parameters: &[&(dyn ToSql + Sync)] = &[
        &instance,
        &first,
        &second,
        &first_lease,
        &second_lease,
        &completion,
        &NODE,
    ];
    let faults = judge(explained, "ack_work_items, idle", call, parameters).await;
    leased(explained, "mailboxes", instance).await;
    faults
}
