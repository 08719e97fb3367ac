//! What a batch of a deletion touches: not what else has ended, was deleted before, or runs.

use serde_json::Value;

use super::{Explained, faults, query};
use crate::support::TestSchema;

/// Statistics from before all the running ones came, as after a burst of starts. Nothing is vacuumed.
const A_BURST_OF_STARTS: &str = "
    alter table instances set (autovacuum_enabled = off);
    alter table executions set (autovacuum_enabled = off);
    alter table history set (autovacuum_enabled = off);
    alter table mailboxes set (autovacuum_enabled = off);
    insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at)
    select 'old-' || n, 'Test', '1.0.0', 2, now() - interval '3 days', now() - interval '2 days' from generate_series(1, 5000) as n;
    insert into executions (instance_id, execution_id, status, started_at, completed_at)
    select 'old-' || n, e, 'Completed', now() - interval '3 days', now() - interval '2 days' + n * interval '1 s'
      from generate_series(1, 5000) as n, generate_series(1, 2) as e;
    insert into history (instance_id, execution_id, event_id, event_data)
    select 'old-' || n, e, 1, '{}' from generate_series(1, 5000) as n, generate_series(1, 2) as e;
    insert into mailboxes (instance_id, available_at) select 'old-' || n, 'infinity' from generate_series(1, 5000) as n;
    analyze instances, executions, history, mailboxes;
    insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at)
    select 'new-' || n, 'Test', '1.0.0', 1, now(), now() from generate_series(1, 20000) as n;
    insert into executions (instance_id, execution_id, status, started_at)
    select 'new-' || n, 1, 'Running', now() from generate_series(1, 20000) as n;
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_touches_what_it_deletes() {
    let schema = TestSchema::new();
    schema.provider().await;
    let setup = schema.client().await;
    setup.batch_execute(A_BURST_OF_STARTS).await.expect("a burst of starts");
    // Deleted and not vacuumed, in front of all others in the index.
    setup
        .batch_execute("select delete_instance_bulk(null, null, 3000)")
        .await
        .expect("deleted");
    let explained = Explained::new(&schema).await;
    let mut faults = Vec::new();
    // Few enough that what they need stays well below the limit of pages.
    for round in 0..2 {
        let first = 4000 + round * 100;
        let ids: Vec<String> = (first..first + 5).map(|n| format!("old-{n}")).collect();
        faults.extend(
            explained
                .judge(
                    "prune_executions",
                    "select * from prune_executions($1, null, 10, 1, null)",
                    &[&ids],
                )
                .await,
        );
        faults.extend(
            explained
                .judge(
                    "delete_instance_bulk",
                    "select * from delete_instance_bulk($1, 253402300799999, 10)",
                    &[&ids],
                )
                .await,
        );
        let ids: Vec<String> = (first + 10..first + 15).map(|n| format!("old-{n}")).collect();
        faults.extend(
            explained
                .judge(
                    "delete_instances_atomic",
                    "select * from delete_instances_atomic($1, false)",
                    &[&ids],
                )
                .await,
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Statistics from when 100 of 5,000 had ended. All have by now.
const A_BURST_OF_ENDS: &str = "
    alter table instances set (autovacuum_enabled = off);
    alter table executions set (autovacuum_enabled = off);
    insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, created_at, updated_at)
    select 'old-' || n, 'Test', '1.0.0', 1, now() - interval '3 days', now() from generate_series(1, 5000) as n;
    insert into executions (instance_id, execution_id, status, started_at, completed_at)
    select 'old-' || n, 1, case when n <= 100 then 'Completed' else 'Running' end, now() - interval '3 days',
           case when n <= 100 then now() - interval '2 days' + n * interval '1 s' end
      from generate_series(1, 5000) as n;
    analyze instances, executions;
    update executions
       set status = 'Completed', completed_at = now() - interval '1 day' + random() * interval '1 h'
     where status = 'Running';
";

/// Nobody names them, so what is to go is looked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_for_what_is_old_stops_at_the_limit() {
    // Not fewer than the statistics know of: it seems that all of them are wanted.
    const LIMIT: usize = 100;
    let schema = TestSchema::new();
    schema.provider().await;
    let setup = schema.client().await;
    setup.batch_execute(A_BURST_OF_ENDS).await.expect("a burst of ends");
    let explained = Explained::new(&schema).await;
    for before in ["null", "253402300799999"] {
        let call = format!("select * from delete_instance_bulk(null, {before}, {LIMIT})");
        let plans = explained.plans("delete_instance_bulk", &call, &[]).await;
        assert_eq!(looks(&plans), LIMIT + 1, "before {before}");
        let mut faults: Vec<_> = plans
            .iter()
            .flat_map(|plan| faults("delete_instance_bulk", plan))
            .collect();
        // So many instances take as many pages.
        faults.retain(|fault| !fault.contains(" pages: "));
        assert!(faults.is_empty(), "before {before}: {}", faults.join("\n"));
    }
}

/// How often trees were looked at for one that runs: each root's, and all of them again under their locks.
fn looks(plans: &[Value]) -> usize {
    plans
        .iter()
        .filter(|plan| query(plan).contains("'ContinuedAsNew'"))
        .count()
}

/// One parent has nearly all children there are: the statistics know no other. It runs, they ended before all others.
const ONE_LARGE_FAMILY: &str = "
    alter table instances set (autovacuum_enabled = off);
    alter table executions set (autovacuum_enabled = off);
    insert into instances (instance_id, orchestration_name, orchestration_version, current_execution_id, parent_instance_id,
                           created_at, updated_at)
    select case n when 0 then 'root' else 'child-' || n end, 'Test', '1.0.0', 1, case when n > 0 then 'root' end,
           now() - interval '3 days', now()
      from generate_series(0, 2000) as n
     union all
    select 'old-' || n, 'Test', '1.0.0', 1, null, now() - interval '3 days', now() from generate_series(1, 20) as n;
    insert into executions (instance_id, execution_id, status, started_at, completed_at)
    select i.instance_id, 1, case i.instance_id when 'root' then 'Running' else 'Completed' end, i.created_at,
           case when i.parent_instance_id is not null then now() - interval '2 days'
                when i.instance_id <> 'root' then now() - interval '1 day' end
      from instances as i;
    analyze instances, executions;
";

/// The children are stepped over, since they end with their root, but each costs no more than a look at its parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_children_of_one_that_runs_cost_little() {
    const LIMIT: usize = 5;
    let schema = TestSchema::new();
    schema.provider().await;
    let setup = schema.client().await;
    setup.batch_execute(ONE_LARGE_FAMILY).await.expect("a family");
    let explained = Explained::new(&schema).await;
    let call = format!("select * from delete_instance_bulk(null, null, {LIMIT})");
    for _ in 0..2 {
        let plans = explained.plans("delete_instance_bulk", &call, &[]).await;
        let is_search = |plan: &&Value| query(plan).contains("unnest(array['Completed', 'Failed'])");
        assert_eq!(plans.iter().filter(is_search).count(), 1);
        assert_eq!(looks(&plans), LIMIT + 1);
        let others = plans.iter().filter(|plan| !is_search(plan));
        let faults: Vec<_> = others.flat_map(|plan| faults("delete_instance_bulk", plan)).collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
    // A tree is read by those who are in it.
    let plans = explained
        .judge("get_instance_tree", "select get_instance_tree(array['old-20'])", &[])
        .await;
    assert!(plans.is_empty(), "{}", plans.join("\n"));
}
