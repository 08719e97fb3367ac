//! Applying, upgrading and verifying.

use duroxide::providers::Provider;
use duroxide_postgres::{DeployPolicy, ErrorKind};

use super::describe;
use crate::fixtures::start;
use crate::support::{TestSchema, connect};

#[tokio::test]
async fn twenty_processes_start_at_once_on_an_empty_database() {
    let schema = TestSchema::new();
    let starts: Vec<_> = (0..20)
        .map(|_| tokio::spawn(schema.builder().pool_size(2).connect()))
        .collect();
    for start in starts {
        let provider = start.await.expect("task").expect("start");
        provider.health_check().await.expect("healthy");
    }
}

#[tokio::test]
async fn a_second_start_changes_nothing() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let stamps = "select array(select p.xmin::text || p.oid::text from pg_proc as p \
                   where p.pronamespace = $1::text::regnamespace order by p.oid), \
                  (select deployed_at::text from deployment)";
    let before = client.query_one(stamps, &[&schema.name]).await.expect("stamps");
    schema.provider().await;
    let after = client.query_one(stamps, &[&schema.name]).await.expect("stamps");
    assert_eq!(before.get::<_, Vec<String>>(0), after.get::<_, Vec<String>>(0));
    assert_eq!(before.get::<_, String>(1), after.get::<_, String>(1));
}

#[tokio::test]
async fn an_older_deployment_is_upgraded_in_place_with_its_data() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    provider
        .enqueue_for_orchestrator(start("kept"), None)
        .await
        .expect("enqueue");
    let client = schema.client().await;
    client
        .batch_execute(
            // As an earlier release might have left it: another body, another signature, an overload.
            "create or replace function get_parent_id(p_instance_id text) returns text language sql as 'select null::text'; \
             drop function list_children(text); \
             create function list_children(p_id text, p_limit integer) returns text language sql as 'select null::text'; \
             create function touch_session(p_session_id text) returns void language sql as 'select'; \
             create function function_of_somebody_else() returns void language sql as 'select'",
        )
        .await
        .expect("older functions");
    client
        .execute(
            "update deployment set release = '0.0.9', serves_from = '0.0.1', functions_digest = 'older'",
            &[],
        )
        .await
        .expect("older release");

    let upgraded = schema.provider().await;
    let lines = describe(&client, &schema.name).await;
    let committed = include_str!("../../../sql/deployed.txt");
    let extra: Vec<_> = lines
        .iter()
        .filter(|line| !committed.lines().any(|known| known == line.as_str()))
        .collect();
    assert_eq!(extra.len(), 1, "{extra:?}");
    assert!(extra[0].starts_with("function function_of_somebody_else("));
    let (item, _, _) = upgraded
        .fetch_orchestration_item(std::time::Duration::from_secs(5), std::time::Duration::ZERO, None)
        .await
        .expect("fetch")
        .expect("the message survived the upgrade");
    assert_eq!(item.instance, "kept");
}

#[tokio::test]
async fn a_connection_that_prepared_its_statements_survives_an_upgrade() {
    let schema = TestSchema::new();
    let provider = schema.builder().pool_size(1).connect().await.expect("provider");
    provider.get_custom_status("i", 0).await.expect("prepared");
    let client = schema.client().await;
    client
        .batch_execute(
            "drop function get_custom_status(text[], bigint[]); \
             create function get_custom_status(p_instance_ids text[], p_last_seen_versions bigint[]) \
             returns table (custom_status text, custom_status_version bigint, added integer) \
             language sql as 'select null::text, null::bigint, 1'",
        )
        .await
        .expect("another result type");
    provider
        .get_custom_status("i", 0)
        .await
        .expect("the stale statement is prepared anew");
}

