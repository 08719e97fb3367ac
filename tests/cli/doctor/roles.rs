//! What roles may do too little or too much of, and what the doctor cannot see because of its own.

use super::{Fault, Patient, found};
use crate::process::run_on;

#[tokio::test]
async fn privileges_that_are_missing_or_too_many_are_found() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role}")).await;
    run_on(patient.url(), &["grant", role]).ok();
    patient.silent(&[]);
    let grant = format!("duroxide-postgres --schema duroxide grant {role}");
    for (plant, severity, says, fix) in [
        (
            format!("revoke execute on function ack_orchestration_item from {role}"),
            "error",
            format!("role {role:?} lacks EXECUTE on ack_orchestration_item"),
            grant.clone(),
        ),
        (
            format!("revoke usage on schema duroxide from {role}"),
            "error",
            format!("role {role:?} lacks USAGE on the schema"),
            grant,
        ),
        (
            format!("grant insert on instances to {role}"),
            "warning",
            format!("role {role:?} has INSERT on table instances"),
            format!("revoke INSERT on duroxide.instances from {role};"),
        ),
        (
            "grant select on history to public".to_string(),
            "warning",
            "PUBLIC has SELECT on table history".to_string(),
            "revoke SELECT on duroxide.history from public;".to_string(),
        ),
    ] {
        patient.execute(&plant).await;
        patient.finds(
            &[],
            &Fault {
                severity,
                check: "privileges",
                says: &[&says],
                fix: &fix,
            },
        );
        patient.cure(&fix).await;
        patient.silent(&[]);
    }
    // PUBLIC's are put right by a deployment too.
    patient.execute("grant select on queue_health to public").await;
    run_on(patient.url(), &["schema", "apply"]).ok();
    patient.silent(&[]);
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

#[tokio::test]
async fn who_cannot_see_everything_is_told_so() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role} login")).await;
    run_on(patient.url(), &["grant", "--for", "dashboard", role]).ok();
    let url = format!("{} user={role}", patient.url());
    let fix = format!("grant pg_read_all_stats to {role};");
    let fault = Fault {
        severity: "note",
        check: "snapshots",
        says: &["sees no other role's sessions: old transactions there were not looked for"],
        fix: &fix,
    };
    found(|arguments| run_on(&url, arguments), &fault);
    patient.cure(&fix).await;
    assert_eq!(run_on(&url, &["doctor"]).ok().out, "0 errors, 0 warnings\n");

    // The role of an application sees no queues.
    patient
        .execute(&format!("drop owned by {role}; grant pg_read_all_stats to {role}"))
        .await;
    run_on(patient.url(), &["grant", role]).ok();
    let fix = format!("duroxide-postgres --schema duroxide grant --for dashboard {role}");
    let fault = Fault {
        severity: "note",
        check: "backlog",
        says: &["may not read the views: whether work waits was not checked"],
        fix: &fix,
    };
    found(|arguments| run_on(&url, arguments), &fault);
    patient.cure(&fix).await;
    assert_eq!(run_on(&url, &["doctor"]).ok().out, "0 errors, 0 warnings\n");

    let database = &patient.database.name;
    patient
        .execute(&format!("revoke temporary on database {database} from public"))
        .await;
    let fix = format!("grant temporary on database {database} to {role};");
    let fault = Fault {
        severity: "note",
        check: "schema",
        says: &["may create no temporary views: what the views say was not compared"],
        fix: &fix,
    };
    found(|arguments| run_on(&url, arguments), &fault);
    patient.cure(&fix).await;
    assert_eq!(run_on(&url, &["doctor"]).ok().out, "0 errors, 0 warnings\n");
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}
