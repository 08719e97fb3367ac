//! The [`ProviderAdmin`] implementation: a delegating line a method.

use async_trait::async_trait;
use duroxide::Event;
use duroxide::providers::{
    DeleteInstanceResult, ExecutionInfo, InstanceFilter, InstanceInfo, InstanceTree, ProviderAdmin, ProviderError,
    PruneOptions, PruneResult, QueueDepths, SystemMetrics,
};

use crate::provider::PostgresProvider;
use crate::telemetry::operation;

#[async_trait]
impl ProviderAdmin for PostgresProvider {
    async fn list_instances(&self) -> Result<Vec<String>, ProviderError> {
        operation("list_instances", None)
            .run(self.inner.list_instances(None))
            .await
    }

    async fn list_instances_by_status(&self, status: &str) -> Result<Vec<String>, ProviderError> {
        operation("list_instances_by_status", None)
            .run(self.inner.list_instances(Some(status)))
            .await
    }

    async fn list_executions(&self, instance: &str) -> Result<Vec<u64>, ProviderError> {
        operation("list_executions", Some(instance))
            .run(self.inner.list_executions(instance))
            .await
    }

    async fn read_history_with_execution_id(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        operation("read_history_with_execution_id", Some(instance))
            .run(self.inner.read_with_execution(instance, execution_id))
            .await
    }

    async fn read_history(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        operation("read_history", Some(instance))
            .run(self.inner.read(instance))
            .await
    }

    async fn latest_execution_id(&self, instance: &str) -> Result<u64, ProviderError> {
        operation("latest_execution_id", Some(instance))
            .run(self.inner.latest_execution_id(instance))
            .await
    }

    async fn get_instance_info(&self, instance: &str) -> Result<InstanceInfo, ProviderError> {
        operation("get_instance_info", Some(instance))
            .run(self.inner.get_instance_info(instance))
            .await
    }

    async fn get_execution_info(&self, instance: &str, execution_id: u64) -> Result<ExecutionInfo, ProviderError> {
        operation("get_execution_info", Some(instance))
            .run(self.inner.get_execution_info(instance, execution_id))
            .await
    }

    async fn get_system_metrics(&self) -> Result<SystemMetrics, ProviderError> {
        operation("get_system_metrics", None)
            .run(self.inner.get_system_metrics())
            .await
    }

    async fn get_queue_depths(&self) -> Result<QueueDepths, ProviderError> {
        operation("get_queue_depths", None)
            .run(self.inner.get_queue_depths())
            .await
    }

    async fn list_children(&self, instance_id: &str) -> Result<Vec<String>, ProviderError> {
        operation("list_children", Some(instance_id))
            .run(self.inner.list_children(instance_id))
            .await
    }

    async fn get_parent_id(&self, instance_id: &str) -> Result<Option<String>, ProviderError> {
        operation("get_parent_id", Some(instance_id))
            .run(self.inner.get_parent_id(instance_id))
            .await
    }

    async fn get_instance_tree(&self, instance_id: &str) -> Result<InstanceTree, ProviderError> {
        operation("get_instance_tree", Some(instance_id))
            .run(self.inner.get_instance_tree(instance_id))
            .await
    }

    async fn delete_instances_atomic(
        &self,
        ids: &[String],
        force: bool,
    ) -> Result<DeleteInstanceResult, ProviderError> {
        operation("delete_instances_atomic", None)
            .run(self.inner.delete_instances_atomic(ids, force))
            .await
    }

    async fn delete_instance(&self, instance_id: &str, force: bool) -> Result<DeleteInstanceResult, ProviderError> {
        operation("delete_instance", Some(instance_id))
            .run(self.inner.delete_instance(instance_id, force))
            .await
    }

    async fn delete_instance_bulk(&self, filter: InstanceFilter) -> Result<DeleteInstanceResult, ProviderError> {
        operation("delete_instance_bulk", None)
            .run(self.inner.delete_instance_bulk(&filter))
            .await
    }

    async fn prune_executions(&self, instance_id: &str, options: PruneOptions) -> Result<PruneResult, ProviderError> {
        operation("prune_executions", Some(instance_id))
            .run(self.inner.prune_executions(instance_id, &options))
            .await
    }

    async fn prune_executions_bulk(
        &self,
        filter: InstanceFilter,
        options: PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        operation("prune_executions_bulk", None)
            .run(self.inner.prune_executions_bulk(&filter, &options))
            .await
    }
}
