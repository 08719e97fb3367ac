//! `schema sql`: what psql makes of it is what the deployer makes.

use duroxide_postgres::{DeployPolicy, PostgresProvider};
use refinery::Target;
use tokio_postgres::Client;

use crate::database::Database;
use crate::process::{Finished, cli, pg_dump, psql, psql_set_up, psql_with, run, run_on};
use crate::support::{TestSchema, connect};

mod embedded {
    refinery::embed_migrations!("migrations");
}

const RECORDS: &str = "select array(select (version, name, checksum)::text from duroxide.schema_history order by version), \
     (select release || ' ' || serves_from || ' ' || functions_digest from duroxide.deployment), \
     (select deployed_at::text from duroxide.deployment)";

async fn records(client: &Client) -> (Vec<String>, String, String) {
    let row = client.query_one(RECORDS, &[]).await.expect("records");
    (row.get(0), row.get(1), row.get(2))
}

/// By the catalogs, on every server; by pg_dump too, where there is one that knows the server.
async fn assert_same(one: &Database, other: &Database) {
    let (catalog, expected) = (one.catalog("duroxide").await, other.catalog("duroxide").await);
    assert!(catalog.len() > 300, "{} lines", catalog.len());
    for (line, expected) in catalog.iter().zip(&expected) {
        assert_eq!(line, expected);
    }
    assert_eq!(catalog.len(), expected.len());
    if let Some(dump) = pg_dump(&one.url, &["--schema-only"]).await {
        assert!(dump.contains("CREATE FUNCTION duroxide.fetch_work_item("), "{dump}");
        assert_eq!(Some(dump), pg_dump(&other.url, &["--schema-only"]).await);
    }
}

#[tokio::test]
async fn the_script_ends_where_the_deployer_ends() {
    let (by_script, by_deployer) = (Database::create().await, Database::create().await);
    let script = run(&["schema", "sql"]).ok().out;
    assert_eq!(run(&["schema", "sql", "--json"]).ok().json()["sql"], script);
    let Some(applied) = psql(&by_script.url, &script) else {
        return;
    };
    let said = applied.ok().out;
    assert_eq!(said, "duroxide-postgres 0.1.0 is deployed in schema duroxide\n");
    PostgresProvider::connect(&by_deployer.url).await.expect("deployer");

    let (script_client, deployer_client) = (by_script.client().await, by_deployer.client().await);
    assert_same(&by_script, &by_deployer).await;
    let (first, expected) = (records(&script_client).await, records(&deployer_client).await);
    assert_eq!((&first.0, &first.1), (&expected.0, &expected.1));
    assert!(!first.0.is_empty());
    run_on(&by_script.url, &["schema", "verify"]).ok();

    // Everybody is content: nobody deploys anything again, refinery included, and neither does the script.
    for policy in [DeployPolicy::Verify, DeployPolicy::Apply] {
        let provider = PostgresProvider::builder(&by_script.url).deploy(policy).connect().await;
        provider.expect("content").health_check().await.expect("healthy");
    }
    let mut refinery_client = by_script.client().await;
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name("duroxide.schema_history");
    let report = runner.run_async(&mut refinery_client).await.expect("refinery");
    assert!(report.applied_migrations().is_empty());
    psql(&by_script.url, &script).expect("psql").ok();
    assert_eq!(records(&script_client).await, first);
    assert_same(&by_script, &by_deployer).await;

    // A database that is read-only unless asked.
    let read_only = format!(
        "alter database {} set default_transaction_read_only = on",
        by_script.name
    );
    script_client.batch_execute(&read_only).await.expect("read-only");
    psql(&by_script.url, &script).expect("psql").ok();

    // A name that needs every kind of quoting.
    let odd = "Odd$$Name-1";
    let script = run(&["--schema", odd, "schema", "sql"]).ok().out;
    psql(&by_script.url, &script).expect("psql").ok();
    run_on(&by_script.url, &["--schema", odd, "schema", "verify"]).ok();
    run_on(&by_script.url, &["--schema", odd, "schema", "drop", "--yes"]).ok();

    drop((script_client, deployer_client, refinery_client));
    by_script.drop().await;
    by_deployer.drop().await;
}

/// What makes a subtransaction of each statement, or leaves the ends of lines to mean something.
#[tokio::test]
async fn how_psql_is_set_up_does_not_matter() {
    let by_deployer = Database::create().await;
    PostgresProvider::connect(&by_deployer.url).await.expect("deployer");
    let script = run(&["schema", "sql"]).ok().out;
    // Nor would it without a word about it.
    let bare = script.replace("\\set ON_ERROR_ROLLBACK off\n", "");
    assert_ne!(script, bare);
    let each = ["-X", "-v", "ON_ERROR_ROLLBACK=on"];
    let with_option = |url: &str| psql_with(url, &each, &script);
    let without_a_word = |url: &str| psql_with(url, &each, &bare);
    let by_line = |url: &str| psql_with(url, &["-X", "-S"], &script);
    let by_file = |url: &str| {
        psql_set_up(
            url,
            "\\set QUIET on\n\\set ON_ERROR_ROLLBACK on\n\\set AUTOCOMMIT off\n\\set FETCH_COUNT 1\n\\x on\n",
            &script,
        )
    };
    type Way<'a> = &'a dyn Fn(&str) -> Option<Finished>;
    for way in [&with_option as Way<'_>, &without_a_word, &by_line, &by_file] {
        let by_script = Database::create().await;
        if let Some(applied) = way(&by_script.url) {
            let said = applied.ok().out;
            assert_eq!(said, "duroxide-postgres 0.1.0 is deployed in schema duroxide\n");
            assert_same(&by_script, &by_deployer).await;
            run_on(&by_script.url, &["schema", "verify"]).ok();
        }
        by_script.drop().await;
    }
    by_deployer.drop().await;
}

