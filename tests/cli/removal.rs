//! `schema drop`: all that is ours, and nothing else.

use duroxide::providers::Provider;
use serde_json::json;

use crate::database::Database;
use crate::fixtures::{create, start};
use crate::process::{cli, cli_with_input, run_on};
use crate::support::{TestSchema, connect};

#[tokio::test]
async fn drop_asks_first_and_takes_only_what_is_ours() {
    let schema = TestSchema::new();
    let provider = schema.provider().await;
    create(&*provider, "kept").await;
    let exists = || async {
        let row = connect(&schema.url)
            .await
            .query_one(
                "select count(*) from pg_class where relnamespace = to_regnamespace($1)",
                &[&schema.name],
            )
            .await
            .expect("catalog");
        row.get::<_, i64>(0)
    };
    let before = exists().await;
    for answer in ["", "y\n", "duroxide\n"] {
        let refused = cli_with_input(&schema, &["schema", "drop"], answer);
        refused.fails(1, &["1 instances, 1 of them running", "nothing was dropped", "--yes"]);
    }
    assert_eq!(exists().await, before);

    // Somebody built upon it: that is not ours to drop.
    let client = schema.client().await;
    client
        .batch_execute("create view theirs as select instance_id from instances")
        .await
        .expect("view");
    cli(&schema, &["schema", "drop", "--yes"]).fails(1, &["nothing was dropped", "theirs"]);
    assert_eq!(exists().await, before + 1);
    provider
        .enqueue_for_orchestrator(start("more"), None)
        .await
        .expect("works on");

    client
        .batch_execute("drop view theirs; create table theirs (id integer)")
        .await
        .expect("table");
    let dropped = cli(&schema, &["schema", "drop", "--yes", "--json"]).ok().json();
    assert_eq!(
        (&dropped["schema_dropped"], &dropped["schema_kept"]),
        (&json!(false), &json!("in_use"))
    );
    assert_eq!(exists().await, 1);
    schema.provider().await;
    client.batch_execute("drop table theirs").await.expect("drop");
    let dropped = cli_with_input(&schema, &["schema", "drop"], &format!("{}\n", schema.name));
    assert_eq!(dropped.code, 0, "{}", dropped.err);
    let gone: bool = client
        .query_one("select to_regnamespace($1) is null", &[&schema.name])
        .await
        .expect("catalog")
        .get(0);
    assert!(gone);
}

/// What is damaged can be dropped like anything else.
#[tokio::test]
async fn drop_need_not_know_how_many_there_are() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema
        .client()
        .await
        .batch_execute("drop view instance_counts")
        .await
        .expect("damage");
    let dropped = cli_with_input(&schema, &["schema", "drop"], &format!("{}\n", schema.name));
    assert_eq!(dropped.code, 0, "{}", dropped.err);
    assert!(
        dropped.err.contains("an unknown number of instances"),
        "{}",
        dropped.err
    );
}

/// Everybody's: restoring a dump into the database, and much else, relies on it.
#[tokio::test]
async fn drop_leaves_the_schema_public() {
    let database = Database::create().await;
    database.close_public().await;
    run_on(&database.url, &["--schema", "public", "schema", "apply"]).ok();
    let dropped = run_on(&database.url, &["--schema", "public", "schema", "drop", "--yes"]).ok();
    assert!(
        dropped.out.contains("but not the schema: every database has one"),
        "{}",
        dropped.out
    );
    let left = "select count(c.oid) from pg_namespace as n left join pg_class as c on c.relnamespace = n.oid \
                 where n.nspname = 'public' group by n.oid";
    let left = database.client().await.query_one(left, &[]).await.expect("public");
    assert_eq!(left.get::<_, i64>(0), 0);
    database.drop().await;
}

/// Who was let into it deploys there, and can take that away again.
#[tokio::test]
async fn drop_leaves_a_schema_of_somebody_else() {
    let database = Database::create().await;
    let role = database.somebody_elses_schema(&database.name).await;
    let client = database.client().await;
    let url = database.url_as(&role);
    let count = "select count(*) from pg_depend where refclassid = 'pg_namespace'::regclass \
                    and refobjid = 'duroxide'::regnamespace";
    for json in [false, true] {
        run_on(&url, &["schema", "apply"]).ok();
        if json {
            let dropped = run_on(&url, &["schema", "drop", "--yes", "--json"]).ok().json();
            assert_eq!(
                (&dropped["schema_dropped"], &dropped["schema_kept"]),
                (&json!(false), &json!("not_owned"))
            );
            assert!(dropped["objects"].as_u64() > Some(50), "{dropped}");
        } else {
            let dropped = run_on(&url, &["schema", "drop", "--yes"]).ok().out;
            assert!(
                dropped.contains("but not the schema: it belongs to another role"),
                "{dropped}"
            );
        }
        let left: i64 = client.query_one(count, &[]).await.expect("count").get(0);
        assert_eq!(left, 0);
    }
    database.drop_with(&[&role]).await;
}

/// Nobody who wants to be rid of it is told to deploy.
#[tokio::test]
async fn there_may_be_nothing_to_drop() {
    let schema = TestSchema::new();
    let client = connect(&schema.url).await;
    for prepare in ["select", &format!("create schema {}", schema.name)] {
        client.batch_execute(prepare).await.expect(prepare);
        let failed =
            cli(&schema, &["schema", "drop", "--yes"]).fails(1, &["nothing to drop", &schema.name, "--schema"]);
        assert!(!failed.err.contains("apply"), "{}", failed.err);
    }
}
