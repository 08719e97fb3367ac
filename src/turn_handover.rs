//! Turns that go from whoever makes an instance due straight to dispatchers who wait (see `handover.rs`).

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::encode;
use crate::error::CallError;
use crate::granted::Granted;
use crate::handover::Handover;
use crate::inner::Inner;
use crate::orchestrations::TurnRequest;
use crate::telemetry::metrics;
use crate::token::TurnToken;
use crate::turn::Fetched;
use crate::wake::Queue;

/// Turns that a call under way may bring, as `claim_turns` grants them.
pub(crate) struct TurnHandover {
    inner: Arc<Inner>,
    handover: Option<Handover<TurnRequest>>,
    /// The instances that it makes due, and for each its lease.
    instance_ids: Vec<String>,
    leases: Vec<Uuid>,
    limit: i32,
    lock_timeout_ms: i64,
    min_version: i64,
    max_version: i64,
    node: Option<Uuid>,
}

impl TurnHandover {
    /// Of a call that makes these instances due.
    pub(crate) fn new<'a>(inner: &Arc<Inner>, instance_ids: impl Iterator<Item = &'a str>) -> Self {
        let mut instance_ids: Vec<&str> = instance_ids.collect();
        instance_ids.sort_unstable();
        instance_ids.dedup();
        let mut turns = Self::none(inner);
        if instance_ids.is_empty() {
            return turns;
        }
        // One call claims for those who ask for the same; others look for themselves.
        let handovers = inner.turns.hand_over(inner, instance_ids.len(), |_, _| true);
        turns.leases = instance_ids.iter().map(|_| Uuid::new_v4()).collect();
        turns.instance_ids = instance_ids.into_iter().map(str::to_string).collect();
        if let Some(handover) = handovers.into_iter().next() {
            let request = handover.request();
            turns.limit = i32::try_from(handover.items.len()).unwrap_or(i32::MAX);
            turns.lock_timeout_ms = encode::milliseconds(request.lock_timeout);
            turns.min_version = request.min_version;
            turns.max_version = request.max_version;
            turns.handover = Some(handover);
        }
        turns
    }

    /// Of a call that nobody waits for.
    pub(crate) fn none(inner: &Arc<Inner>) -> Self {
        Self {
            inner: Arc::clone(inner),
            handover: None,
            instance_ids: Vec::new(),
            leases: Vec::new(),
            limit: 0,
            lock_timeout_ms: 0,
            min_version: 0,
            max_version: 0,
            node: inner.cache.is_enabled().then_some(inner.node),
        }
    }

    /// The same call without turns: those who wait look for themselves.
    pub(crate) fn without_turns(mut self) -> Self {
        self.handover = None;
        self.limit = 0;
        self
    }

    /// What such a call takes beside what it is about.
    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.instance_ids,
            &self.leases,
            &self.limit,
            &self.lock_timeout_ms,
            &self.min_version,
            &self.max_version,
            &self.node,
        ]
    }

    /// Whether somebody waits for each of them.
    pub(crate) fn covers_all(&self) -> bool {
        usize::try_from(self.limit).is_ok_and(|limit| limit >= self.instance_ids.len())
    }

    pub(crate) fn handover(&self) -> Option<&Handover<TurnRequest>> {
        self.handover.as_ref()
    }

    /// Whether the server refused the call perhaps only because of a turn that cannot be read: nothing was done, and it is worth
    /// another attempt without turns.
    pub(crate) fn may_have_spoilt(&self, operation: &'static str, answer: &Result<Vec<Row>, CallError>) -> bool {
        let Err(error) = answer else {
            return false;
        };
        let is_refused = error
            .sql_state()
            .is_some_and(|state| !error.is_retryable() || *state == SqlState::IO_ERROR);
        if self.limit > 0 && is_refused {
            debug!(%error, "{operation} failed; trying again without handing over");
            metrics::retry(operation, "handover");
            return true;
        }
        false
    }

    /// The call was answered. Whether all it made due was handed over, and nobody has to look for it.
    pub(crate) async fn land(mut self, answer: &Result<Vec<Row>, CallError>) -> bool {
        let Some(handover) = self.handover.take() else {
            return self.instance_ids.is_empty();
        };
        let lock_timeout = handover.request().lock_timeout;
        let mut granted = Vec::new();
        match answer {
            Ok(rows) => {
                for row in rows {
                    match self.claimed(row).await {
                        Ok(Some(Fetched::Turn { lease, turn })) => {
                            self.inner.leases.extended(lease, lock_timeout);
                            let token = turn.1.clone();
                            granted.push(Granted::new(&self.inner, Queue::Orchestrator, token, *turn));
                        }
                        // By being dropped it is handed back, and the attempt does not count.
                        Ok(Some(Fetched::Unavailable { token })) => {
                            drop(Granted::new(&self.inner, Queue::Orchestrator, token, ()));
                        }
                        Ok(_) => {}
                        Err(error) => {
                            warn!(%error, "a turn that was handed over cannot be read; it will be fetched when its lease ends")
                        }
                    }
                }
            }
            // They may have been claimed, and nobody knows of it.
            Err(error) if error.is_ambiguous() => {
                for (instance_id, lease) in self.instance_ids.iter().zip(&self.leases) {
                    let token = TurnToken {
                        lease: *lease,
                        instance_id: instance_id.clone(),
                    };
                    self.inner.leases.extended(*lease, lock_timeout);
                    Granted::new(&self.inner, Queue::Orchestrator, token.to_string(), ()).hand_back();
                }
            }
            Err(_) => {}
        }
        let all = granted.len() >= self.instance_ids.len();
        handover.land(granted);
        all
    }

    /// The turn of a row, if it has one.
    async fn claimed(&self, row: &Row) -> Result<Option<Fetched>, tokio_postgres::Error> {
        let Some(instance_id) = row.try_get("instance_id")? else {
            return Ok(None);
        };
        let turn = self.inner.decode_claimed(row, instance_id, row.try_get("lease")?, None);
        turn.await.map(Some)
    }
}
