//! Ids and names are anybody's: what a terminal would act on is not printed, and what is a name makes no lines.

use crate::fixtures::{Ack, LOCK, ack, create, event, named, start, started, turn};
use crate::process::{Finished, cli};
use crate::support::TestSchema;
use duroxide::EventKind;
use duroxide::providers::Provider;

/// Clears the screen, in both ways to say so, rings, and is a line of its own.
const EVIL: &str = "e\nerror: forged\u{1b}[2J\u{9b}2J\u{7}\r\u{7f}";
const SPELT: &str = "e\\nerror: forged\\u{1b}[2J\\u{9b}2J\\u{7}\\r\\u{7f}";

#[track_caller]
fn harmless(finished: &Finished) {
    for text in [&finished.out, &finished.err] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains("\nerror: forged"), "{text}");
    }
}

#[tokio::test]
async fn ids_and_names_of_instances_are_spelt_out() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "a b").await;
    provider
        .enqueue_for_orchestrator(start(EVIL), None)
        .await
        .expect("enqueue");
    let (_, token, _) = turn(&*provider, LOCK).await;
    let scheduled = EventKind::ActivityScheduled {
        name: EVIL.to_string(),
        input: EVIL.to_string(),
        session_id: None,
        tag: None,
    };
    let mut metadata = named();
    metadata.orchestration_name = Some(EVIL.to_string());
    let first = Ack {
        events: vec![started(EVIL), event(EVIL, 2, scheduled)],
        metadata,
        ..Ack::default()
    };
    ack(&*provider, &token, first).await.expect("ack");
    for arguments in [
        &["instances"][..],
        &["instances", "--limit", "1"],
        &["show", EVIL],
        &["history", EVIL],
        &["status"],
        &["watch", "--times", "1"],
    ] {
        let text = cli(&schema, arguments).ok();
        harmless(&text);
        assert!(text.out.contains(SPELT), "{arguments:?}: {}", text.out);
        // serde escapes only some of it.
        let json = cli(&schema, &[arguments, &["--json"]].concat()).ok();
        harmless(&json);
        json.json();
    }
    let listed = cli(&schema, &["instances", "--limit", "1", "--json"]).ok().json();
    assert_eq!(
        (&listed["next"], &listed["instances"][0]["instance"]),
        (&EVIL.into(), &EVIL.into())
    );
    let text = cli(&schema, &["instances", "--limit", "1"]).ok().out;
    assert!(text.contains("what --json calls \"next\""), "{text}");
    for arguments in [
        &["history", EVIL, "--execution", "7"][..],
        &["show", "none\u{1b}[2J"],
        &["delete", EVIL],
    ] {
        harmless(&cli(&schema, arguments).fails(1, &[]));
    }
    cli(&schema, &["delete", "--force", EVIL]).ok();
    create(&*provider, "c d").await;
    let text = cli(&schema, &["instances", "--limit", "1"]).ok().out;
    assert!(text.contains("There are more: --after='c d'\n"), "{text}");
}

#[tokio::test]
async fn names_of_roles_and_of_what_is_not_ours_are_spelt_out() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    // Names have 63 bytes at most.
    let role = format!("{EVIL}{}", &uuid::Uuid::new_v4().simple().to_string()[..16]);
    client
        .batch_execute(&format!(
            "create table \"{EVIL}\" (\"{EVIL}\" integer); create function \"{EVIL}\"() returns void language sql as ''; \
             alter table history add column \"{EVIL}\" text; \
             create role \"{role}\"; grant insert on history to \"{role}\""
        ))
        .await
        .expect("names");
    for arguments in [&["doctor"][..], &["schema", "verify"]] {
        let text = cli(&schema, arguments).fails(1, &[]);
        harmless(&text);
        assert!(text.out.matches(SPELT).count() >= 4, "{}", text.out);
        let json = cli(&schema, &[arguments, &["--json"]].concat()).fails(1, &[]);
        harmless(&json);
        assert!(json.json().to_string().contains("\u{9b}"));
    }
    // Somebody's own words, for psql to read.
    let sql = cli(&schema, &["grant", "--sql", &role]).ok().out;
    assert!(sql.contains(&format!("to \"{role}\";")), "{sql}");
    harmless(&cli(&schema, &["grant", &format!("{role} too")]).fails(1, &["does not exist"]));
    client
        .batch_execute(&format!("drop owned by \"{role}\"; drop role \"{role}\""))
        .await
        .expect("role");
}
