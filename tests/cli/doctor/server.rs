//! What is wrong with a server, or with the way to it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use duroxide_postgres::PostgresProvider;

use super::{Fault, Patient, SERVER, doctor_with, findings, found};
use crate::cluster::{Cluster, Options, Pooler, have};
use crate::process::run_on;
use crate::support::{connect, with_database};

/// Waits until a query says true.
pub async fn until(url: &str, sql: &str) {
    until_on(&connect(url).await, sql).await;
}

/// The same, without a connection of its own.
pub async fn until_on(client: &tokio_postgres::Client, sql: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !client.query_one(sql, &[]).await.expect(sql).get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "never: {sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_at_work_is_not_worth_a_word() {
    let patient = Patient::new().await;
    let store = Arc::new(PostgresProvider::connect(patient.url()).await.expect("provider"));
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Work", |ctx: OrchestrationContext, text: String| async move {
            ctx.schedule_timer(Duration::from_millis(1)).await;
            ctx.schedule_activity("Echo", text).await
        })
        .build();
    let runtime = Runtime::start_with_store(store.clone(), activities, orchestrations).await;
    let client = Client::new(store);
    for i in 0..50 {
        let instance = format!("i-{i}");
        client.start_orchestration(&instance, "Work", "x").await.expect("start");
    }
    // Roles with what they need are none either.
    let role = &patient.database.name;
    patient.execute(&format!("create role {role}")).await;
    run_on(patient.url(), &["grant", role]).ok();
    patient.silent(&[]);
    for i in 0..50 {
        let instance = format!("i-{i}");
        let ended = client.wait_for_orchestration(&instance, Duration::from_secs(60));
        ended.await.expect("ended");
    }
    patient.silent(&["--nodes", "10"]);
    runtime.shutdown(None).await;
    patient
        .execute(&format!("drop owned by {role}; drop role {role}"))
        .await;
    patient.done().await;
}

/// Each setting on a server of its own kind: cured one after the other, until nothing is left.
#[tokio::test]
async fn a_server_that_loses_data_or_never_cleans_up_is_found() {
    let server = Cluster::start(&Options {
        settings: "fsync = off\nfull_page_writes = off\nautovacuum = off\ntrack_counts = off\nmax_connections = 20\n\
                   wal_level = logical",
        ..Options::default()
    });
    let patient = Patient::on(&server).await;
    let small = ["--pool-size", "4"];
    let report = run_on(patient.url(), &["doctor", "--json", "--pool-size", "4"]).fails(1, &["4 things"]);
    assert_eq!(findings(&report.json(), "settings").len(), 4);
    for (setting, why) in [
        ("fsync", "can destroy the database"),
        ("full_page_writes", "can destroy the database"),
        ("autovacuum", "every fetch gets slower"),
        ("track_counts", "autovacuum does not know"),
    ] {
        let fix = format!("alter system set {setting} = on;\nselect pg_reload_conf();");
        let report = run_on(patient.url(), &["doctor", "--json", "--pool-size", "4"]).json();
        let settings = findings(&report, "settings");
        let expected = format!("error {setting} is off: ");
        let finding = settings.iter().find(|finding| finding.starts_with(&expected));
        let finding = finding.unwrap_or_else(|| panic!("{setting}: {report:#}"));
        assert!(
            finding.contains(why) && finding.ends_with(&format!(" | {fix}")),
            "{finding}"
        );
        patient.cure(&fix).await;
        until(
            patient.url(),
            &format!("select setting = 'on' from pg_settings where name = '{setting}'"),
        )
        .await;
    }
    patient.silent(&small);

    // Sixteen and a listener for a node do not fit.
    patient.finds(
        &[],
        &Fault {
            severity: "error",
            check: "connections",
            says: &[
                "1 nodes with a pool_size of 16 take 17 connections",
                "the server has 17",
            ],
            fix: "alter system set max_connections = 25; -- and restart the server",
        },
    );
    // They would, but others have them.
    let mut others = Vec::new();
    for _ in 0..14 {
        others.push(connect(patient.url()).await);
    }
    let report = run_on(patient.url(), &["doctor", "--json", "--pool-size", "4"]).json();
    let full = findings(&report, "connections");
    assert!(
        full.len() == 1 && full[0].contains("of 17 connections are in use | alter system set max_connections = 40;"),
        "{report:#}"
    );
    drop(others);
    until(
        patient.url(),
        "select count(*) < 5 from pg_stat_activity where backend_type = 'client backend'",
    )
    .await;
    patient.silent(&small);

    patient
        .execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        .await;
    let fix =
        "/* bring its reader back; only if that is gone for good: */ select pg_drop_replication_slot('forgotten');";
    until(
        patient.url(),
        "select coalesce(clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz > interval '10 ms', true) \
           from pg_replication_slots as s",
    )
    .await;
    patient.finds(
        &["--pool-size", "4", "--old-transaction", "10ms"],
        &Fault {
            severity: "warning",
            check: "snapshots",
            // One for logical decoding keeps no rows of tables.
            says: &[
                "nobody reads replication slot forgotten, ",
                ": WAL piles up, and vacuum cannot clean the system catalogs",
            ],
            fix,
        },
    );
    patient.cure(fix).await;
    patient.silent(&small);
    patient.done().await;
}

