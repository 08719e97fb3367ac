//! Settings that the doctor's own session does not have, or that ALTER SYSTEM cannot change.

use super::{Fault, Patient};
use crate::process::run_on;

#[tokio::test]
async fn settings_of_the_roles_of_nodes_are_found() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role} login")).await;
    for (setting, value, severity, says, cure) in [
        (
            "default_transaction_isolation",
            "'Serializable'",
            "error",
            "= serializable: the functions refuse",
            "'read committed'",
        ),
        (
            "default_transaction_read_only",
            "on",
            "error",
            "= on: nodes cannot",
            "off",
        ),
        ("synchronous_commit", "off", "warning", "= off: a crash", "on"),
    ] {
        // Not of a role that runs no nodes.
        patient
            .execute(&format!(
                "drop owned by {role}; alter role {role} set {setting} = {value}"
            ))
            .await;
        patient.silent(&[]);
        run_on(patient.url(), &["grant", role]).ok();
        let fix = format!("alter role {role} in database {role} set {setting} = {cure};");
        patient.finds(
            &[],
            &Fault {
                severity,
                check: "settings",
                says: &[&format!("role {role:?} has {setting} {says}")],
                fix: &fix,
            },
        );
        patient.cure(&fix).await;
        patient.silent(&[]);
        patient.execute(&format!("alter role {role} reset all")).await;
    }
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// What a database has counts more than what the server has.
#[tokio::test]
async fn what_alter_system_cannot_change_is_changed_where_it_is() {
    let patient = Patient::new().await;
    let name = &patient.database.name;
    patient
        .execute(&format!("alter database {name} set track_counts = off"))
        .await;
    let fix = format!("alter database {name} set track_counts = on;");
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "settings",
            says: &["track_counts is off"],
            fix: &fix,
        },
    );
    patient.cure(&fix).await;
    patient.silent(&[]);
    patient.done().await;
}

/// Wherever they come from: what nodes get counts, and nobody else's.
#[tokio::test]
async fn timeouts_that_end_what_nodes_do_are_found() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role} login")).await;
    let number: i32 = patient
        .database
        .client()
        .await
        .query_one("select current_setting('server_version_num')::integer", &[])
        .await
        .expect("version")
        .get(0);
    let mut timeouts = vec![
        (
            "statement_timeout",
            "'5s'",
            "= 5.0 s: calls that take longer",
            Some("'30s'"),
        ),
        (
            "lock_timeout",
            "100",
            "= 100 ms: calls that wait for a deployment",
            Some("'5s'"),
        ),
        ("idle_session_timeout", "'1h'", "= 1 h 00 m: it ends connections", None),
    ];
    if number >= 170_000 {
        timeouts.push((
            "transaction_timeout",
            "'1.5 s'",
            "= 1.5 s: calls that take longer",
            Some("'1min'"),
        ));
    }
    for (setting, short, says, enough) in timeouts {
        for plant in [
            format!("alter role {role} set {setting} = "),
            format!("alter role {role} in database {role} set {setting} = "),
            format!("alter database {role} set {setting} = "),
        ] {
            // Not of a role that runs no nodes.
            patient.execute(&format!("drop owned by {role}; {plant}{short}")).await;
            patient.silent(&[]);
            run_on(patient.url(), &["grant", role]).ok();
            let fix = format!("alter role {role} in database {role} set {setting} = 0;");
            patient.finds(
                &[],
                &Fault {
                    severity: "warning",
                    check: "settings",
                    says: &[&format!("role {role:?} has {setting} {says}")],
                    fix: &fix,
                },
            );
            patient.cure(&fix).await;
            patient.silent(&[]);
            let reset = format!("alter role {role} reset all; alter role {role} in database {role} reset all");
            patient.execute(&reset).await;
            if let Some(enough) = enough {
                patient.execute(&format!("{plant}{enough}")).await;
                patient.silent(&[]);
            }
            patient
                .execute(&format!("{reset}; alter database {role} reset all"))
                .await;
        }
    }
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// What nodes get from the database, where the one who looks has something else of its own.
#[tokio::test]
async fn settings_of_the_database_are_found_behind_ones_own() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient.execute(&format!("create role {role} login")).await;
    run_on(patient.url(), &["grant", role]).ok();
    for (severity, setting, bad, good) in [
        (
            "error",
            "default_transaction_isolation",
            "serializable",
            "'read committed'",
        ),
        ("error", "default_transaction_read_only", "on", "off"),
        ("warning", "synchronous_commit", "off", "on"),
    ] {
        // For the database last: the next session would get it.
        patient
            .execute(&format!(
                "alter role postgres in database {role} set {setting} = {good}; alter database {role} set {setting} = {bad}"
            ))
            .await;
        let fix = format!("alter role {role} in database {role} set {setting} = {good};");
        patient.finds(
            &[],
            &Fault {
                severity,
                check: "settings",
                says: &[&format!("role {role:?} has {setting} = {bad}: ")],
                fix: &fix,
            },
        );
        patient.cure(&fix).await;
        patient.silent(&[]);
        patient
            .execute(&format!(
                "alter database {role} reset all; alter role {role} in database {role} reset all; \
                 alter role postgres in database {role} reset all"
            ))
            .await;
    }
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}
