//! Instances that were started and have had no turn: messages in a queue, and nothing else yet.

use duroxide::providers::{DeleteInstanceResult, InstanceInfo, ProviderAdmin, ProviderError};

use super::output::{Failure, duration, has_state};
use crate::PostgresProvider;
use crate::instances::QueuedStart;

/// The start of an instance that waits in the queue. None too if this role may not look, or there is nothing to look with:
/// then nobody can say more than that it was not found.
pub(super) async fn enqueued(provider: &PostgresProvider, instance: &str) -> Result<Option<QueuedStart>, Failure> {
    match provider.inner.get_queued_messages(instance).await {
        Ok(start) => Ok(start),
        Err(failure) if ["42501", "42883"].iter().any(|state| has_state(&failure.error, state)) => Ok(None),
        Err(failure) => Err(Failure::from(failure.error)),
    }
}

/// An instance that has begun. Of one that is only enqueued, says so.
pub(super) async fn begun(provider: &PostgresProvider, instance: &str) -> Result<InstanceInfo, Failure> {
    match provider.get_instance_info(instance).await {
        Ok(info) => Ok(info),
        Err(error) if error.is_retryable() => Err(Failure::from(error)),
        Err(error) => Err(match enqueued(provider, instance).await? {
            Some(start) => Failure::new(not_begun(instance, &start)),
            None => Failure::from(error),
        }),
    }
}

/// Deletes what waits for an instance that was `not_found`, if that was asked for.
pub(super) async fn delete(
    provider: &PostgresProvider,
    instance: &str,
    force: bool,
    not_found: ProviderError,
) -> Result<DeleteInstanceResult, Failure> {
    let failed = |failure: Failure| failure.preceded_by("nothing was deleted: ");
    if !force {
        return Err(failed(match enqueued(provider, instance).await.map_err(failed)? {
            Some(start) => Failure::new(format!(
                "{}. Delete it all the same with --force",
                not_begun(instance, &start)
            )),
            None => Failure::from(not_found),
        }));
    }
    // Whoever may delete may do this, too, without being able to look first.
    match provider.delete_instances_atomic(&[instance.to_string()], true).await {
        Ok(deleted) if deleted.instances_deleted == 0 && deleted.queue_messages_deleted == 0 => {
            Err(failed(Failure::from(not_found)))
        }
        Ok(deleted) => Ok(deleted),
        Err(error) => Err(failed(Failure::from(error))),
    }
}

fn not_begun(instance: &str, start: &QueuedStart) -> String {
    let waits = match start.waits_ms {
        ms if ms < 0 => format!("is due in {}", duration(-ms)),
        ms => format!("has waited for {}", duration(ms)),
    };
    format!(
        "instance {instance:?} has been enqueued, but has not begun: no node has finished its first turn. Its start {waits}; \
         messages in its queue: {}",
        start.messages
    )
}
