//! What is wrong with a schema.

use super::{Fault, Patient, SERVER, findings};
use crate::database::Database;
use crate::process::{cli, run_on};
use crate::support::TestSchema;

/// What was done by hand, and what the doctor makes of it.
const DAMAGE: &[(&str, &str, &str, &str)] = &[
    (
        "drop index worker_queue_claim_idx",
        "indexes",
        "missing: index worker_queue_claim_idx",
        "CREATE INDEX CONCURRENTLY worker_queue_claim_idx ON \"duroxide\".worker_queue USING btree \
         (tag, session_id, available_at, id);",
    ),
    // As a CREATE INDEX CONCURRENTLY that failed leaves it.
    (
        "update pg_index set indisvalid = false where indexrelid = 'mailboxes_claim_idx'::regclass",
        "indexes",
        "invalid: index mailboxes_claim_idx",
        "reindex index concurrently \"duroxide\".mailboxes_claim_idx;",
    ),
    (
        "create or replace function schema_key() returns integer language sql stable parallel safe as 'select 1'",
        "schema",
        "changed: function schema_key",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "drop function list_children(text)",
        "schema",
        "missing: function list_children",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "grant execute on function delete_instance(text, boolean) to public",
        "schema",
        "PUBLIC has EXECUTE on function delete_instance",
        "revoke execute on function \"duroxide\".delete_instance from public;",
    ),
    (
        "create or replace view instance_events as \
         select h.instance_id, h.execution_id, h.event_id, 'forged'::text as event_data from history as h",
        "schema",
        "changed: view instance_events",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    // Other columns, which CREATE OR REPLACE would refuse to change back.
    (
        "drop view scheduled_messages; create view scheduled_messages as select 1 as instance_id, 2 as more",
        "schema",
        "changed: view scheduled_messages",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "drop view queue_health",
        "schema",
        "missing: view queue_health",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "alter table history disable trigger history_updated",
        "schema",
        "changed: trigger history.history_updated",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "drop trigger history_truncated on history",
        "schema",
        "missing: trigger history.history_truncated",
        "duroxide-postgres --schema duroxide schema apply",
    ),
    (
        "alter table worker_queue set (autovacuum_enabled = false, fillfactor = 100)",
        "schema",
        "changed: table worker_queue is \"with autovacuum_enabled=false autovacuum_vacuum_cost_delay=0 \
         autovacuum_vacuum_scale_factor=0.02 fillfactor=100\", and should be \"with autovacuum_vacuum_cost_delay=0 ",
        "alter table \"duroxide\".worker_queue set (fillfactor=80), reset (autovacuum_enabled);",
    ),
    (
        "alter table history alter event_data drop not null",
        "schema",
        "changed: column history.event_data is \"text\", and should be \"text not null\"",
        "alter table \"duroxide\".history alter column event_data set not null;",
    ),
    (
        "alter table worker_queue alter work_item type varchar(100)",
        "schema",
        "changed: column worker_queue.work_item is \"character varying(100) not null\", and should be \"text not null\"",
        "alter table \"duroxide\".worker_queue alter column work_item type text using work_item::text;",
    ),
    (
        "alter table deployment drop constraint deployment_only_row_check",
        "schema",
        "missing: constraint deployment.deployment_only_row_check",
        "alter table \"duroxide\".deployment add constraint deployment_only_row_check CHECK (only_row);",
    ),
    (
        "alter table worker_queue set unlogged",
        "schema",
        "changed: table worker_queue is \"UNLOGGED with ",
        "alter table \"duroxide\".worker_queue set logged;",
    ),
    (
        "alter table history enable row level security; alter table history force row level security",
        "schema",
        "changed: table history is \"SECURED FORCED with ",
        "alter table \"duroxide\".history disable row level security, no force row level security;",
    ),
    // With an index on it, and views that read it.
    (
        "alter table executions rename completed_at to \"ended at\"",
        "schema",
        "renamed: column executions.completed_at is \"ended at\"",
        "alter table \"duroxide\".executions rename column \"ended at\" to completed_at;",
    ),
    (
        "alter table mailboxes drop column cached_event_id",
        "schema",
        "missing: column mailboxes.cached_event_id",
        "alter table \"duroxide\".mailboxes add column cached_event_id bigint;",
    ),
];

/// Nothing of ours is missing or changed, but nodes that verify the schema do not start.
const IN_THE_WAY: &[(&str, &str, &str, &str)] = &[
    (
        "create table notes (id integer primary key, text text); create index notes_idx on notes (text)",
        "schema",
        "not ours: table notes",
        "alter table \"duroxide\".notes set schema public;",
    ),
    (
        "create index faster on history (ack_id)",
        "indexes",
        "not ours: index faster",
        "drop index concurrently \"duroxide\".faster;",
    ),
    (
        "create function theirs() returns void language sql as 'select'; revoke all on function theirs() from public",
        "schema",
        "not ours: function theirs()",
        "alter routine \"duroxide\".theirs() set schema public;",
    ),
    (
        "create procedure \"Their()s\"(a integer default 1) language sql as 'select'; \
         revoke all on procedure \"Their()s\" from public",
        "schema",
        "not ours: function \"Their()s\"(IN a integer)",
        "alter routine \"duroxide\".\"Their()s\"(IN a integer) set schema public;",
    ),
    // Names that would be those of ours if they ended at the space, or at the dot.
    (
        "create index \"executions_status_idx copy\" on executions (status)",
        "indexes",
        "not ours: index \"executions_status_idx copy\"",
        "drop index concurrently \"duroxide\".\"executions_status_idx copy\";",
    ),
    (
        "create table \"history old\" (id integer primary key, \"a b\" text); \
         create index \"old ON x\" on \"history old\" (\"a b\")",
        "schema",
        "not ours: table \"history old\"",
        "alter table \"duroxide\".\"history old\" set schema public;",
    ),
    (
        "create view \"queue_health.a\"\"b\" as select 1 as one",
        "schema",
        "not ours: view \"queue_health.a\"\"b\"",
        "alter view \"duroxide\".\"queue_health.a\"\"b\" set schema public;",
    ),
    (
        "alter table executions add column \"output backup\" jsonb",
        "schema",
        "not ours: column executions.\"output backup\"",
        "/* what is in it is lost */ alter table \"duroxide\".executions drop column \"output backup\";",
    ),
    (
        "alter table sessions add constraint \"one of\" unique (owner_id)",
        "schema",
        "not ours: constraint sessions.\"one of\"",
        "alter table \"duroxide\".sessions drop constraint \"one of\";",
    ),
    (
        "create rule \"keep all\" as on delete to history do instead nothing",
        "schema",
        "not ours: rule history.\"keep all\"",
        "drop rule \"keep all\" on \"duroxide\".history;",
    ),
    (
        "create trigger mine instead of insert on instance_counts for each row execute function forget_cached_history()",
        "schema",
        "not ours: trigger instance_counts.mine",
        "drop trigger mine on \"duroxide\".instance_counts;",
    ),
    (
        "alter table sessions add column note text",
        "schema",
        "not ours: column sessions.note",
        "/* what is in it is lost */ alter table \"duroxide\".sessions drop column note;",
    ),
];

#[tokio::test]
async fn each_damage_is_found_and_cured_by_what_is_offered() {
    let patient = Patient::new().await;
    patient.silent(&[]);
    for &(plant, check, says, fix) in DAMAGE {
        patient.execute(plant).await;
        patient.finds(
            &[],
            &Fault {
                severity: "error",
                check,
                says: &[says],
                fix,
            },
        );
        patient.cure(fix).await;
        patient.silent(&[]);
    }
    patient.done().await;
}

#[tokio::test]
async fn what_is_not_ours_is_found_and_can_be_moved_away() {
    let patient = Patient::new().await;
    for &(plant, check, says, fix) in IN_THE_WAY {
        patient.execute(plant).await;
        patient.finds(
            &[],
            &Fault {
                severity: "error",
                check,
                says: &[says],
                fix,
            },
        );
        patient.cure(fix).await;
        patient.silent(&[]);
    }

    // Each overload is one of its own.
    patient
        .execute(
            "create function mine(integer) returns void language sql as 'select'; \
             create function mine(text) returns void language sql as 'select'; \
             revoke all on function mine(integer), mine(text) from public",
        )
        .await;
    let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
    assert_eq!(
        findings(&report, "schema"),
        ["integer", "text"].map(|argument| format!(
            "error not ours: function mine({argument}) | alter routine \"duroxide\".mine({argument}) set schema public;"
        ))
    );
    for argument in ["integer", "text"] {
        let fix = format!("alter routine \"duroxide\".mine({argument}) set schema public;");
        patient.cure(&fix).await;
    }
    patient.silent(&[]);

    // An index with the name of ours that is another one: first away with it.
    patient
        .execute("drop index executions_status_idx; create index executions_status_idx on executions (status)")
        .await;
    let drop = "drop index concurrently \"duroxide\".executions_status_idx;";
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "indexes",
            says: &["changed: index executions_status_idx", "(status, completed_at)"],
            fix: drop,
        },
    );
    patient.cure(drop).await;
    let create = "CREATE INDEX CONCURRENTLY executions_status_idx ON \"duroxide\".executions USING btree (status, completed_at);";
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "indexes",
            says: &["missing: index executions_status_idx"],
            fix: create,
        },
    );
    patient.cure(create).await;
    patient.silent(&[]);

    // Data that is gone is in a backup, or nowhere.
    patient.execute("drop table kv_delta cascade").await;
    let report = run_on(patient.url(), &["doctor", "--json"]).fails(1, &[]).json();
    let problems = findings(&report, "schema");
    let table = "error missing: table kv_delta | pg_restore --schema=duroxide --table=kv_delta --dbname=\"$DATABASE_URL\" BACKUP # all nodes stopped; then doctor again";
    assert_eq!(
        problems,
        [
            table,
            "error missing: view instance_values | duroxide-postgres --schema duroxide schema apply"
        ]
    );
    patient.done().await;
}

