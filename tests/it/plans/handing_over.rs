//! What it costs to put something into a queue that is leased already.

use uuid::Uuid;

use super::{Explained, json, leased};
use crate::fixtures::{activity, start};
use crate::support::TestSchema;

const STARTS: &str = "select * from enqueue_for_orchestrators(array[$1, $2, $3], array['s', 's', 's']::\"char\"[], \
     array[$4, $4, $4], array[null, null, null]::bigint[], array[null, null, null]::bigint[], \
     array[$1, $2, $3], array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], 2, 3600000, 0, 999999, gen_random_uuid())";

/// New instances, in the order of their ids; two of three are leased.
async fn starts(explained: &Explained, name: &str) -> Vec<String> {
    let instances = ["a", "b", "c"].map(|instance| format!("{name}-{instance}"));
    let [one, two, three] = &instances;
    let faults = explained
        .judge_hot(
            "enqueue_for_orchestrators, starts",
            STARTS,
            &[one, two, three, &json(&start(one))],
        )
        .await;
    let held = "select count(lease) from mailboxes where instance_id = any ($1)";
    let held: i64 = (explained.client.query_one(held, &[&instances.as_slice()]).await)
        .expect("mailboxes")
        .get(0);
    assert_eq!(held, 2);
    faults
}

pub(super) async fn run(explained: &Explained, round: i64) -> Vec<String> {
    let mut faults = starts(explained, &format!("new-{round}")).await;
    let alone = format!("alone-{round}");
    faults.extend(
        explained
            .judge_hot(
                "enqueue_for_orchestrator, a start",
                "select * from enqueue_for_orchestrator($1, 's', $2, null, null, \
                 gen_random_uuid(), 3600000, 0, 999999, gen_random_uuid())",
                &[&alone, &json(&start(&alone))],
            )
            .await,
    );
    leased(explained, "mailboxes", &alone).await;
    let one = format!("one-{round}");
    faults.extend(
        explained
            .judge_hot(
                "enqueue_for_worker, leased",
                "select * from enqueue_for_worker($1, 1, 1, '', '', $2, gen_random_uuid(), 3600000)",
                &[&one, &json(&activity(&one, 1))],
            )
            .await,
    );
    let lease: Uuid = leased(explained, "worker_queue", &one).await;
    faults.extend(
        explained
            .judge_hot(
                "abandon_work_item",
                "select * from abandon_work_item($1, 1, 1, $2, null, true, 0)",
                &[&one, &lease],
            )
            .await,
    );
    let many = format!("many-{round}");
    faults.extend(
        explained
            .judge_hot(
                "enqueue_for_workers, some leased",
                "select * from enqueue_for_workers(array[$1, $1, $1], array[1, 1, 1]::bigint[], array[1, 2, 3]::bigint[], \
                 array['', '', ''], array['', '', ''], array[$2, $2, $2], \
                 array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], array[3600000, null, 3600000]::bigint[])",
                &[&many, &json(&activity(&many, 1))],
            )
            .await,
    );
    faults
}

/// Planned when everything was empty, and kept while the tables grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_empty_tables_do_no_harm_when_they_have_grown() {
    let schema = TestSchema::new();
    schema.provider().await;
    let setup = schema.client().await;
    for table in ["mailboxes", "history"] {
        let still = format!("alter table {table} set (autovacuum_enabled = off)");
        setup.batch_execute(&still).await.expect("settings");
        setup.batch_execute(&format!("vacuum {table}")).await.expect("vacuum");
    }
    let explained = Explained::new(&schema).await;
    starts(&explained, "before").await;
    let grown = "insert into mailboxes (instance_id, available_at) select 'idle-' || n, 'infinity' from generate_series(1, 5000) as n; \
                 insert into history (instance_id, execution_id, event_id, event_data) \
                 select 'idle-' || n, 1, 1, '{}' from generate_series(1, 5000) as n";
    setup.batch_execute(grown).await.expect("rows");
    let faults = starts(&explained, "after").await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
