//! After a dump and a restore the schema is still ours.

use duroxide_postgres::PostgresProvider;
use serde_json::json;

use crate::database::Database;
use crate::process::{pg_dump, psql, run_on};

/// What pg_dump does to a view: it is made anew from what the server prints of it.
const REPRINT: &str = "do $$
declare
    v_view text;
begin
    set local search_path = duroxide;
    for v_view in select c.relname from pg_class as c
                   where c.relnamespace = 'duroxide'::regnamespace and c.relkind = 'v'
    loop
        execute format('create or replace view %I as %s', v_view, pg_get_viewdef(v_view::regclass));
    end loop;
end
$$";

#[tokio::test]
async fn views_that_were_dumped_and_restored_are_ours() {
    let database = Database::create().await;
    PostgresProvider::connect(&database.url).await.expect("deployed");
    let client = database.client().await;
    for _ in 0..3 {
        client.batch_execute(REPRINT).await.expect("views");
        run_on(&database.url, &["schema", "verify"]).ok();
    }
    let unchanged = run_on(&database.url, &["schema", "apply", "--json"]).ok().json();
    assert_eq!(unchanged["applied"], false);

    // What somebody changed is found all the same.
    client
        .batch_execute(
            "do $$ begin execute 'create or replace view duroxide.lease_status as ' || replace( \
                 pg_get_viewdef('duroxide.lease_status'), 'infinity', '2999-01-01'); end $$",
        )
        .await
        .expect("a changed view");
    let report = run_on(&database.url, &["schema", "verify", "--json"]).fails(1, &["schema apply"]);
    assert_eq!(report.json()["changed"], json!(["view lease_status"]));
    run_on(&database.url, &["schema", "apply"]).ok();
    run_on(&database.url, &["schema", "verify"]).ok();
    drop(client);
    database.drop().await;
}

#[tokio::test]
async fn a_dump_can_be_restored_and_verified() {
    let (original, restored) = (Database::create().await, Database::create().await);
    PostgresProvider::connect(&original.url).await.expect("deployed");
    let mut source = &original;
    // And once more: the copy of a copy.
    let again = Database::create().await;
    for target in [&restored, &again] {
        let Some(dump) = pg_dump(&source.url, &["--schema=duroxide"]).await else {
            break;
        };
        let Some(read) = psql(&target.url, &dump) else {
            break;
        };
        assert_eq!((read.code, read.err.as_str()), (0, ""));
        run_on(&target.url, &["schema", "verify"]).ok();
        let unchanged = run_on(&target.url, &["schema", "apply", "--json"]).ok().json();
        assert_eq!(unchanged["applied"], false);
        PostgresProvider::connect(&target.url)
            .await
            .expect("it runs there")
            .health_check()
            .await
            .expect("healthy");
        source = target;
    }
    for database in [original, restored, again] {
        database.drop().await;
    }
}