#[tokio::test]
async fn settings_of_a_database_are_found() {
    let patient = Patient::new().await;
    patient.silent(&[]);
    patient.finds(
        &["--nodes", "100", "--pool-size", "8"],
        &Fault {
            severity: "error",
            check: "connections",
            says: &[
                "100 nodes with a pool_size of 8 take 900 connections",
                "the server has 297",
            ],
            fix: "alter system set max_connections = 908; -- and restart the server",
        },
    );
    // A role of the same name, with settings of its own.
    let name = &patient.database.name;
    patient.execute(&format!("create role {name} superuser login")).await;
    run_on(patient.url(), &["grant", name]).ok();
    run_on(patient.url(), &["grant", "--for", "dashboard", name]).ok();
    let url = format!("{} user={name}", patient.url());
    for (plant, severity, check, says, fix) in [
        (
            "alter database {} set synchronous_commit = off",
            "warning",
            "settings",
            "synchronous_commit is off: a crash of the server can lose",
            "alter database {} set synchronous_commit = on;",
        ),
        (
            "alter database {} set default_transaction_isolation = 'repeatable read'",
            "error",
            "settings",
            "transactions are repeatable read by default: the functions refuse",
            "alter database {} set default_transaction_isolation = 'read committed';",
        ),
        (
            "alter database {} set default_transaction_read_only = on",
            "error",
            "settings",
            "transactions are read-only by default",
            "begin read write; alter database {} set default_transaction_read_only = off; commit;",
        ),
        // What a role has counts more than what its database has.
        (
            "alter role {} set default_transaction_isolation = 'serializable'",
            "error",
            "settings",
            "transactions are serializable by default: the functions refuse",
            "alter role {} in database {} set default_transaction_isolation = 'read committed';",
        ),
        (
            "alter role {} in database {} set default_transaction_read_only = on",
            "error",
            "settings",
            "transactions are read-only by default",
            "begin read write; alter role {} in database {} set default_transaction_read_only = off; commit;",
        ),
        (
            "alter role {} nosuperuser connection limit 16; grant pg_read_all_stats to {}",
            "error",
            "connections",
            "take 17 connections, and 5 are for others: role \"{}\" is limited to 16",
            "alter role {} connection limit 17;",
        ),
        (
            "alter database {} connection limit 20",
            "error",
            "connections",
            "take 17 connections, and 5 are for others: database",
            "alter database {} connection limit 22;",
        ),
    ] {
        patient.execute(&plant.replace("{}", name)).await;
        let (fix, says) = (&fix.replace("{}", name), &says.replace("{}", name));
        let fault = Fault {
            severity,
            check,
            says: &[says],
            fix,
        };
        found(|arguments| run_on(&url, arguments), &fault);
        patient.cure(fix).await;
        assert_eq!(run_on(&url, &["doctor"]).ok().out, "0 errors, 0 warnings\n");
    }

    // The server cannot change what comes from the client.
    let fault = Fault {
        severity: "error",
        check: "settings",
        says: &["transactions are repeatable read by default"],
        fix: "take default_transaction_isolation out of the connection string (options) and of PGOPTIONS, for nodes too",
    };
    let options = [("PGOPTIONS", "-c default_transaction_isolation=repeatable\\ read")];
    found(|arguments| doctor_with(&url, &options, arguments), &fault);
    patient
        .execute(&format!("drop owned by {name}; drop role {name}"))
        .await;
    patient.done().await;
}

