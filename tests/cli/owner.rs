//! To whom a deployment belongs: functions run as their owner.

use crate::database::Database;
use crate::process::{Finished, psql, run_on};

/// Who owns something of the deployment.
async fn owners(database: &Database) -> Vec<String> {
    let sql = "select distinct pg_get_userbyid(o.owner)::text from ( \
                   select p.proowner as owner from pg_proc as p where p.pronamespace = 'duroxide'::regnamespace \
                   union all \
                   select c.relowner from pg_class as c where c.relnamespace = 'duroxide'::regnamespace) as o order by 1";
    let rows = database.client().await.query(sql, &[]).await.expect("owners");
    rows.iter().map(|row| row.get(0)).collect()
}

/// A superuser's functions would lend the owner of the schema everything.
#[tokio::test]
async fn a_superuser_deploys_as_the_owner_of_the_schema() {
    let apply = |database: &Database| Some(run_on(&database.url, &["schema", "apply"]));
    let script = |database: &Database| psql(&database.url, &run_on("", &["schema", "sql"]).ok().out);
    for deploy in [&apply as &dyn Fn(&Database) -> Option<Finished>, &script] {
        let database = Database::create().await;
        let (client, role) = (database.client().await, database.name.clone());
        client
            .batch_execute(&format!(
                "create role {role}; create schema duroxide authorization {role}; grant temporary on database {role} to {role}"
            ))
            .await
            .expect("a schema");
        let Some(deployed) = deploy(&database) else {
            database.drop_with(&[&role]).await;
            continue;
        };
        deployed.ok();
        assert_eq!(owners(&database).await.join(" "), role);
        // What is created later as well, whoever owns the schema then.
        client
            .batch_execute(&format!(
                "drop function duroxide.list_children(text); alter schema duroxide owner to current_user; \
                 grant usage, create on schema duroxide to {role}"
            ))
            .await
            .expect("a fault");
        deploy(&database).expect("as before").ok();
        assert_eq!(owners(&database).await.join(" "), role);
        run_on(&database.url, &["schema", "verify"]).ok();
        database.drop_with(&[&role]).await;
    }
}

/// Nothing but the one connection that deploys is needed to say what was deployed.
#[tokio::test]
async fn one_connection_is_enough_to_deploy() {
    let database = Database::create().await;
    let role = database.name.clone();
    let created = format!(
        "create role {role} login password '{role}' connection limit 1; grant create, temporary on database {role} to {role}"
    );
    database.client().await.batch_execute(&created).await.expect("role");
    for says in ["is deployed, migration", "nothing was changed"] {
        let applied = run_on(&database.url_as(&role), &["schema", "apply"]).ok();
        assert!(applied.out.contains(says), "{}", applied.out);
    }
    database.drop_with(&[&role]).await;
}

/// Who cannot become the owner is told so.
#[tokio::test]
async fn who_cannot_become_the_owner_does_not_deploy() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    run_on(&database.url, &["schema", "apply"]).ok();
    client
        .batch_execute(&format!(
            "create role {role} login password '{role}'; grant usage, create on schema duroxide to {role}; \
             grant execute on function duroxide.get_deployment to {role}; drop function duroxide.list_children(text)"
        ))
        .await
        .expect("a role");
    let url = database.url_as(&role);
    run_on(&url, &["schema", "apply"]).fails(1, &["belongs to role", "deploy as that role"]);
    database.drop_with(&[&role]).await;
}

/// A table that is created again, whoever does it, belongs to whom the others do: functions that run as that role read it.
#[tokio::test]
async fn records_that_are_written_again_belong_to_whom_the_rest_does() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    client
        .batch_execute(&format!(
            "create role {role}; create schema duroxide authorization {role}; grant temporary on database {role} to {role}"
        ))
        .await
        .expect("a schema");
    run_on(&database.url, &["schema", "apply"]).ok();
    for table in ["deployment", "schema_history"] {
        client
            .batch_execute(&format!("drop table duroxide.{table}"))
            .await
            .expect("a loss");
        let report = run_on(&database.url, &["doctor", "--json"]).fails(1, &[]).json();
        let findings = report["findings"].as_array().expect("findings").iter();
        let lost = findings
            .filter(|finding| finding["check"] == "schema")
            .flat_map(|finding| finding["fixes"].as_array().expect("fixes"))
            .map(|fix| fix.as_str().expect("text"))
            .filter(|fix| !fix.starts_with("duroxide-postgres "));
        for fix in lost {
            client.batch_execute(fix).await.expect(fix);
        }
        run_on(&database.url, &["schema", "apply"]).ok();
        assert_eq!(owners(&database).await.join(" "), role);
        run_on(&database.url, &["schema", "verify"]).ok();
    }
    database.drop_with(&[&role]).await;
}

/// A member that does not inherit could not use what it deployed as the group.
#[tokio::test]
async fn a_member_that_does_not_inherit_deploys_as_itself() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, database.name.clone());
    let group = format!("{role}_group");
    client
        .batch_execute(&format!(
            "create role {group}; create role {role} login password '{role}' noinherit; grant {group} to {role}; \
             create schema duroxide authorization {group}; grant usage, create on schema duroxide to {role}; \
             grant temporary on database {role} to {role}, {group}"
        ))
        .await
        .expect("roles");
    let url = database.url_as(&role);
    run_on(&url, &["schema", "apply"]).ok();
    assert_eq!(owners(&database).await.join(" "), role);
    run_on(&url, &["status"]).ok();
    database.drop_with(&[&role, &group]).await;
}
