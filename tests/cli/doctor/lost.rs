//! Tables that are gone, and how to get back.

use super::{Fault, Patient, findings};
use crate::process::{psql, run_on};

const APPLY: &str = "duroxide-postgres --schema duroxide schema apply";

/// The fixes of all findings about the schema, done one after the other.
async fn cure_all(patient: &Patient) {
    let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
    for finding in findings(&report, "schema") {
        let (_, fix) = finding.split_once(" | ").expect("a fix");
        patient.cure(fix).await;
    }
}

#[tokio::test]
async fn lost_records_are_named_and_written_again() {
    let patient = Patient::new().await;
    for (table, finding) in [
        (
            "deployment",
            "error missing: table deployment | create table \"duroxide\".deployment (",
        ),
        (
            "schema_history",
            "error missing: table schema_history, which says what migrations were applied | begin; ",
        ),
    ] {
        patient.execute(&format!("drop table {table}")).await;
        let says = format!("is not completely deployed: table {table} is missing");
        for arguments in [
            &["schema", "apply"][..],
            &["schema", "verify"],
            &["schema", "version"],
            &["schema", "drop", "--yes"],
            &["status"],
        ] {
            let failed = run_on(patient.url(), arguments).fails(1, &[&says, "doctor"]);
            assert!(!failed.err.contains("42P01"), "{}", failed.err);
        }
        if let Some(script) = psql(patient.url(), &run_on("", &["schema", "sql"]).ok().out) {
            script.fails(3, &[&format!("table {table} is missing")]);
        }
        let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
        let found = findings(&report, "schema");
        assert!(
            found.len() == 2 && found[0].starts_with(finding) && found[1].ends_with(APPLY),
            "{report:#}"
        );
        cure_all(&patient).await;
        patient.silent(&[]);
    }

    // The rest is looked at, too; and what migrations there were is known only where the tables are those of this release.
    patient
        .execute("drop table schema_history; alter table sessions drop column owner_id cascade; drop index instances_parent_idx")
        .await;
    let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
    let found = findings(&report, "schema").join("\n");
    for part in [
        "pg_restore --schema=duroxide --table=schema_history ",
        "missing: column sessions.owner_id",
    ] {
        assert!(found.contains(part), "{part:?} is not in {report:#}");
    }
    patient.done().await;
}

/// A later release may have deployed it: without its record its migrations show.
#[tokio::test]
async fn what_a_later_release_deployed_is_not_overwritten_without_its_record() {
    let patient = Patient::new().await;
    patient
        .execute(
            "delete from deployment; insert into schema_history select 99, 'later', h.applied_on, 'x' from schema_history as h \
              where h.version = 1",
        )
        .await;
    run_on(patient.url(), &["schema", "apply"]).fails(1, &["has migration 99", "a later one"]);
    patient.execute("delete from schema_history where version = 99").await;
    patient.cure(APPLY).await;
    patient.silent(&[]);
    patient.done().await;
}

/// There is no such release to install.
#[tokio::test]
async fn a_record_that_names_no_release_is_written_again() {
    let patient = Patient::new().await;
    patient.execute("update deployment set release = 'unknown; #'").await;
    let fix = format!("delete from \"duroxide\".deployment;\n{APPLY}");
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "schema",
            says: &["names no release that deployed it (\"unknown; #\")"],
            fix: &fix,
        },
    );
    patient.cure(&fix).await;
    patient.silent(&[]);
    // One that can be had is.
    patient
        .execute("update deployment set release = '99.0.0', serves_from = '98.0.0'")
        .await;
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "schema",
            says: &["was deployed by release 99.0.0"],
            fix: "cargo install duroxide-postgres --version 99.0.0 --features cli",
        },
    );
    patient.done().await;
}

/// As after pg_restore of the one table: identity and its sequence are not part of it.
#[tokio::test]
async fn numbers_of_a_restored_table_are_not_given_out_again() {
    let patient = Patient::new().await;
    patient
        .execute(
            "insert into mailboxes (instance_id, available_at, claimed_ids) values ('i', 'infinity', '{41, 7}'); \
             insert into orchestrator_queue (instance_id, visible_at, kind, work_item) select 'i', now(), 'm', '{}' from generate_series(1, 9); \
             alter table mailboxes alter history_epoch drop identity; \
             update mailboxes set history_epoch = 1234; \
             alter table worker_queue alter id drop identity; \
             alter table orchestrator_queue alter id drop identity",
        )
        .await;
    cure_all(&patient).await;
    let next = "select nextval('duroxide.mailboxes_history_epoch_seq'), nextval('duroxide.orchestrator_queue_id_seq'), \
                       nextval('duroxide.worker_queue_id_seq')";
    let row = patient
        .database
        .client()
        .await
        .query_one(next, &[])
        .await
        .expect("next");
    // The first message would be taken for one that is claimed.
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)),
        (1235, 42, 1)
    );
    patient.silent(&[]);
    patient.done().await;
}

#[tokio::test]
async fn the_fix_of_a_lost_sequence_says_that_nodes_must_not_run() {
    let patient = Patient::new().await;
    patient
        .execute("alter table mailboxes alter history_epoch drop identity")
        .await;
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "schema",
            says: &["changed: column mailboxes.history_epoch"],
            fix: "/* stop all nodes first */ alter table \"duroxide\".mailboxes alter column history_epoch add generated always \
                  as identity; select setval(pg_get_serial_sequence('\"duroxide\".mailboxes', 'history_epoch'), \
                  coalesce(greatest(max(history_epoch)), 0) + 1, false) from \"duroxide\".mailboxes;",
        },
    );
    patient.done().await;
}
