//! `cancel`, `raise` and `delete`: acting on one instance.

use std::sync::Arc;

use duroxide::providers::ProviderAdmin;
use duroxide::{Client, ClientError};
use serde_json::json;

use super::arguments::Raise;
use super::connection::{Connection, column};
use super::output::{Failure, Outcome, has_state, say};
use super::queued::{self, enqueued};
use super::shell::quoted;
use crate::PostgresProvider;

/// Of the functions that delete.
const NOT_FOUND: &str = "DX003";

pub(super) async fn cancel(connection: &Connection, instance: &str, reason: &str) -> Result<Outcome, Failure> {
    let (client, has_begun) = running(connection, instance).await?;
    client.cancel_instance(instance, reason).await.map_err(failure)?;
    wake(connection).await;
    let turn = if has_begun { "next" } else { "first" };
    let text = format!("instance {instance:?}: cancellation requested; its {turn} turn acts on it");
    Ok(Outcome::new(
        text,
        json!({ "instance": instance, "requested": true, "reason": reason }),
    ))
}

pub(super) async fn raise(connection: &Connection, raise: &Raise) -> Result<Outcome, Failure> {
    let Raise {
        instance,
        event,
        data,
        queue,
    } = raise;
    let (client, has_begun) = running(connection, instance).await?;
    if !has_begun && !queue {
        // Nobody waits for it as yet, and what nobody waits for is not kept.
        return Err(Failure::new(format!(
            "nothing was raised: instance {instance:?} has been enqueued, but has not begun, and cannot wait for {event:?} \
             as yet. Raise it again when a node has run its first turn"
        )));
    }
    let sent = if *queue {
        client.enqueue_event(instance, event, data).await
    } else {
        client.raise_event(instance, event, data).await
    };
    sent.map_err(failure)?;
    wake(connection).await;
    let text = format!("instance {instance:?}: {event:?} raised");
    Ok(Outcome::new(
        text,
        json!({ "instance": instance, "event": event, "queue": queue }),
    ))
}

pub(super) async fn delete(connection: &Connection, instance: &str, force: bool) -> Result<Outcome, Failure> {
    let provider = connection.provider().await?;
    let deleted = match provider.delete_instance(instance, force).await {
        Ok(deleted) => deleted,
        Err(error) if has_state(&error, "DX004") => return Err(still_running(connection, &provider, instance).await?),
        Err(error) if has_state(&error, NOT_FOUND) => queued::delete(&provider, instance, force, error).await?,
        Err(error) => return Err(Failure::from(error).preceded_by("nothing was deleted: ")),
    };
    let text = format!(
        "deleted {} instances, {} executions, {} events, {} messages",
        deleted.instances_deleted, deleted.executions_deleted, deleted.events_deleted, deleted.queue_messages_deleted
    );
    let json = json!({
        "instances": deleted.instances_deleted,
        "executions": deleted.executions_deleted,
        "events": deleted.events_deleted,
        "messages": deleted.queue_messages_deleted,
    });
    Ok(Outcome::new(text, json))
}

/// What keeps an instance from being deleted: itself, or the first below it that runs.
async fn still_running(
    connection: &Connection,
    provider: &PostgresProvider,
    instance: &str,
) -> Result<Failure, Failure> {
    let tree = provider.get_instance_tree(instance).await?.all_ids;
    let sql = format!(
        "select s.instance_id from {}.instance_status as s \
          where s.instance_id = any ($1::text[]) and s.status in ('Running', 'ContinuedAsNew') \
          order by array_position($1::text[], s.instance_id) limit 1",
        connection.schema.quoted()
    );
    let rows = connection.query(&sql, &[&tree]).await?;
    let Some(row) = rows.first() else {
        return Ok(Failure::new(format!(
            "nothing was deleted: instance {instance:?}, or one below it, was still running. It has ended meanwhile: try again"
        )));
    };
    let running: &str = column(row, "instance_id")?;
    let (below, all) = if running == instance {
        (String::new(), "it")
    } else {
        (format!(", below {instance:?},"), "all of them")
    };
    Ok(Failure::new(format!(
        "nothing was deleted: instance {running:?}{below} is still running. \
         Cancel it first ({} cancel -- {}), or delete {all} anyway with --force",
        connection.command(),
        quoted(running)
    )))
}

/// A message for an instance that is not there, or has ended, would do nothing, silently. Says whether it has begun.
async fn running(connection: &Connection, instance: &str) -> Result<(Client, bool), Failure> {
    let provider = Arc::new(connection.provider().await?);
    let has_begun = match provider.get_instance_info(instance).await {
        Ok(info) if matches!(info.status.as_str(), "Completed" | "Failed") => {
            return Err(Failure::new(format!(
                "instance {instance:?} has ended already: {}",
                info.status
            )));
        }
        Ok(_) => true,
        Err(error) if error.is_retryable() => return Err(Failure::from(error)),
        Err(error) => match enqueued(&provider, instance).await? {
            Some(_) => false,
            None => return Err(Failure::from(error)),
        },
    };
    Ok((Client::new(provider), has_begun))
}

/// Nodes that wait need not find out by polling. What was sent is in the queue in any case.
async fn wake(connection: &Connection) {
    let channel = connection.schema.channel();
    if let Err(failure) = connection.query("select pg_notify($1, '')", &[&channel]).await {
        say(&format!(
            "it is in the queue, but nodes could not be told so, and will notice when they look next: {failure}"
        ));
    }
}

fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Provider(error) => Failure::from(error),
        error => Failure::new(error.to_string()),
    }
}
