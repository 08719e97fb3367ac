//! EXECUTE is enough, and nothing else is there.

use duroxide_postgres::{Builder, DeployPolicy, ErrorKind};
use tokio_postgres::NoTls;

use crate::support::{TestSchema, connect};

/// The validations run with such a role too; here is what it may not do.
#[tokio::test]
async fn an_execute_only_role_reaches_no_table() {
    let schema = TestSchema::new();
    schema.provider().await;
    schema.create_execute_only_role().await;
    let (client, connection) = schema.execute_only_config().connect(NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
        .batch_execute(&format!("set search_path = {}", schema.name))
        .await
        .expect("search_path");
    let tables = client
        .query(
            "select c.relname::text, (select a.attname::text from pg_attribute as a where a.attrelid = c.oid and a.attnum = 1) \
               from pg_class as c where c.relnamespace = $1::text::regnamespace and c.relkind = 'r'",
            &[&schema.name],
        )
        .await
        .expect("tables");
    assert!(tables.len() >= 11, "{}", tables.len());
    for row in &tables {
        let (table, column): (String, String) = (row.get(0), row.get(1));
        for statement in [
            format!("select * from {table}"),
            format!("insert into {table} default values"),
            format!("update {table} set {column} = {column}"),
            format!("delete from {table}"),
            format!("truncate {table}"),
            format!("begin; lock table {table}; commit"),
            format!("select * from {table} for update"),
            format!("drop table {table}"),
        ] {
            let error = client.batch_execute(&statement).await.expect_err(&statement);
            assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{statement}");
            client.batch_execute("rollback").await.expect("rollback");
        }
    }
    // Functions that only functions call give it nothing either, even if they are granted.
    schema
        .client()
        .await
        .batch_execute(&format!(
            "grant execute on all functions in schema {0} to {0}",
            schema.name
        ))
        .await
        .expect("grant");
    for statement in [
        "select * from erase_instances(array['i'])",
        "select wake_mailboxes(array['i'], array[now()], true)",
        "select apply_kv('i', true, '{}', '{}', '{}', true)",
        "create function mine() returns void language sql as 'select'",
        "create table mine (id integer)",
    ] {
        let error = client.batch_execute(statement).await.expect_err(statement);
        assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{statement}");
    }
}

#[tokio::test]
async fn a_role_without_grants_is_told_what_it_needs() {
    let schema = TestSchema::new();
    schema.provider().await;
    let owner = connect(&schema.url).await;
    owner
        .batch_execute(&format!("create role {0} login password '{0}'", schema.name))
        .await
        .expect("role");
    for policy in [DeployPolicy::Apply, DeployPolicy::Verify] {
        let error = Builder::from_config(schema.execute_only_config())
            .schema(&schema.name)
            .deploy(policy)
            .connect()
            .await
            .expect_err("no privilege");
        assert_eq!(error.kind(), ErrorKind::Privilege);
        assert!(
            error.to_string().contains("USAGE") && error.to_string().contains("EXECUTE"),
            "{error}"
        );
    }
    // Nor may it deploy.
    let error = Builder::from_config(schema.execute_only_config())
        .schema("a_schema_that_does_not_exist")
        .connect()
        .await
        .expect_err("no privilege");
    assert_eq!(error.kind(), ErrorKind::Privilege, "{error}");
    assert!(error.to_string().contains("DeployPolicy::Verify"), "{error}");
}
