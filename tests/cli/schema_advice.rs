//! What `schema` advises where it cannot, or must not, go on.

use serde_json::json;

use crate::database::Database;
use crate::process::{cli, run_on};
use crate::support::{TestSchema, connect};

/// Views and permissions too are part of a release, and not of the description.
#[tokio::test]
async fn another_build_is_outdated() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema
        .client()
        .await
        .batch_execute("update deployment set functions_digest = 'another'")
        .await
        .expect("another build");
    let report = cli(&schema, &["schema", "verify", "--json"])
        .fails(1, &["schema apply"])
        .json();
    assert_eq!(
        (&report["ok"], &report["standing"]),
        (&json!(false), &json!("outdated"))
    );
    let text = cli(&schema, &["schema", "verify"]).fails(1, &[]).out;
    assert!(
        text.contains("outdated: ") && !text.contains("as this release deploys it"),
        "{text}"
    );
    cli(&schema, &["status"]).fails(1, &["Upgrade it"]);
    cli(&schema, &["schema", "apply"]).ok();
    cli(&schema, &["schema", "verify"]).ok();
}

/// A deployment in there would be hard to take apart again.
#[tokio::test]
async fn nobody_is_told_to_deploy_into_a_schema_of_others() {
    let schema = TestSchema::new();
    let client = connect(&schema.url).await;
    client
        .batch_execute(&format!("create schema {}", schema.name))
        .await
        .expect("a schema");
    cli(&schema, &["status"]).fails(1, &["is empty", "schema apply"]);
    client
        .batch_execute(&format!("create table {}.theirs ()", schema.name))
        .await
        .expect("a table");
    for arguments in [&["status"][..], &["schema", "drop", "--yes"], &["schema", "verify"]] {
        let failed = cli(&schema, arguments).fails(1, &["is not ours", "--schema"]);
        assert!(!failed.err.contains("apply"), "{}", failed.err);
    }
    let report = cli(&schema, &["doctor"]).fails(1, &[]).out;
    assert!(!report.contains("apply"), "{report}");
}

#[tokio::test]
async fn who_may_not_is_told_what_to_ask_for() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    client
        .batch_execute(&format!("create role {role} login password '{role}'"))
        .await
        .expect("a role");
    let url = database.url_as(&role);
    let grant = format!("grant create, temporary on database {role} to {role};");
    let failed = run_on(&url, &["schema", "apply"]).fails(1, &["cannot be created", "(SQLSTATE 42501)", &grant]);
    assert!(!failed.err.contains("owner of schema"), "{}", failed.err);
    client.batch_execute(&grant).await.expect("granted");
    run_on(&url, &["schema", "apply"]).ok();
    run_on(&url, &["schema", "drop", "--yes"]).ok();

    run_on(&database.url, &["schema", "apply"]).ok();
    let ask = "duroxide-postgres --schema duroxide grant --for dashboard ROLE";
    for arguments in [["schema", "version"], ["schema", "verify"]] {
        run_on(&url, &arguments).fails(1, &[ask]);
    }
    run_on(&database.url, &["grant", "--for", "dashboard", &role]).ok();
    run_on(&url, &["schema", "version"]).ok();
    run_on(&url, &["schema", "verify"]).ok();
    // A session that cannot write is not one that may not.
    let read_only = format!("{url} options='-c default_transaction_read_only=on'");
    let text = run_on(&read_only, &["schema", "verify"]).ok().out;
    assert!(
        text.contains("the session is read-only") && !text.contains("grant temporary"),
        "{text}"
    );
    database.drop_with(&[&role]).await;
}

/// PostgreSQL would advise CASCADE, which takes what others built.
#[tokio::test]
async fn what_others_built_upon_it_is_named_without_a_cascade() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute(
            "drop view scheduled_messages; create view scheduled_messages as select 1 as instance_id; \
             create view theirs as select * from scheduled_messages",
        )
        .await
        .expect("views");
    for (arguments, outcome) in [
        (&["schema", "apply"][..], "nothing was changed"),
        (&["schema", "drop", "--yes"], "nothing was dropped"),
    ] {
        let failed = cli(&schema, arguments).fails(1, &[outcome, "theirs", "Drop or move those first"]);
        assert!(!failed.err.contains("CASCADE"), "{}", failed.err);
    }
}

/// It is what `grant` and `revoke` are for.
#[tokio::test]
async fn privileges_of_roles_are_not_said_to_be_put_right_by_apply() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, role) = (schema.client().await, &schema.name);
    client
        .batch_execute(&format!("create role {role}; grant select on history to {role}"))
        .await
        .expect("a role");
    cli(&schema, &["schema", "verify"]).fails(
        1,
        &[
            "what PUBLIC may",
            "what roles lack or have too much, by what their lines say",
        ],
    );
    client
        .batch_execute(&format!("drop owned by {role}; drop role {role}"))
        .await
        .expect("clean");
}
