//! A database of a test's own.

use tokio_postgres::Client;

use crate::process::key_values;
use crate::support::{connect, database_url, with_database};

/// A database of its own, dropped when the test ends.
pub struct Database {
    pub name: String,
    pub url: String,
    server: String,
}

impl Database {
    pub async fn create() -> Self {
        Self::create_on(&database_url()).await
    }

    /// On another server than that of `DATABASE_URL`.
    pub async fn create_on(server: &str) -> Self {
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        connect(server)
            .await
            .batch_execute(&format!("create database {name}"))
            .await
            .expect("database");
        Self {
            url: with_database(server, &name),
            server: server.to_string(),
            name,
        }
    }

    pub async fn drop(self) {
        let server = connect(&self.server).await;
        server
            .batch_execute(&format!("drop database {} with (force)", self.name))
            .await
            .expect("drop");
    }

    /// The same, and roles that were made for it, with all they own and may do there.
    pub async fn drop_with(self, roles: &[&str]) {
        let client = self.client().await;
        for verb in ["drop owned by", "drop role"] {
            let roles = roles.join(", ");
            client.batch_execute(&format!("{verb} {roles}")).await.expect("clean");
        }
        self.drop().await;
    }

    /// As it is from PostgreSQL 15 on: nobody deploys to where everybody may create.
    pub async fn close_public(&self) {
        let client = self.client().await;
        let revoke = "revoke create on schema public from public";
        client.batch_execute(revoke).await.expect(revoke);
    }

    /// A role, whose password is its name, and schema `duroxide`, which is not its own: `creator` may create there.
    pub async fn somebody_elses_schema(&self, creator: &str) -> String {
        let role = self.name.clone();
        let set_up = format!(
            "create role {role} login password '{role}'; create schema duroxide; \
             grant usage, create on schema duroxide to {creator}; grant temporary on database {role} to {role}"
        );
        self.client().await.batch_execute(&set_up).await.expect("a schema");
        role
    }

    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }

    /// As a role whose password is its name.
    pub fn url_as(&self, role: &str) -> String {
        format!("{} user={role} password={role}", key_values(&self.url))
    }

    /// A schema as the catalogs have it: a line an object, whatever the server's release is.
    pub async fn catalog(&self, schema: &str) -> Vec<String> {
        let rows = self.client().await.query(include_str!("catalog.sql"), &[&schema]).await;
        rows.expect("catalog").iter().map(|row| row.get(0)).collect()
    }
}
