//! What others put into the schema is neither run nor taken for ours.

use duroxide_postgres::PostgresProvider;

use crate::database::Database;
use crate::process::{Finished, psql, run_on};

type Way<'a> = &'a dyn Fn(&Database) -> Option<Finished>;

fn apply(database: &Database) -> Option<Finished> {
    Some(run_on(&database.url, &["schema", "apply"]))
}

fn script(database: &Database) -> Option<Finished> {
    psql(&database.url, &run_on("", &["schema", "sql"]).ok().out)
}

fn fails(finished: Finished, texts: &[&str]) {
    assert!(!finished.err.contains("it ran"), "{}", finished.err);
    let code = finished.code;
    assert!(code == 1 || code == 3, "{code}");
    finished.fails(code, texts);
}

/// Before the first deployment, by somebody who could create as everybody could.
#[tokio::test]
async fn what_a_stranger_planted_is_not_run() {
    let run = "returns trigger language plpgsql as $$ begin reset role; raise exception 'it ran'; end $$";
    for deploy in [&apply as Way<'_>, &script] {
        let database = Database::create().await;
        let (client, role) = (database.client().await, database.name.clone());
        client
            .batch_execute(&format!(
                "create role {role}; create schema duroxide; grant usage, create on schema duroxide to public"
            ))
            .await
            .expect("an open schema");
        // Nobody did yet, as far as can be seen; the one who deploys can close it.
        let Some(refused) = deploy(&database) else {
            database.drop_with(&[&role]).await;
            continue;
        };
        fails(refused, &["revoke create on schema duroxide from public;"]);
        for (plant, names) in [
            (
                format!(
                    "create table duroxide.schema_history (version int4, name text, applied_on text, checksum text); \
                     create function duroxide.f() {run}; \
                     create trigger t before insert on duroxide.schema_history execute function duroxide.f()"
                ),
                "a relation ",
            ),
            // To become the owner of `mailboxes` is no protection.
            (
                format!(
                    "create table duroxide.schema_history (version int4, name text, applied_on text, checksum text); \
                     create table duroxide.mailboxes (); create function duroxide.f() {run}; \
                     create trigger t before insert on duroxide.schema_history execute function duroxide.f()"
                ),
                "a relation ",
            ),
            (
                "create function duroxide.get_deployment() returns integer language plpgsql immutable \
                 as $$ begin raise exception 'it ran'; end $$"
                    .to_string(),
                "function get_deployment",
            ),
            (
                "create function duroxide.schema_key() returns integer language sql as 'select 1'".to_string(),
                "function schema_key",
            ),
        ] {
            client
                .batch_execute(&format!("set role {role}; {plant}; reset role"))
                .await
                .expect(&plant);
            let says = [names, &format!("of role {role}"), "not ours"];
            fails(deploy(&database).expect("as before"), &says);
            if plant.contains("get_deployment") {
                for command in [&["status"][..], &["schema", "version"], &["doctor"]] {
                    let finished = run_on(&database.url, command);
                    assert!(!format!("{}{}", finished.out, finished.err).contains("it ran"));
                    assert_eq!(finished.code, 1, "{command:?}");
                }
                let refused = PostgresProvider::connect(&database.url).await.expect_err("a node");
                assert!(refused.to_string().contains("not ours"), "{refused}");
            }
            // Closing it now makes nothing of it ours.
            client
                .batch_execute("revoke create on schema duroxide from public")
                .await
                .expect("close");
            fails(deploy(&database).expect("as before"), &says);
            client
                .batch_execute(&format!(
                    "drop owned by {role}; grant create on schema duroxide to public"
                ))
                .await
                .expect("start over");
        }
        client
            .batch_execute("revoke create on schema duroxide from public")
            .await
            .expect("close");
        deploy(&database).expect("as before").ok();
        database.drop_with(&[&role]).await;
    }
}

/// In somebody else's schema, which it cannot close, a role deploys and upgrades. Whether it deployed that, or planted it, is
/// for its owner to say.
#[tokio::test]
async fn who_deployed_in_an_open_schema_goes_on() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    client
        .batch_execute(&format!(
            "create role {role} login password '{role}'; create schema duroxide; \
             grant usage, create on schema duroxide to public; grant temporary on database {role} to {role}"
        ))
        .await
        .expect("an open schema");
    let url = database.url_as(&role);
    let damage = "drop function duroxide.list_children(text)";
    run_on(&url, &["schema", "apply"]).ok();
    client.batch_execute(damage).await.expect("damage");
    run_on(&url, &["schema", "apply"]).ok();
    run_on(&url, &["status"]).ok();
    client.batch_execute(damage).await.expect("damage");
    let grant = format!("grant create on schema duroxide to {role};");
    for deploy in [&apply as Way<'_>, &script] {
        if let Some(refused) = deploy(&database) {
            fails(refused, &[&format!("of role {role}"), &grant]);
        }
    }
    // Its views would be read with the rights of a superuser.
    run_on(&database.url, &["status"]).fails(1, &["not ours", &grant]);
    // Somebody else's are its own affair.
    let reader = format!("{role}_reader");
    client
        .batch_execute(&format!("create role {reader} login password '{reader}'"))
        .await
        .expect("a reader");
    run_on(&url, &["grant", "--for", "dashboard", &reader]).ok();
    run_on(&database.url_as(&reader), &["schema", "version"]).ok();
    client.batch_execute(&grant).await.expect("let it");
    run_on(&database.url, &["status"]).ok();
    for deploy in [&apply as Way<'_>, &script] {
        if let Some(done) = deploy(&database) {
            done.ok();
        }
    }
    database.drop_with(&[&role, &reader]).await;
}

/// Of another application, by the same role.
#[tokio::test]
async fn another_schema_history_is_not_ours() {
    let database = Database::create().await;
    let client = database.client().await;
    client.batch_execute("create schema duroxide").await.expect("a schema");
    for (kind, history) in [
        ("table", "table duroxide.schema_history (mine integer)"),
        ("view", "view duroxide.schema_history as select 1 as version"),
        ("sequence", "sequence duroxide.schema_history"),
    ] {
        client.batch_execute(&format!("create {history}")).await.expect(history);
        let said = format!("has a {} \"schema_history\"", kind.replace("sequence", "relation"));
        for deploy in [&apply as Way<'_>, &script] {
            if let Some(refused) = deploy(&database) {
                fails(refused, &[&said, "did not create"]);
            }
        }
        client
            .batch_execute(&format!("drop {kind} duroxide.schema_history"))
            .await
            .expect("drop");
    }
    run_on(&database.url, &["schema", "apply"]).ok();
    database.drop().await;
}