#[tokio::test]
async fn verify_accepts_what_apply_deployed_and_names_what_differs() {
    let schema = TestSchema::new();
    let verify = || schema.builder().deploy(DeployPolicy::Verify).connect();
    let client = connect(&schema.url).await;

    let error = verify().await.expect_err("nothing is deployed");
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("is not deployed"), "{error}");
    let created: bool = client
        .query_one(
            "select exists (select from pg_namespace where nspname = $1)",
            &[&schema.name],
        )
        .await
        .expect("catalog")
        .get(0);
    assert!(!created, "verify ran DDL");

    schema.provider().await;
    verify().await.expect("as deployed");

    let client = schema.client().await;
    for (change, expected) in [
        ("drop function list_children(text)", "missing: function list_children"),
        (
            "drop index executions_status_idx",
            "missing: index executions_status_idx",
        ),
        ("create table notes (id integer)", "extra: column notes.id, table notes"),
        (
            "create function read(p integer) returns void language sql as 'select'",
            "changed: function read",
        ),
        (
            "alter table history alter event_data drop not null",
            "changed: column history.event_data",
        ),
        (
            "alter table mailboxes drop column cached_event_id",
            "missing: column mailboxes.cached_event_id",
        ),
        (
            "grant execute on function delete_instance(text, boolean) to public",
            "changed: function delete_instance",
        ),
        (
            "alter function read_with_execution(text, bigint) security invoker",
            "changed: function read_with_execution",
        ),
        (
            "alter function read_with_execution(text, bigint) set search_path = public",
            "changed: function read_with_execution",
        ),
        (
            "create or replace function schema_key() returns integer language sql stable parallel safe as 'select 1'",
            "changed: function schema_key",
        ),
    ] {
        client.batch_execute("begin").await.expect("begin");
        client.batch_execute(change).await.expect(change);
        client.batch_execute("commit").await.expect("commit");
        let error = verify().await.expect_err(change);
        assert_eq!(error.kind(), ErrorKind::Schema, "{change}: {error}");
        assert!(error.to_string().contains(expected), "{change}: {error}");
        client
            .batch_execute(&format!("drop schema \"{}\" cascade", schema.name))
            .await
            .expect("start over");
        schema.provider().await;
    }
}

#[tokio::test]
async fn a_newer_schema_is_never_touched() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let state = "select release || serves_from || functions_digest from deployment";

    client
        .execute(
            "update deployment set release = '99.0.0', functions_digest = 'newer'",
            &[],
        )
        .await
        .expect("a later release that serves us");
    let before: String = client.query_one(state, &[]).await.expect("state").get(0);
    for policy in [DeployPolicy::Apply, DeployPolicy::Verify] {
        let provider = schema.builder().deploy(policy).connect().await.expect("served by it");
        provider.health_check().await.expect("healthy");
    }
    assert_eq!(
        client.query_one(state, &[]).await.expect("state").get::<_, String>(0),
        before
    );

    client
        .execute("update deployment set serves_from = '98.0.0'", &[])
        .await
        .expect("a later release that does not");
    for policy in [DeployPolicy::Apply, DeployPolicy::Verify] {
        let error = schema.builder().deploy(policy).connect().await.expect_err("too new");
        assert_eq!(error.kind(), ErrorKind::NewerSchema);
        assert!(error.to_string().contains("99.0.0"), "{error}");
    }

    client
        .batch_execute(
            "update deployment set release = '0.1.0', serves_from = '98.0.0'; \
             insert into schema_history (version, name, applied_on, checksum) values (999, 'later', now()::text, '0')",
        )
        .await
        .expect("a later migration");
    let error = schema.builder().connect().await.expect_err("too new");
    assert_eq!(error.kind(), ErrorKind::NewerSchema);
}

#[tokio::test]
async fn a_foreign_table_in_the_way_is_named_and_left_alone() {
    let schema = TestSchema::new();
    let client = connect(&schema.url).await;
    client
        .batch_execute(&format!(
            "create schema \"{0}\"; create table \"{0}\".history (mine integer); insert into \"{0}\".history values (7)",
            schema.name
        ))
        .await
        .expect("foreign table");
    let error = schema.builder().connect().await.expect_err("in the way");
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("\"history\""), "{error}");
    let kept: i32 = client
        .query_one(&format!("select mine from \"{}\".history", schema.name), &[])
        .await
        .expect("kept")
        .get(0);
    assert_eq!(kept, 7);
}