#[tokio::test]
async fn a_script_from_a_migration_upgrades_what_has_it() {
    let database = Database::create().await;
    let script = run(&["schema", "sql", "--from", "1"]).ok().out;
    assert!(!script.contains("create table mailboxes"), "migration 1 is in it");
    let Some(refused) = psql(&database.url, &script) else {
        return;
    };
    refused.fails(3, &["is not deployed", "without --from"]);

    let mut client = database.client().await;
    client
        .batch_execute("create schema duroxide; set search_path = duroxide, pg_temp")
        .await
        .expect("schema");
    let mut runner = embedded::migrations::runner().set_target(Target::Version(1));
    runner.set_migration_table_name("duroxide.schema_history");
    runner.run_async(&mut client).await.expect("migration 1");
    psql(&database.url, &script).expect("psql").ok();
    run_on(&database.url, &["schema", "verify"]).ok();

    let latest = run_on(&database.url, &["schema", "version", "--json"]).ok().json()["migration"].to_string();
    let header = run(&["schema", "sql", "--from", &latest]).ok().out;
    assert!(
        header
            .lines()
            .next()
            .is_some_and(|line| line.ends_with(": functions, views and permissions.")),
        "{header}"
    );
    run(&["schema", "sql", "--from", "99"]).fails(2, &["no migration 99"]);
    drop(client);
    database.drop().await;
}

#[tokio::test]
async fn the_script_upgrades_an_older_release_with_its_grants() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema.create_execute_only_role().await;
    let client = schema.client().await;
    client
        .batch_execute(&format!(
            "create or replace function get_parent_id(p_instance_id text) returns text language sql as 'select null::text'; \
             drop function list_children(text); \
             create function list_children(p_id text) returns integer language sql as 'select 1'; \
             revoke all on function list_children(text) from public; \
             grant execute on function list_children(text) to {0}; \
             create function touch_session(p_session_id text) returns void language sql as 'select'; \
             update deployment set release = '0.0.9', serves_from = '0.0.1', functions_digest = 'older'",
            schema.name
        ))
        .await
        .expect("an older release");
    let script = cli(&schema, &["schema", "sql"]).ok().out;
    let Some(applied) = psql(&schema.url, &script) else {
        return;
    };
    applied.ok();
    cli(&schema, &["schema", "verify"]).ok();
    let granted: bool = client
        .query_one(
            "select has_function_privilege($1, 'list_children(text)'::regprocedure, 'execute')",
            &[&schema.name],
        )
        .await
        .expect("privilege")
        .get(0);
    assert!(granted);
}

#[tokio::test]
async fn the_script_changes_nothing_where_it_must_not() {
    let schema = TestSchema::new();
    let script = cli(&schema, &["schema", "sql"]).ok().out;
    let client = connect(&schema.url).await;
    client
        .batch_execute(&format!(
            "create schema {0}; create table {0}.history (mine integer)",
            schema.name
        ))
        .await
        .expect("a table of somebody else");
    let Some(refused) = psql(&schema.url, &script) else {
        return;
    };
    refused.fails(3, &["\"history\" of somebody else"]);
    let relations = "select count(*) from pg_class where relnamespace = $1::text::regnamespace";
    let count: i64 = client
        .query_one(relations, &[&schema.name])
        .await
        .expect("count")
        .get(0);
    assert_eq!(count, 1);

    client
        .batch_execute(&format!("drop table {}.history", schema.name))
        .await
        .expect("drop");
    schema.provider().await;
    for (change, complaint) in [
        (
            "update {}.deployment set release = '99.0.0'",
            "release 99.0.0, which is later",
        ),
        (
            "insert into {}.schema_history values (999, 'later', '2026-01-01T00:00:00Z', '0')",
            "by a later release",
        ),
        (
            "update {}.schema_history set checksum = '0' where version = 1",
            "by something else",
        ),
    ] {
        client
            .batch_execute(&format!(
                "begin; {}; create table if not exists {}.mark ()",
                change.replace("{}", &schema.name),
                schema.name
            ))
            .await
            .expect(change);
        client.batch_execute("commit").await.expect("commit");
        psql(&schema.url, &script).expect("psql").fails(3, &[complaint]);
        client
            .batch_execute(&format!("drop schema {} cascade", schema.name))
            .await
            .expect("start over");
        schema.provider().await;
    }
}
