//! What others put into the schema is neither run nor taken for ours.

use duroxide_postgres::{DeployPolicy, PostgresProvider};

use crate::database::Database;
use crate::doctor::findings;
use crate::process::{Finished, psql, run_on};

/// A way to deploy, and the code that it fails with.
type Way<'a> = (&'a dyn Fn(&Database) -> Option<Finished>, i32);

const WAYS: [Way<'_>; 2] = [(&apply, 1), (&script, 3)];

fn apply(database: &Database) -> Option<Finished> {
    Some(run_on(&database.url, &["schema", "apply"]))
}

fn script(database: &Database) -> Option<Finished> {
    psql(&database.url, &run_on("", &["schema", "sql"]).ok().out)
}

#[track_caller]
fn fails(finished: Finished, code: i32, texts: &[&str]) {
    assert!(!finished.err.contains("it ran"), "{}", finished.err);
    finished.fails(code, texts);
}

/// What `doctor` says of the schema.
#[track_caller]
fn of_schema(url: &str) -> Vec<String> {
    let report = run_on(url, &["doctor", "--json"]).fails(1, &[]).json();
    assert!(!report.to_string().contains("it ran"), "{report:#}");
    findings(&report, "schema")
}

/// Creates a function that says so when it is run.
fn better(signature: &str, returns: &str) -> String {
    format!(
        "create function duroxide.{signature} returns {returns} language plpgsql \
         as $$ begin raise exception 'it ran'; end $$"
    )
}

/// Before the first deployment, by somebody who could create as everybody could.
#[tokio::test]
async fn what_a_stranger_planted_is_not_run() {
    let run = "returns trigger language plpgsql as $$ begin reset role; raise exception 'it ran'; end $$";
    for (deploy, code) in WAYS {
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
        fails(refused, code, &["revoke create on schema duroxide from public;"]);
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
            // Better matches than PostgreSQL's own, as soon as the schema is in the path.
            (better("quote_ident(name)", "text"), "function quote_ident"),
            (better("format(text, name)", "text"), "function format"),
            (
                format!(
                    "{}; create operator duroxide.= \
                     (function = duroxide.is_it, leftarg = oid, rightarg = regnamespace)",
                    better("is_it(oid, regnamespace)", "boolean")
                ),
                "an operator \"=\"",
            ),
        ] {
            client
                .batch_execute(&format!("set role {role}; {plant}; reset role"))
                .await
                .expect(&plant);
            let says = [names, &format!("of role {role}"), "no grant of its own"];
            fails(deploy(&database).expect("as before"), code, &says);
            if plant.contains("get_deployment") {
                for command in [["status", "--json"], ["schema", "version"]] {
                    fails(run_on(&database.url, &command), 1, &says);
                }
                let found = of_schema(&database.url);
                assert!(
                    found.len() == 1 && says.iter().all(|text| found[0].contains(text)),
                    "{found:?}"
                );
                let refused = PostgresProvider::connect(&database.url).await.expect_err("a node");
                assert!(refused.to_string().contains("no grant of its own"), "{refused}");
            }
            // Closing it now makes nothing of it ours.
            client
                .batch_execute("revoke create on schema duroxide from public")
                .await
                .expect("close");
            fails(deploy(&database).expect("as before"), code, &says);
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
    let role = database.somebody_elses_schema("public").await;
    let client = database.client().await;
    let url = database.url_as(&role);
    let damage = "drop function duroxide.list_children(text)";
    run_on(&url, &["schema", "apply"]).ok();
    client.batch_execute(damage).await.expect("damage");
    run_on(&url, &["schema", "apply"]).ok();
    run_on(&url, &["status"]).ok();
    client.batch_execute(damage).await.expect("damage");
    let grant = format!("grant create on schema duroxide to {role};");
    for (deploy, code) in WAYS {
        if let Some(refused) = deploy(&database) {
            fails(refused, code, &[&format!("of role {role}"), &grant]);
        }
    }
    // Its views would be read with the rights of the reader, whoever that is.
    run_on(&database.url, &["status"]).fails(1, &["cannot be told", &grant]);
    let reader = format!("{role}_reader");
    client
        .batch_execute(&format!("create role {reader} login password '{reader}'"))
        .await
        .expect("a reader");
    run_on(&url, &["grant", "--for", "dashboard", &reader]).ok();
    client
        .batch_execute(&format!(
            "create function duroxide.evil() returns bigint language plpgsql as $$ begin raise exception 'it ran'; end $$; \
             alter function duroxide.evil() owner to {role}; \
             create or replace view duroxide.instance_counts as select 'Running'::text as status, duroxide.evil() as instances"
        ))
        .await
        .expect("a view that runs something");
    for command in [["status", "--json"], ["schema", "version"]] {
        fails(
            run_on(&database.url_as(&reader), &command),
            1,
            &["cannot be told", &grant],
        );
    }
    client
        .batch_execute("drop view duroxide.instance_counts; drop function duroxide.evil()")
        .await
        .expect("as before");
    // A process calls functions, which run as that role.
    client
        .batch_execute(&format!("create role {role}_node login password '{role}_node'"))
        .await
        .expect("a node's role");
    let node = format!("{role}_node");
    run_on(&url, &["schema", "apply"]).ok();
    run_on(&url, &["grant", &node]).ok();
    PostgresProvider::builder(&database.url_as(&node))
        .deploy(DeployPolicy::Verify)
        .connect()
        .await
        .expect("a node");
    client.batch_execute(damage).await.expect("damage");
    client.batch_execute(&grant).await.expect("let it");
    run_on(&database.url_as(&reader), &["schema", "version"]).ok();
    for (deploy, _) in WAYS {
        if let Some(done) = deploy(&database) {
            done.ok();
        }
    }
    run_on(&database.url, &["status"]).ok();
    database.drop_with(&[&role, &reader, &node]).await;
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
        for (deploy, code) in WAYS {
            if let Some(refused) = deploy(&database) {
                fails(refused, code, &[&said, "did not create"]);
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

/// Where the path of a session leads to the schema, nothing that fits better there than PostgreSQL's own is run.
#[tokio::test]
async fn the_path_of_a_session_does_not_matter() {
    let database = Database::create().await;
    let (client, name) = (database.client().await, database.name.clone());
    run_on(&database.url, &["schema", "apply"]).ok();
    for function in [
        better("quote_ident(name)", "text"),
        better("format(text, name)", "text"),
        better("pg_get_viewdef(regclass)", "text"),
    ] {
        client.batch_execute(&function).await.expect(&function);
    }
    client
        .batch_execute(&format!(
            "{}; create operator duroxide.= (function = duroxide.is_it, leftarg = oid, rightarg = regnamespace); \
             alter database {name} set search_path = duroxide; create role {name}",
            better("is_it(oid, regnamespace)", "boolean")
        ))
        .await
        .expect("better matches");
    for command in [
        &["status"][..],
        &["schema", "version"],
        &["grant", "--for", "dashboard", &name],
    ] {
        run_on(&database.url, command).ok();
    }
    run_on(&database.url, &["schema", "verify"]).fails(1, &["not as"]);
    let found = of_schema(&database.url);
    assert!(found.iter().all(|finding| finding.contains("not ours: ")), "{found:?}");
    let node = PostgresProvider::builder(&database.url).deploy(DeployPolicy::Verify);
    let refused = node
        .connect()
        .await
        .expect_err("more than this release deploys")
        .to_string();
    assert!(
        refused.contains("quote_ident") && !refused.contains("it ran"),
        "{refused}"
    );
    database.drop_with(&[&name]).await;
}

/// Who was let create, deployed, and may not any more.
#[tokio::test]
async fn what_a_role_deployed_that_may_not_create_any_more_is_doubted_not_denied() {
    let database = Database::create().await;
    let role = database.somebody_elses_schema(&database.name).await;
    let client = database.client().await;
    run_on(&database.url_as(&role), &["schema", "apply"]).ok();
    run_on(&database.url, &["status"]).ok();
    client
        .batch_execute(&format!("revoke create on schema duroxide from {role}"))
        .await
        .expect("no more than it needs");
    run_on(&database.url_as(&role), &["status"]).ok();
    let cure = format!("alter schema duroxide owner to {role};");
    let refused = run_on(&database.url, &["status"]).fails(1, &["cannot be told", "run this as that role", &cure]);
    assert!(
        !refused.err.contains("not ours") && !refused.err.contains("nobody"),
        "{}",
        refused.err
    );
    let found = of_schema(&database.url);
    let fix = format!(" | {cure} -- only if role {role} deployed it; or run this as that role");
    assert!(found.len() == 1 && found[0].contains(&fix), "{found:?}");
    client.batch_execute(&fix[3..]).await.expect("the fix");
    run_on(&database.url, &["status"]).ok();
    database.drop_with(&[&role]).await;
}

/// What a superuser put there, as extensions are, is no stranger's; nor is what the owner itself, or somebody it let create, did.
#[tokio::test]
async fn functions_of_those_who_may_create_are_let_be() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    let friend = format!("{role}_friend");
    client
        .batch_execute(&format!(
            "create role {role} login password '{role}'; create role {friend}; \
             create schema duroxide authorization {role}; grant usage, create on schema duroxide to {friend}; \
             grant temporary on database {role} to {role}; \
             create function duroxide.format(integer, integer) returns text language sql as 'select null'; \
             create function duroxide.same(text, integer) returns boolean language sql as 'select true'; \
             create operator duroxide.= (function = duroxide.same, leftarg = text, rightarg = integer); \
             set role {friend}; \
             create function duroxide.quote_ident(integer) returns text language sql as 'select null'; \
             set role {role}; \
             create function duroxide.quote_ident(bigint) returns text language sql as 'select null'; \
             reset role"
        ))
        .await
        .expect("functions of others");
    let url = database.url_as(&role);
    run_on(&url, &["schema", "apply"]).ok();
    run_on(&url, &["status"]).ok();
    if let Some(done) = psql(&url, &run_on("", &["schema", "sql"]).ok().out) {
        done.ok();
    }
    for (deploy, _) in WAYS {
        if let Some(done) = deploy(&database) {
            done.ok();
        }
    }
    client
        .batch_execute("drop schema duroxide cascade")
        .await
        .expect("clean");
    database.drop_with(&[&role, &friend]).await;
}
