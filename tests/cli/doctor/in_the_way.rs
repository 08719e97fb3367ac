//! What keeps the doctor itself from looking: the rest is looked at all the same.

use super::server::{until, until_on};
use super::{Fault, Patient, doctor_with, findings, found};
use crate::cluster::{Cluster, Options};
use crate::process::run_on;
use crate::support::connect;
use crate::waiting::holder;

#[tokio::test]
async fn a_locked_table_is_found_with_its_holder() {
    let patient = Patient::new().await;
    let client = patient.database.client().await;
    let (_holder, pid) = holder(client, "lock table duroxide.mailboxes").await;
    let fix = format!("select pg_terminate_backend({pid});");
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "locks",
            says: &[
                &format!("session {pid} has AccessExclusiveLock on mailboxes (of role postgres, application_name the holder, "),
                "nodes wait for it. What could not be checked because of it: schema, backlog",
            ],
            fix: &fix,
        },
    );
    // Other faults are found beside it.
    let name = &patient.database.name;
    patient
        .execute(&format!("alter database {name} set synchronous_commit = off"))
        .await;
    let report = run_on(patient.url(), &["doctor", "--json"])
        .fails(1, &["1 thing"])
        .json();
    assert_eq!(findings(&report, "settings").len(), 1, "{report:#}");
    patient
        .execute(&format!("alter database {name} reset synchronous_commit"))
        .await;
    patient.cure(&fix).await;
    patient.silent(&[]);
    patient.done().await;
}

#[tokio::test]
async fn a_prepared_transaction_is_a_holder_too() {
    let patient = Patient::new().await;
    let gid = format!("it's {}", patient.database.name).replace('\'', "''");
    patient
        .execute(&format!(
            "begin; lock table duroxide.mailboxes; prepare transaction '{gid}'"
        ))
        .await;
    let fix = format!("rollback prepared '{gid}';");
    // It does not end by itself: whoever waited for it would, for ever.
    let options = [("PGOPTIONS", "-c statement_timeout=60s")];
    let report = doctor_with(patient.url(), &options, &["doctor", "--json"])
        .fails(1, &["1 thing"])
        .json();
    let locks = findings(&report, "locks");
    assert!(
        locks.len() == 1
            && locks[0].contains(&format!(
                "prepared transaction '{gid}' has AccessExclusiveLock on mailboxes"
            ))
            && locks[0].ends_with(&format!(" | {fix}")),
        "{report:#}"
    );
    // Who deploys or drops is told the same.
    let who = format!("prepared transaction '{gid}', has AccessExclusiveLock on mailboxes");
    run_on(patient.url(), &["schema", "apply"]).fails(1, &[&who, fix.trim_end_matches(';')]);
    patient.cure(&fix).await;
    patient.silent(&[]);
    patient.done().await;
}

/// What is given on the command line, ALTER SYSTEM does not change.
#[tokio::test]
async fn room_is_made_where_the_limit_comes_from() {
    let server = Cluster::start(&Options {
        arguments: &["-c", "max_connections=20"],
        ..Options::default()
    });
    let patient = Patient::on(&server).await;
    let role = &patient.database.name;
    patient
        .execute(&format!("create role {role} login; grant pg_read_all_stats to {role}"))
        .await;
    run_on(patient.url(), &["grant", "--for", "dashboard", role]).ok();
    let url = format!("{} user={role}", patient.url());
    // Three are for superusers alone: one is left.
    let mut others = vec![connect(&url).await];
    // What was closed before goes away in its own time.
    let alone = "select count(*) = 1 from pg_stat_activity where backend_type = 'client backend'";
    until_on(&others[0], alone).await;
    for _ in 1..16 {
        others.push(connect(&url).await);
    }
    let report = run_on(&url, &["doctor", "--json"]).fails(1, &[]).json();
    let found = findings(&report, "connections");
    let crowded = found.iter().find(|finding| finding.contains("no second connection"));
    let fix = " | restart the server with max_connections=40 on its command line, where it is given";
    assert!(crowded.is_some_and(|finding| finding.ends_with(fix)), "{report:#}");
    drop(others);
    patient.done().await;
}

