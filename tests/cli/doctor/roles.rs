//! What roles may do too little or too much of, and what the doctor cannot see because of its own.

use serde_json::json;

use super::{Fault, Patient, findings, found};
use crate::process::{Finished, run_on};

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
            format!("grant select (event_data) on history to {role}"),
            "warning",
            format!("role {role:?} has SELECT (event_data) on table history"),
            format!("revoke SELECT (event_data) on duroxide.history from {role};"),
        ),
        (
            format!("grant create on schema duroxide to {role}"),
            "warning",
            format!("role {role:?} has CREATE on the schema"),
            format!("revoke CREATE on schema duroxide from {role};"),
        ),
        (
            "grant create on schema duroxide to public".to_string(),
            "warning",
            "PUBLIC has CREATE on the schema".to_string(),
            "revoke CREATE on schema duroxide from public;".to_string(),
        ),
        (
            format!(
                "alter table kv_store owner to {role}; alter function delete_instance(text, boolean) owner to {role}"
            ),
            "warning",
            format!(
                "role {role:?} owns function delete_instance, table kv_store; the rest belongs to role \"postgres\""
            ),
            "alter function duroxide.delete_instance(p_instance_id text, p_force boolean) owner to postgres; \
             alter table duroxide.kv_store owner to postgres;"
                .to_string(),
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
    patient
        .execute("grant select on queue_health to public; grant create on schema duroxide to public")
        .await;
    run_on(patient.url(), &["schema", "apply"]).ok();
    patient.silent(&[]);
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// The fix is the one that takes nothing away.
#[tokio::test]
async fn what_a_dashboard_lacks_costs_it_no_payloads() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role}")).await;
    run_on(patient.url(), &["grant", "--for", "dashboard", "--payloads", role]).ok();
    let payloads = "duroxide-postgres --schema duroxide grant --for dashboard --payloads";
    for (view, kept) in [
        ("lease_status", "instance_payloads"),
        ("instance_payloads", "instance_events"),
    ] {
        patient.execute(&format!("revoke select on {view} from {role}")).await;
        if view == "lease_status" {
            let fix = format!("{payloads} {role}");
            let says = format!("role {role:?} lacks SELECT on {view}");
            patient.finds(
                &[],
                &Fault {
                    severity: "error",
                    check: "privileges",
                    says: &[&says],
                    fix: &fix,
                },
            );
            patient.cure(&fix).await;
        } else {
            // It has some of them: whoever took that one away may have meant it.
            patient
                .execute(&format!("revoke select on lease_status from {role}"))
                .await;
            let report = run_on(patient.url(), &["doctor", "--json"])
                .fails(1, &["1 thing"])
                .json();
            let lacks = findings(&report, "privileges");
            let (_, fix) = lacks[0].split_once(" | ").expect("a fix");
            patient.cure(fix).await;
        }
        patient.silent(&[]);
        let has = format!("select has_table_privilege('{role}', 'duroxide.{kept}', 'select')");
        let row = patient.database.client().await.query_one(&has, &[]).await;
        assert!(row.expect("privilege").get::<_, bool>(0), "{kept}");
    }
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// Its name means something to a shell, and to SQL.
#[tokio::test]
async fn a_role_that_may_nothing_hears_of_everything_else() {
    let patient = Patient::new().await;
    let role = format!("it's \"{}\"", patient.database.name);
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    patient
        .execute(&format!(
            "create role {quoted} login; grant pg_read_all_stats to {quoted}; \
             alter database {} set synchronous_commit = off",
            patient.database.name
        ))
        .await;
    let url = format!("{} user='{}'", patient.url(), role.replace('\'', "\\'"));
    let report = run_on(&url, &["doctor", "--json"]).fails(1, &["1 thing"]).json();
    assert_eq!(findings(&report, "settings").len(), 1, "{report:#}");
    let fix = format!(
        "duroxide-postgres --schema duroxide grant --for dashboard '{}'",
        role.replace('\'', r"'\''")
    );
    let lacks = &findings(&report, "privileges")[..];
    assert!(
        lacks.len() == 1 && lacks[0].contains("may not use the schema") && lacks[0].ends_with(&format!(" | {fix}")),
        "{report:#}"
    );
    patient.cure(&fix).await;
    let report = run_on(&url, &["doctor", "--json"]).ok().json();
    assert_eq!((&report["errors"], &report["warnings"]), (&json!(0), &json!(1)));
    patient
        .execute(&format!("drop owned by {quoted}; drop role {quoted}"))
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
        says: &["sees little of other roles' sessions: old transactions there were not looked for"],
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
    let verified = run_on(&url, &["schema", "verify"]).ok().out;
    assert!(
        verified.contains("not compared: what the views say") && verified.contains("deploys it, the views aside"),
        "{verified}"
    );
    let views_compared = |verified: Finished| verified.ok().json()["views_compared"] == true;
    assert!(!views_compared(run_on(&url, &["schema", "verify", "--json"])));
    patient.cure(&fix).await;
    assert!(views_compared(run_on(&url, &["schema", "verify", "--json"])));
    assert_eq!(run_on(&url, &["doctor"]).ok().out, "0 errors, 0 warnings\n");
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}