#[tokio::test]
async fn other_releases_are_found() {
    let patient = Patient::new().await;
    patient
        .execute("update deployment set release = '0.0.9', functions_digest = 'older'")
        .await;
    let apply = "duroxide-postgres --schema duroxide schema apply";
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "schema",
            says: &["deployed by release 0.0.9, or another build of it", "this is 0.1.0"],
            fix: apply,
        },
    );
    patient.cure(apply).await;
    patient.silent(&[]);
    patient.execute("update deployment set release = '99.0.0'").await;
    let install = "cargo install duroxide-postgres --version 99.0.0 --features cli";
    patient.finds(
        &[],
        &Fault {
            severity: "note",
            check: "schema",
            says: &["deployed by release 99.0.0, which is later than this one, 0.1.0"],
            fix: install,
        },
    );
    patient.execute("update deployment set serves_from = '98.0.0'").await;
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "schema",
            says: &[
                "release 99.0.0, which serves processes from release 98.0.0 on",
                "Install release 98.0.0 or later",
            ],
            fix: install,
        },
    );
    patient.done().await;
}

#[tokio::test]
async fn a_schema_without_a_deployment_is_an_error() {
    let schema = TestSchema::new();
    let report = cli(&schema, &["doctor", "--json"]).fails(1, &["put right"]).json();
    let problems = findings(&report, "schema");
    assert!(
        problems[0].contains("there is no schema") && problems[0].ends_with("schema apply"),
        "{problems:?}"
    );
    crate::support::connect(&schema.url)
        .await
        .batch_execute(&format!("create schema {0}; create table {0}.theirs ()", schema.name))
        .await
        .expect("their schema");
    let report = cli(&schema, &["doctor", "--json"]).fails(1, &["put right"]).json();
    assert!(findings(&report, "schema")[0].contains("is not ours"), "{report:#}");
}

