//! `schema verify`: who may do what it should not.

use serde_json::json;

use crate::database::Database;
use crate::process::{cli, run_on};
use crate::support::{TestSchema, connect};

/// Each alone: what is said about it, and that a deployment takes it away, then finds nothing to do.
#[tokio::test]
async fn what_public_may_is_found_and_taken_away() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let name = &schema.name;
    for (grant, says) in [
        (
            format!("create on schema {name}"),
            "PUBLIC has CREATE on the schema: revoke CREATE",
        ),
        ("insert on history".to_string(), "PUBLIC has INSERT on table history"),
        (
            "select on schema_history".to_string(),
            "PUBLIC has SELECT on table schema_history",
        ),
        (
            "update (value) on kv_store".to_string(),
            "PUBLIC has UPDATE (value) on table kv_store",
        ),
        (
            "select (status) on instance_status".to_string(),
            "PUBLIC has SELECT (status) on view instance_status",
        ),
        (
            "update on sequence worker_queue_id_seq".to_string(),
            "PUBLIC has UPDATE on sequence worker_queue_id_seq: revoke UPDATE on sequence ",
        ),
        // One that only runs as part of others, and one that somebody calls.
        (
            "execute on function erase_instances".to_string(),
            "PUBLIC has EXECUTE on erase_instances: duroxide-postgres ",
        ),
        (
            "execute on function read_with_execution, delete_instance".to_string(),
            "PUBLIC has EXECUTE on delete_instance, read_with_execution: duroxide-postgres ",
        ),
    ] {
        client
            .batch_execute(&format!("grant {grant} to public"))
            .await
            .expect(&grant);
        let report = cli(&schema, &["schema", "verify", "--json"])
            .fails(1, &["schema apply"])
            .json();
        assert!(report["grants"].to_string().contains(says), "{grant}: {report:#}");
        let apply = || cli(&schema, &["schema", "apply", "--json"]).ok().json()["applied"].clone();
        assert_eq!(apply(), true, "{grant}");
        cli(&schema, &["schema", "verify"]).ok();
        assert_eq!(apply(), false, "{grant}");
    }
}

/// The schema may be for others as well, so a deployment leaves it to them; who is content with it chose `public`.
#[tokio::test]
async fn a_schema_that_everybody_uses_is_found() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, name) = (schema.client().await, &schema.name);
    client
        .batch_execute(&format!("grant usage on schema {name} to public"))
        .await
        .expect("usage");
    let revoke = format!("revoke USAGE on schema {name} from public;");
    let report = cli(&schema, &["schema", "verify", "--json"]).fails(1, &[]).json();
    assert_eq!(
        report["grants"],
        json!([format!("PUBLIC has USAGE on the schema: {revoke}")])
    );
    assert_eq!(
        cli(&schema, &["schema", "apply", "--json"]).ok().json()["applied"],
        false
    );
    client.batch_execute(&revoke).await.expect("revoke");
    cli(&schema, &["schema", "verify"]).ok();

    let database = Database::create().await;
    database.close_public().await;
    for command in ["apply", "verify"] {
        run_on(&database.url, &["--schema", "public", "schema", command]).ok();
    }
    database.drop().await;
}

/// A role has a purpose or nothing; all purposes together are fine.
#[tokio::test]
async fn functions_that_a_role_has_no_purpose_for_are_found() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, name) = (schema.client().await, &schema.name);
    let stranger = format!("{name}_stranger");
    client
        .batch_execute(&format!("create role {name}; create role {stranger}"))
        .await
        .expect("roles");
    // Which release it is and how much work waits is nothing that has to be kept.
    client
        .batch_execute(&format!(
            "grant usage on schema {name} to {stranger}; grant execute on function get_deployment, workers_wanted to {stranger}"
        ))
        .await
        .expect("an autoscaler");
    for purpose in [
        &["runtime"][..],
        &["cleanup"],
        &["dashboard"],
        &["dashboard", "--payloads"],
    ] {
        cli(&schema, &[&["grant", name, "--for"], purpose].concat()).ok();
        cli(&schema, &["schema", "verify"]).ok();
    }
    client
        .batch_execute(&format!("drop owned by {name}; grant usage on schema {name} to {name}"))
        .await
        .expect("afresh");
    cli(&schema, &["grant", name]).ok();

    // Somebody with no purpose at all, and one whose purpose is another.
    for (role, functions, signatures) in [
        (
            &stranger,
            "delete_instance, read_with_execution",
            "{}.delete_instance(p_instance_id text, p_force boolean), \
             {}.read_with_execution(p_instance_id text, p_execution_id bigint)",
        ),
        (
            name,
            "delete_instances_atomic",
            "{}.delete_instances_atomic(p_instance_ids text[], p_force boolean)",
        ),
    ] {
        client
            .batch_execute(&format!("grant execute on function {functions} to {role}"))
            .await
            .expect("too much");
        let report = cli(&schema, &["schema", "verify", "--json"]).fails(1, &[]).json();
        let revoke = format!(
            "revoke EXECUTE on function {} from {role};",
            signatures.replace("{}", name)
        );
        let problem = format!("role {role:?} has EXECUTE on {functions}, and no purpose that takes it: {revoke}");
        assert_eq!(report["grants"], json!([problem]));
        client.batch_execute(&revoke).await.expect(&revoke);
        cli(&schema, &["schema", "verify"]).ok();
    }
    client
        .batch_execute(&format!("drop owned by {stranger}; drop role {stranger}"))
        .await
        .expect("clean");
}

