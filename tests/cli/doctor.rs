//! `doctor`: finds what was broken for it.

use serde_json::Value;

use crate::process::cli;
use crate::support::TestSchema;

/// Findings of a check, as `severity message | fix`.
fn findings(report: &Value, check: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("findings").iter();
    findings
        .filter(|finding| finding["check"] == check)
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().expect("text").to_string();
            format!("{} {} | {}", text("severity"), text("message"), text("fix"))
        })
        .collect()
}

#[tokio::test]
async fn a_sound_schema_has_no_errors_of_its_own() {
    let schema = TestSchema::new();
    schema.provider().await;
    let report = cli(&schema, &["doctor", "--json"]).json();
    for check in ["schema", "indexes", "privileges", "clock", "pooler", "backlog"] {
        assert_eq!(findings(&report, check), Vec::<String>::new(), "{check}");
    }
    assert!(findings(&report, "version")[0].starts_with("note PostgreSQL "));
    assert!(findings(&report, "connections")[0].contains("connections are in use"));
    // The test server may well run without fsync: that is its only error.
    let settings = findings(&report, "settings");
    let unsafe_settings = settings.iter().filter(|finding| finding.starts_with("error"));
    assert_eq!(
        report["errors"].as_u64(),
        Some(unsafe_settings.count() as u64),
        "{report}"
    );
}

#[tokio::test]
async fn what_is_broken_is_found_with_its_fix() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let name = &schema.name;
    client
        .batch_execute(&format!(
            "drop index worker_queue_claim_idx; drop index mailboxes_claim_idx; \
             drop view queue_health; create view queue_health as \
                 select 'worker' as queue, 7::bigint as total, 7::bigint as ready, 0::bigint as scheduled, 0::bigint as leased, \
                        now() as oldest_ready_at, interval '2 hours' as latency, now() as next_at, 0::bigint as retried, \
                        0 as max_attempts; \
             create role {name}; grant insert on instances to {name}; \
             create table notes ()"
        ))
        .await
        .expect("damage");
    let failed = cli(&schema, &["doctor", "--json"]).fails(1, &["have to be put right"]);
    let report = failed.json();
    let indexes = findings(&report, "indexes");
    assert_eq!(indexes.len(), 2, "{indexes:?}");
    for finding in &indexes {
        assert!(finding.starts_with("error missing: index "), "{finding}");
        let (_, fix) = finding.split_once(" | ").expect("a fix");
        client.batch_execute(fix).await.expect(fix);
    }
    let problems = findings(&report, "schema").join("\n");
    assert!(
        problems.contains("error changed: view queue_health | duroxide-postgres"),
        "{problems}"
    );
    assert!(problems.contains("warning not ours: table notes"), "{problems}");
    let privileges = findings(&report, "privileges");
    let fix = format!("revoke INSERT on {name}.instances from {name}");
    assert!(privileges.len() == 1 && privileges[0].ends_with(&fix), "{privileges:?}");
    let backlog = findings(&report, "backlog");
    assert!(
        backlog[0].contains("7 items of the worker queue") && backlog[0].contains("2 h 00 m"),
        "{backlog:?}"
    );

    let fixed = cli(&schema, &["doctor", "--json"]).json();
    assert!(findings(&fixed, "indexes").is_empty(), "{fixed}");
    let text = cli(&schema, &["doctor"]).out;
    assert!(text.contains("    fix: duroxide-postgres --schema"), "{text}");
}

#[tokio::test]
async fn an_undeployed_schema_is_an_error() {
    let schema = TestSchema::new();
    let report = cli(&schema, &["doctor", "--json"]).fails(1, &[]).json();
    let problems = findings(&report, "schema");
    assert!(
        problems[0].contains("there is no schema") && problems[0].contains("schema apply"),
        "{problems:?}"
    );
}

#[tokio::test]
async fn settings_that_break_the_functions_are_found() {
    let schema = TestSchema::new();
    schema.provider().await;
    let url = format!(
        "{} user={} options='-c default_transaction_isolation=serializable -c synchronous_commit=off'",
        crate::process::key_values(&schema.url),
        crate::process::user(&schema.url)
    );
    let report = crate::process::run_on(&url, &["--schema", &schema.name, "doctor", "--json"]).json();
    let settings = findings(&report, "settings").join("\n");
    assert!(
        settings.contains("error transactions are serializable by default"),
        "{settings}"
    );
    assert!(settings.contains("warning synchronous_commit is off"), "{settings}");
}
