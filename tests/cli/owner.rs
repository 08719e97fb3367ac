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
        let (client, role) = (database.client().await, &database.name);
        client
            .batch_execute(&format!(
                "create role {role}; create schema duroxide authorization {role}; grant temporary on database {role} to {role}"
            ))
            .await
            .expect("a schema");
        let Some(deployed) = deploy(&database) else {
            client
                .batch_execute(&format!("drop owned by {role}; drop role {role}"))
                .await
                .expect("clean");
            database.drop().await;
            continue;
        };
        deployed.ok();
        assert_eq!(owners(&database).await.join(" "), *role);
        // What is created later as well, whoever owns the schema then.
        client
            .batch_execute(&format!(
                "drop function duroxide.list_children(text); alter schema duroxide owner to current_user; \
                 grant usage, create on schema duroxide to {role}"
            ))
            .await
            .expect("a fault");
        deploy(&database).expect("as before").ok();
        assert_eq!(owners(&database).await.join(" "), *role);
        run_on(&database.url, &["schema", "verify"]).ok();
        client
            .batch_execute(&format!("drop owned by {role}; drop role {role}"))
            .await
            .expect("clean");
        database.drop().await;
    }
}

/// Who cannot become the owner is told so.
#[tokio::test]
async fn who_cannot_become_the_owner_does_not_deploy() {
    let database = Database::create().await;
    let (client, role) = (database.client().await, &database.name);
    run_on(&database.url, &["schema", "apply"]).ok();
    client
        .batch_execute(&format!(
            "create role {role} login password '{role}'; grant usage, create on schema duroxide to {role}; \
             grant execute on function duroxide.get_deployment to {role}; drop function duroxide.list_children(text)"
        ))
        .await
        .expect("a role");
    let url = format!(
        "{} user={role} password={role}",
        crate::process::key_values(&database.url)
    );
    run_on(&url, &["schema", "apply"]).fails(1, &["belongs to role", "deploy as that role"]);
    client
        .batch_execute(&format!("drop owned by {role}; drop role {role}"))
        .await
        .expect("clean");
    database.drop().await;
}
