//! Deleting many instances, in batches, each a transaction of its own.

use duroxide::providers::{DeleteInstanceResult, InstanceFilter};
use tokio_postgres::error::SqlState;
use tracing::warn;

use crate::encode;
use crate::error::{CallError, Failure, NO_ROOM, TREE_CHANGED};
use crate::inner::Inner;
use crate::instances::{BULK_LIMIT, filter_ids};

const OPERATION: &str = "delete_instance_bulk";
/// How often a batch is tried whose trees others change: each time they got something done.
const BATCH_ATTEMPTS: u32 = 10;
/// How many trees a call passes by: where there is no room for more, others have filled the lock table.
const MOST_PASSED_BY: usize = 100;

impl Inner {
    /// What goes wrong after the first batch is logged, and what was deleted returned: the next call goes on from there, or
    /// fails if it still goes wrong. A tree that the server's lock table has no room for stays, and keeps no other; it is an
    /// error if it was asked for by name, or if there was nothing else to delete.
    pub(crate) async fn delete_instance_bulk(&self, filter: &InstanceFilter) -> Result<DeleteInstanceResult, Failure> {
        self.hand_back_kept();
        let named = filter_ids(OPERATION, filter)?;
        let mut bulk = Bulk {
            inner: self,
            before: filter.completed_before.map(encode::epoch_ms),
            left: filter.limit.map_or(BULK_LIMIT, i64::from),
            deleted: DeleteInstanceResult::default(),
            passed_by: Vec::new(),
        };
        let result = match bulk.in_order(named).await {
            // The first one is in the way. Which one that is the function does not say.
            Err(Stop::NoRoom(_)) => bulk.by_id(named).await,
            result => result,
        };
        let deleted = bulk.deleted.instances_deleted;
        match result {
            Err(stop) if deleted == 0 => return Err(stop.into()),
            Err(stop) => {
                let error = Failure::from(stop);
                warn!(instances = deleted, %error, "a bulk deletion ended early");
            }
            Ok(()) => {}
        }
        match bulk.passed_by.first() {
            Some(first) if named.is_some() || deleted == 0 => Err(Failure::permanent(
                OPERATION,
                format!(
                    "{deleted} instances were deleted, but not {first:?} and all below it{}: the server's lock table has no \
                     room for them (SQLSTATE {NO_ROOM}). Raise max_locks_per_transaction",
                    match bulk.passed_by.len() {
                        1 => String::new(),
                        count => format!(", nor {} more", count - 1),
                    }
                ),
            )),
            _ => Ok(bulk.deleted),
        }
    }
}

struct Bulk<'a> {
    inner: &'a Inner,
    before: Option<i64>,
    /// How many roots may still go.
    left: i64,
    deleted: DeleteInstanceResult,
    /// Roots that stay because they and all below them are too many.
    passed_by: Vec<String>,
}

enum Stop {
    /// The lock table has no room for a batch.
    NoRoom(CallError),
    Failed(Failure),
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::NoRoom(error) => error.to_failure(OPERATION),
            Stop::Failed(failure) => failure,
        }
    }
}

impl Bulk<'_> {
    /// Those that ended first go first, fewer at a time where the lock table has no room. Stops at the first for which
    /// there is none.
    async fn in_order(&mut self, ids: Option<&Vec<String>>) -> Result<(), Stop> {
        let mut batch = BULK_LIMIT;
        loop {
            let roots = batch.min(self.left);
            match self.batch(ids.map(Vec::as_slice), roots).await {
                Err(Stop::NoRoom(_)) if roots > 1 => batch = roots / 2,
                Err(stop) => return Err(stop),
                Ok(instances) => {
                    self.left -= roots;
                    // A batch that is not full was the last: the function sees to it that it is not so because of others.
                    if self.left <= 0 || instances < roots {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// By name, so that one can be passed by.
    async fn by_id(&mut self, named: Option<&Vec<String>>) -> Result<(), Stop> {
        let listed;
        let ids = match named {
            Some(named) => named,
            None => {
                // Those that are no roots the function leaves out.
                let mut ids = self.list("Completed").await?;
                ids.extend(self.list("Failed").await?);
                listed = ids;
                &listed
            }
        };
        let mut parts: Vec<&[String]> = ids.chunks(BULK_LIMIT as usize).rev().collect();
        while self.left > 0
            && let Some(part) = parts.pop()
        {
            match self.batch(Some(part), self.left.min(part.len() as i64)).await {
                // How many of them are roots it does not say. Fewer than asked for may go, never more.
                Ok(instances) => self.left -= instances,
                Err(Stop::NoRoom(error)) => match part {
                    [root] if self.passed_by.len() < MOST_PASSED_BY => {
                        warn!(instance = root, %error, "an instance and all below it are too many to be deleted: passed by");
                        self.passed_by.push(root.clone());
                    }
                    [_] => return Err(Stop::NoRoom(error)),
                    _ => {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    }
                },
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    async fn list(&self, status: &str) -> Result<Vec<String>, Stop> {
        self.inner.list_instances(Some(status)).await.map_err(Stop::Failed)
    }

    /// One transaction. Returns how many instances went, descendants included.
    async fn batch(&mut self, ids: Option<&[String]>, roots: i64) -> Result<i64, Stop> {
        let mut attempts = 1;
        let rows = loop {
            match self.inner.caller.call(OPERATION, &[&ids, &self.before, &roots]).await {
                Ok(rows) => break rows,
                Err(error) => match error.sql_state().map_or("", SqlState::code) {
                    NO_ROOM => return Err(Stop::NoRoom(error)),
                    TREE_CHANGED if attempts < BATCH_ATTEMPTS => attempts += 1,
                    _ => return Err(Stop::Failed(error.to_failure(OPERATION))),
                },
            }
        };
        let more = self
            .inner
            .decode_deletion(OPERATION, rows.first())
            .map_err(Stop::Failed)?;
        self.deleted.instances_deleted += more.instances_deleted;
        self.deleted.executions_deleted += more.executions_deleted;
        self.deleted.events_deleted += more.events_deleted;
        self.deleted.queue_messages_deleted += more.queue_messages_deleted;
        Ok(i64::try_from(more.instances_deleted).unwrap_or(i64::MAX))
    }
}