#[tokio::test]
async fn a_failed_deployment_leaves_nothing_half_done() {
    let schema = TestSchema::new();
    let client = connect(&schema.url).await;
    // Not a table, so the deployer does not see it coming: the migration itself fails half-way.
    client
        .batch_execute(&format!(
            "create schema \"{0}\"; create sequence \"{0}\".sessions",
            schema.name
        ))
        .await
        .expect("obstacle");
    schema.builder().connect().await.expect_err("in the way");
    let rows = client
        .query(
            "select relname::text from pg_class where relnamespace = $1::text::regnamespace and relkind = 'r'",
            &[&schema.name],
        )
        .await
        .expect("tables");
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(tables.iter().all(|table| table == "schema_history"), "{tables:?}");
    client
        .batch_execute(&format!("drop sequence \"{}\".sessions", schema.name))
        .await
        .expect("out of the way");
    schema.provider().await;
}

#[tokio::test]
async fn schemas_of_one_database_do_not_meet() {
    let (one, two) = (TestSchema::new(), TestSchema::new());
    let (first, second) = (one.provider().await, two.provider().await);
    first.enqueue_for_orchestrator(start("i"), None).await.expect("enqueue");
    let short = std::time::Duration::ZERO;
    let lock = std::time::Duration::from_secs(5);
    assert!(
        second
            .fetch_orchestration_item(lock, short, None)
            .await
            .expect("fetch")
            .is_none()
    );
    assert!(
        first
            .fetch_orchestration_item(lock, short, None)
            .await
            .expect("fetch")
            .is_some()
    );
}

/// A schema that others use too: what is theirs stays as it is.
#[tokio::test]
async fn a_shared_schema_keeps_its_other_objects_and_their_grants() {
    let schema = TestSchema::new();
    let client = connect(&schema.url).await;
    client
        .batch_execute(&format!(
            "create schema {0}; grant usage on schema {0} to public; \
             create table {0}.theirs (id integer); grant select on {0}.theirs to public; \
             create function {0}.their_function() returns integer language sql as 'select 1'",
            schema.name
        ))
        .await
        .expect("their objects");
    schema.provider().await;
    let open: bool = client
        .query_one(
            "select has_schema_privilege('public', $1, 'usage') \
                and has_table_privilege('public', $1 || '.theirs', 'select') \
                and has_function_privilege('public', $1 || '.their_function()', 'execute')",
            &[&schema.name],
        )
        .await
        .expect("privileges")
        .get(0);
    assert!(open);

    let taken = TestSchema::new();
    client
        .batch_execute(&format!(
            "create schema {0}; create function {0}.read(integer) returns integer language sql as 'select 1'",
            taken.name
        ))
        .await
        .expect("their function");
    let error = taken.builder().connect().await.expect_err("in the way");
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("function \"read\""), "{error}");
}

/// A function that had to be dropped because its signature changed comes back with its grants.
#[tokio::test]
async fn grants_survive_an_upgrade() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema.create_execute_only_role().await;
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "drop function list_children(text); \
             create function list_children(p_id text) returns integer language sql as 'select 1'; \
             grant execute on function list_children(text) to {0}; \
             update deployment set functions_digest = 'older'",
            schema.name
        ))
        .await
        .expect("an older signature");
    schema.provider().await;
    let granted: bool = client
        .query_one(
            "select bool_and(has_function_privilege($1, p.oid, 'execute')) filter (where p.proname = 'list_children') and \
                    not bool_or(has_function_privilege('public', p.oid, 'execute')) \
               from pg_proc as p where p.pronamespace = $1::text::regnamespace",
            &[&schema.name],
        )
        .await
        .expect("privileges")
        .get(0);
    assert!(granted);
}
