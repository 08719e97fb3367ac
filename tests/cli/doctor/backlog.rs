//! Work that waits.

use super::{Fault, Patient, findings};
use crate::process::run_on;

const NOBODYS_WORK: &str = "\
    insert into worker_queue (instance_id, execution_id, activity_id, available_at, tag, session_id, work_item) \
    select 'i', 1, a, clock_timestamp() - interval '2 hours', '#nobody', '', '{}' from generate_series(1, 7) as a";

#[tokio::test]
async fn work_that_nobody_takes_is_found() {
    let patient = Patient::new().await;
    patient.execute(NOBODYS_WORK).await;
    patient.finds(
        &[],
        &Fault {
            severity: "warning",
            check: "backlog",
            says: &[
                "7 items of the worker queue are ready, the oldest for 2 h 00 m",
                "none that can take them",
            ],
            fix: "duroxide-postgres --schema duroxide status",
        },
    );
    patient.execute("delete from worker_queue").await;
    patient.silent(&[]);
    // One is waiting for its instance, which nobody starts; the other ones are instances that have not begun, one of which somebody holds.
    patient
        .execute(
            "insert into orchestrator_queue (instance_id, kind, visible_at, work_item) \
             select instance, kind, clock_timestamp() - interval '2 hours', '{}' \
               from (values ('i', 'x'::\"char\"), ('new', 'x'), ('new', 's'), ('held', 'x')) as q (instance, kind); \
             insert into mailboxes (instance_id, available_at, lease, start_item) values ('held', 'infinity', gen_random_uuid(), '{}')",
        )
        .await;
    let query = "select q.instance_id, count(*) from \"duroxide\".orchestrator_queue as q where not exists \
                 (select from \"duroxide\".instances as i where i.instance_id = q.instance_id) group by 1 \
                 having not bool_or(q.kind = 's') and not exists (select from \"duroxide\".mailboxes as m \
                 where m.instance_id = q.instance_id and m.start_item is not null);";
    patient.finds(
        &[],
        &Fault {
            severity: "warning",
            check: "backlog",
            says: &["or messages for instances that were never started"],
            fix: &format!("duroxide-postgres --schema duroxide status\n{query}"),
        },
    );
    let rows = patient.database.client().await.query(query, &[]).await.expect(query);
    let found: Vec<(&str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found, [("i", 1)]);
    patient.done().await;
}

/// Only what is wrong with the view itself keeps the doctor from asking it.
#[tokio::test]
async fn it_is_found_beside_a_view_that_is_only_called_alike() {
    let patient = Patient::new().await;
    patient.execute(NOBODYS_WORK).await;
    patient
        .execute("create view queue_health_copy as select * from queue_health")
        .await;
    let report = run_on(patient.url(), &["doctor", "--json"])
        .fails(1, &["1 thing"])
        .json();
    assert_eq!(findings(&report, "backlog").len(), 1, "{report:#}");
    assert_eq!(
        findings(&report, "schema"),
        ["error not ours: view queue_health_copy | alter view \"duroxide\".queue_health_copy set schema public;"]
    );
    patient
        .execute(
            "drop view queue_health_copy; \
             create or replace view queue_health as \
             select 'all'::text as queue, 1::bigint as total, 1::bigint as ready, 0::bigint as scheduled, 0::bigint as leased, \
                    now() as oldest_ready_at, interval '9 days' as latency, now() as next_at, 0::bigint as retried, 0 as max_attempts",
        )
        .await;
    let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
    assert_eq!(findings(&report, "backlog").len(), 0, "{report:#}");
    patient.done().await;
}
