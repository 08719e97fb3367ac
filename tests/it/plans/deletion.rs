//! What a batch of a deletion touches: not what else has ended, was deleted before, or runs.

use super::Explained;
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
    analyze;
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
    for round in 0..2 {
        let first = 4000 + round * 100;
        let ids: Vec<String> = (first..first + 10).map(|n| format!("old-{n}")).collect();
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
        let ids: Vec<String> = (first + 10..first + 20).map(|n| format!("old-{n}")).collect();
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