#[tokio::test]
async fn a_last_connection_is_enough() {
    let patient = Patient::new().await;
    let role = &patient.database.name;
    patient
        .execute(&format!(
            "create role {role} login connection limit 1; grant pg_read_all_stats to {role}"
        ))
        .await;
    run_on(patient.url(), &["grant", "--for", "dashboard", role]).ok();
    let url = format!("{} user={role}", patient.url());
    // A connection that was closed goes away in its own time, and until then there is no other.
    let doctor = |arguments: &[&str]| {
        let mut tries = (0..100).map(|_| run_on(&url, arguments));
        tries.find(|finished| finished.code != 3).expect("a connection")
    };
    let fix = format!("alter role {role} connection limit 6;");
    found(
        doctor,
        &Fault {
            severity: "error",
            check: "connections",
            says: &[
                "no second connection can be had, so that pooler could not be checked",
                &format!("too many connections for role \"{role}\""),
                "53300",
            ],
            fix: &fix,
        },
    );
    // What a lock ended does not cost the one connection: nothing else is kept from looking.
    let client = patient.database.client().await;
    let (held, _) = holder(client, "lock table duroxide.mailboxes").await;
    let report = doctor(&["doctor", "--json"]).fails(1, &["2 things"]).json();
    let (locks, crowded) = (findings(&report, "locks"), findings(&report, "connections"));
    assert!(
        locks.len() == 1
            && locks[0].contains("because of it: schema, backlog")
            && crowded.len() == 1
            && crowded[0].contains("so that pooler could not be checked"),
        "{report:#}"
    );
    drop(held);
    patient.cure(&fix).await;
    assert_eq!(doctor(&["doctor"]).ok().out, "0 errors, 0 warnings\n");

    // Others have all but one of those of the database: 17 for a node and 5 for others.
    let client = patient.database.client().await;
    let alone =
        "select count(*) = 0 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    until_on(&client, alone).await;
    drop(client);
    let mut others = Vec::new();
    for _ in 0..21 {
        others.push(connect(patient.url()).await);
    }
    others[0]
        .batch_execute(&format!("alter database {role} connection limit 22"))
        .await
        .expect("limit");
    let fix = format!("alter database {role} connection limit 27;");
    found(
        doctor,
        &Fault {
            severity: "error",
            check: "connections",
            says: &[&format!("too many connections for database \"{role}\"")],
            fix: &fix,
        },
    );
    others[0].batch_execute(&fix).await.expect("cure");
    assert_eq!(doctor(&["doctor"]).ok().out, "0 errors, 0 warnings\n");
    drop(others);

    // Without the first there is nothing.
    patient.execute(&format!("alter role {role} connection limit 0")).await;
    let failed = run_on(&url, &["doctor"]).fails(3, &["too many connections for role"]);
    assert_eq!(failed.out, "");
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// Where nothing says what is deployed, what the catalogs say is looked at, and what else was not.
#[tokio::test]
async fn a_locked_record_keeps_little_from_being_looked_at() {
    let patient = Patient::new().await;
    let snapshot = connect(patient.url()).await;
    snapshot
        .batch_execute("begin isolation level repeatable read; select 1")
        .await
        .expect("a snapshot");
    patient
        .execute("insert into kv_store select 'i', i::text, 'v', 0 from generate_series(1, 20000) as i; delete from kv_store")
        .await;
    let dead =
        "select n_dead_tup >= 20000 from pg_stat_user_tables where schemaname = 'duroxide' and relname = 'kv_store'";
    until(patient.url(), dead).await;
    let client = patient.database.client().await;
    let (_holder, _) = holder(client, "lock table duroxide.deployment").await;
    let report = run_on(patient.url(), &["doctor", "--json"])
        .fails(1, &["1 thing"])
        .json();
    for (check, says) in [
        ("locks", "because of it: schema"),
        ("backlog", "nothing says what is deployed"),
        ("vacuum", "20000 dead rows"),
    ] {
        let found = findings(&report, check);
        assert!(found.len() == 1 && found[0].contains(says), "{report:#}");
    }
    drop(snapshot);
    patient.done().await;
}
