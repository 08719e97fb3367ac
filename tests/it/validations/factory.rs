//! Providers for the validations.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use duroxide::provider_validations::ProviderFactory;
use duroxide::providers::Provider;
use duroxide_postgres::{DeployPolicy, PostgresProvider};
use tokio_postgres::Client;

use crate::modes;
use crate::support::TestSchema;

/// A fresh schema for each provider: validations that create a second one expect an empty store.
pub struct Factory {
    role: Role,
    schemas: Mutex<Vec<Arc<TestSchema>>>,
}

/// As whom the provider connects.
#[derive(Clone, Copy)]
pub enum Role {
    /// Deploys the schema itself.
    Owner,
    /// Has USAGE on the schema and EXECUTE on its functions, and verifies what the owner deployed.
    ExecuteOnly,
}

impl Factory {
    pub fn new(role: Role) -> Self {
        Self {
            role,
            schemas: Mutex::default(),
        }
    }

    fn fresh_schema(&self) -> Arc<TestSchema> {
        let schema = Arc::new(TestSchema::on(modes::admin_url()));
        self.schemas.lock().expect("schemas").push(Arc::clone(&schema));
        schema
    }

    /// A connection to the schema of the latest provider.
    async fn client(&self) -> Client {
        let schema = self.schemas.lock().expect("schemas").last().cloned();
        schema.expect("a provider").client().await
    }

    pub async fn provider(&self, long_poll: bool) -> Arc<PostgresProvider> {
        let schema = self.fresh_schema();
        let builder = match self.role {
            Role::Owner => modes::owner(&schema),
            Role::ExecuteOnly => {
                schema.provider().await;
                schema.create_execute_only_role().await;
                modes::execute_only(&schema).deploy(DeployPolicy::Verify)
            }
        };
        let builder = builder.schema(&schema.name).pool_size(8).long_poll(long_poll);
        Arc::new(builder.connect().await.expect("provider"))
    }
}

#[async_trait]
impl ProviderFactory for Factory {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        self.provider(true).await
    }

    fn lock_timeout(&self) -> Duration {
        // Most validations make several calls within it, some of them the first on their connection.
        Duration::from_secs(3)
    }

    fn short_poll_threshold(&self) -> Duration {
        Duration::from_millis(500)
    }

    async fn corrupt_instance_history(&self, instance: &str) {
        let changed = self
            .client()
            .await
            .execute(
                "update history set event_data = '{\"kind\": \"FromTheFuture\"}' where instance_id = $1",
                &[&instance],
            )
            .await
            .expect("corrupt the history");
        assert!(changed > 0, "nothing to corrupt");
    }

    async fn get_max_attempt_count(&self, instance: &str) -> u32 {
        let row = self
            .client()
            .await
            .query_one(
                "select max(q.attempt_count + case when q.id = any (m.claimed_ids) then 1 else 0 end) \
                   from orchestrator_queue as q join mailboxes as m using (instance_id) \
                  where q.instance_id = $1",
                &[&instance],
            )
            .await
            .expect("attempt counts");
        row.get::<_, i32>(0) as u32
    }
}