#[tokio::test]
async fn a_clock_that_differs_is_found() {
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .iter()
        .map(|folder| format!("{folder}/faketime/libfaketime.so.1"))
        .find(|file| Path::new(file).is_file());
    let Some(library) = library else {
        let advice = "libfaketime is not installed (Debian's package faketime)";
        assert!(std::env::var_os("CI").is_none(), "{advice}");
        eprintln!("SKIPPED, NOTHING WAS TESTED: {advice}");
        return;
    };
    let patient = Patient::new().await;
    for (offset, side) in [("-90m", "ahead of"), ("+90m", "behind")] {
        let environment = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        found(
            |arguments| doctor_with(patient.url(), &environment, arguments),
            &Fault {
                severity: "warning",
                check: "clock",
                says: &[
                    "the server's clock is 1 h ",
                    side,
                    "this machine's: timers fire that much off",
                ],
                fix: "chronyc tracking # on this machine and on the server's. Let the one that is off slew; step it \
                      (chronyc makestep) only while no node runs",
            },
        );
    }
    patient.silent(&[]);
    patient.done().await;
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_found() {
    if !have("pgbouncer") {
        return;
    }
    let patient = Patient::new().await;
    for connections in [1, 3] {
        let pooler = Pooler::start(&SERVER, connections);
        let url = with_database(&pooler.url("postgres"), &patient.database.name);
        found(
            |arguments| run_on(&url, arguments),
            &Fault {
                severity: "warning",
                check: "pooler",
                says: &["a pooler in transaction mode", "only poll for work"],
                fix: "Builder::transaction_pooler(true), and Builder::direct_url with the URL of the server itself",
            },
        );
    }
    // What it advises: the server itself.
    patient.silent(&[]);
    patient.done().await;
}

#[tokio::test]
async fn old_transactions_are_found() {
    let patient = Patient::new().await;
    let holder = connect(&format!("{} application_name=report", patient.url())).await;
    holder
        .batch_execute("begin isolation level repeatable read; select 1")
        .await
        .expect("a snapshot");
    let pid: i32 = holder
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("pid")
        .get(0);
    // It is young as yet.
    patient.silent(&[]);
    let old = ["--old-transaction", "10ms"];
    let age = "select clock_timestamp() - xact_start > interval '10 ms' from pg_stat_activity where application_name = 'report'";
    until(patient.url(), age).await;
    let fix = format!("select pg_terminate_backend({pid});");
    patient.finds(
        &old,
        &Fault {
            severity: "warning",
            check: "snapshots",
            says: &[
                &format!(
                    "session {pid} of postgres (idle in transaction, application_name report) holds an old snapshot"
                ),
                "vacuum cannot clean the queues",
            ],
            fix: &fix,
        },
    );
    patient.cure(&fix).await;
    until(
        patient.url(),
        "select not exists (select from pg_stat_activity where application_name = 'report')",
    )
    .await;
    patient.silent(&old);

    patient
        .execute("begin; create table public.t (); prepare transaction 'left behind'")
        .await;
    until(
        patient.url(),
        "select clock_timestamp() - prepared > interval '10 ms' from pg_prepared_xacts where gid = 'left behind'",
    )
    .await;
    let fix = "rollback prepared 'left behind';";
    patient.finds(
        &old,
        &Fault {
            severity: "warning",
            check: "snapshots",
            says: &["prepared transaction left behind holds an old snapshot, for "],
            fix,
        },
    );
    patient.cure(fix).await;
    patient.silent(&old);
    patient.done().await;
}

/// Vacuum cannot remove what somebody may still see, so that the fault stays until it is looked for.
#[tokio::test]
async fn dead_rows_are_found() {
    let patient = Patient::new().await;
    let holder = connect(patient.url()).await;
    holder
        .batch_execute("begin isolation level repeatable read; select 1")
        .await
        .expect("a snapshot");
    patient
        .execute(
            "insert into kv_store select 'i', i::text, 'v', 0 from generate_series(1, 20000) as i; delete from kv_store",
        )
        .await;
    until(
        patient.url(),
        "select n_dead_tup >= 20000 from pg_stat_user_tables where schemaname = 'duroxide' and relname = 'kv_store'",
    )
    .await;
    let fix = "vacuum (analyze) duroxide.kv_store;";
    patient.finds(
        &[],
        &Fault {
            severity: "warning",
            check: "vacuum",
            says: &["duroxide.kv_store has 20000 dead rows beside 0 live ones"],
            fix,
        },
    );
    holder.batch_execute("rollback").await.expect("rollback");
    patient.cure(fix).await;
    until(
        patient.url(),
        "select n_dead_tup < 10000 from pg_stat_user_tables where schemaname = 'duroxide' and relname = 'kv_store'",
    )
    .await;
    patient.silent(&[]);
    patient.done().await;
}