/// What is moved to `public` from elsewhere goes elsewhere from there; an extension with all that belongs to it.
#[tokio::test]
async fn what_is_not_ours_leaves_public_too() {
    let database = Database::create_on(&SERVER.admin_url()).await;
    database.close_public().await;
    let client = database.client().await;
    let doctor = || run_on(&database.url, &["--schema", "public", "doctor", "--json"]);
    run_on(&database.url, &["--schema", "public", "schema", "apply"]).ok();
    for (plant, says) in [
        ("create table notes (id integer)", "table notes"),
        (
            "create function theirs() returns void language sql as 'select'; revoke all on function theirs from public",
            "function theirs()",
        ),
        ("create extension tsm_system_rows", "extension tsm_system_rows"),
        ("create extension pg_buffercache", "extension pg_buffercache"),
    ] {
        // Not every server has all of them.
        if client.batch_execute(plant).await.is_err() && plant.contains("extension") {
            continue;
        }
        let report = doctor().fails(1, &["1 thing"]).json();
        let finding = &report["findings"][0];
        assert_eq!(finding["message"], format!("not ours: {says}"), "{report:#}");
        let fix = finding["fixes"][0].as_str().expect("a fix");
        client.batch_execute(fix).await.expect(fix);
        doctor().ok();
    }
    drop(client);
    database.drop().await;
}