/// It is said, with what its owner has to do; no deployment by another role tries again and again.
#[tokio::test]
async fn a_schema_of_somebody_else_is_theirs_to_close() {
    let schema = TestSchema::new();
    let (client, name) = (connect(&schema.url).await, &schema.name);
    client
        .batch_execute(&format!(
            "create role {name} login password '{name}'; create schema {name}; grant create on schema {name} to public; \
             grant usage, create on schema {name} to {name}"
        ))
        .await
        .expect("a schema");
    let url = format!(
        "{} user={name} password={name}",
        crate::process::key_values(&schema.url)
    );
    let run = |arguments: &[&str]| run_on(&url, &[&["--schema", name], arguments].concat());
    for applied in [true, false] {
        assert_eq!(run(&["schema", "apply", "--json"]).ok().json()["applied"], applied);
        let report = run(&["schema", "verify", "--json"]).fails(1, &[]).json();
        let revoke = format!("PUBLIC has CREATE on the schema: revoke CREATE on schema {name} from public;");
        assert_eq!(report["grants"], json!([revoke]));
    }
}

/// Who monitors with some of the views was given no others on purpose.
#[tokio::test]
async fn a_role_with_some_of_the_views_lacks_none() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, name) = (schema.client().await, &schema.name);
    let role = format!("{name}_monitor");
    client
        .batch_execute(&format!(
            "create role {role}; grant usage on schema {name} to {role}; \
             grant select on execution_status, instance_counts, instance_status, lease_status, scheduled_messages to {role}"
        ))
        .await
        .expect("some views");
    cli(&schema, &["schema", "verify"]).ok();
    client
        .batch_execute(&format!("drop owned by {role}; drop role {role}"))
        .await
        .expect("role");
}

/// A role that lost what tells its purpose has too little, not too much.
#[tokio::test]
async fn a_role_without_the_most_important_is_not_told_to_give_up_the_rest() {
    let schema = TestSchema::new();
    schema.provider().await;
    let (client, name) = (schema.client().await, &schema.name);
    for (purpose, lost, lacks) in [
        (
            "runtime",
            "execute on function fetch_orchestration_item",
            "lacks EXECUTE on fetch_orchestration_item",
        ),
        (
            "cleanup",
            "execute on function prune_executions",
            "lacks EXECUTE on prune_executions",
        ),
        ("dashboard", "select on queue_health", "lacks SELECT on queue_health"),
    ] {
        let role = format!("{name}_{purpose}");
        let grant = ["grant", &role, "--for", purpose];
        client
            .batch_execute(&format!("create role {role}"))
            .await
            .expect("role");
        cli(&schema, &grant).ok();
        client
            .batch_execute(&format!("revoke {lost} from {role}"))
            .await
            .expect("revoke");
        let report = cli(&schema, &["schema", "verify", "--json"]).fails(1, &[]).json();
        let problems = report["grants"].to_string();
        assert!(problems.contains(lacks), "{report:#}");
        assert!(!problems.contains("revoke"), "{report:#}");
        cli(&schema, &grant).ok();
        cli(&schema, &["schema", "verify"]).ok();
        client
            .batch_execute(&format!("drop owned by {role}; drop role {role}"))
            .await
            .expect("role");
    }
}
