//! Turns that go from whoever makes an instance due straight to dispatchers who wait (see `handover.rs`).

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::warn;
use uuid::Uuid;

use crate::encode;
use crate::error::CallError;
use crate::follow::Follow;
use crate::granted::{Granted, give_back_lost};
use crate::handover::{Handover, To};
use crate::inner::Inner;
use crate::orchestrations::TurnRequest;
use crate::poll::Request;
use crate::token::TurnToken;
use crate::turn::{Fetched, Turn};
use crate::wake::Queue;

/// Turns that a call under way may bring, as `claim_turns` and `claim_idle_turn` grant them.
pub(crate) struct TurnHandover {
    inner: Arc<Inner>,
    handover: Option<Handover<TurnRequest>>,
    /// The instances that it makes due, if somebody waits for any, and for each its lease.
    instance_ids: Vec<String>,
    leases: Vec<Uuid>,
    /// Whether somebody waits for each of them.
    covers_all: bool,
    limit: i32,
    lock_timeout_ms: i64,
    min_version: i64,
    max_version: i64,
    node: Option<Uuid>,
}

impl TurnHandover {
    /// Of a call that makes these instances due.
    pub(crate) fn new<'a>(inner: &Arc<Inner>, to: To, instance_ids: impl Iterator<Item = &'a str>) -> Self {
        let mut instance_ids: Vec<&str> = instance_ids.collect();
        instance_ids.sort_unstable();
        instance_ids.dedup();
        let mut turns = Self::none(inner);
        if instance_ids.is_empty() {
            return turns;
        }
        // One call claims for those who ask for the same; others look for themselves.
        let mut chosen = None;
        let mut handovers = inner.turns.hand_over(inner, instance_ids.len(), to, |request, _| {
            *chosen.get_or_insert(*request) == *request
        });
        turns.covers_all = false;
        if let Some(handover) = handovers.pop() {
            let request = handover.request();
            turns.covers_all = handover.items.len() == instance_ids.len();
            turns.limit = i32::try_from(handover.items.len()).unwrap_or(i32::MAX);
            turns.lock_timeout_ms = encode::milliseconds(request.lock_timeout());
            turns.min_version = request.min_version;
            turns.max_version = request.max_version;
            turns.leases = instance_ids.iter().map(|_| Uuid::new_v4()).collect();
            turns.instance_ids = instance_ids.into_iter().map(str::to_string).collect();
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
            covers_all: true,
            limit: 0,
            lock_timeout_ms: 0,
            min_version: 0,
            max_version: 0,
            node: inner.cache.is_enabled().then_some(inner.node),
        }
    }

    /// The same call without turns: those who wait look for themselves.
    pub(crate) fn without_turns(self) -> Self {
        Self {
            covers_all: false,
            ..Self::none(&self.inner)
        }
    }

    /// What a call about many takes beside what it is about.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
        let which: [&(dyn ToSql + Sync); 3] = [&self.instance_ids, &self.leases, &self.limit];
        which.into_iter().chain(self.terms())
    }

    /// The lease of a call about one instance, if somebody waits for its turn.
    pub(crate) fn lease(&self) -> Option<Uuid> {
        self.leases.first().copied()
    }

    /// What a call about one takes beside what it is about and the lease.
    pub(crate) fn terms(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.lock_timeout_ms, &self.min_version, &self.max_version, &self.node]
    }

    /// Looks behind the call, for what nobody waits for yet.
    pub(crate) fn follow(&self) -> Follow {
        Follow::new(&self.inner, [(!self.covers_all).then_some(Queue::Orchestrator)])
    }

    pub(crate) fn handover(&self) -> Option<&Handover<TurnRequest>> {
        self.handover.as_ref()
    }

    /// The call was answered. Whether somebody has to look for what it made due.
    pub(crate) async fn land(mut self, answer: &Result<Vec<Row>, CallError>) -> bool {
        let mut handed_over = 0;
        if let Some(handover) = self.handover.take() {
            let mut granted = Vec::new();
            match answer {
                Ok(rows) => {
                    for row in rows {
                        granted.extend(self.granted(row, &handover).await);
                    }
                }
                // They may have been claimed, and nobody knows of it.
                Err(error) if error.is_ambiguous() => {
                    for (instance_id, lease) in self.instance_ids.iter().zip(&self.leases) {
                        let (lease, instance_id) = (*lease, instance_id.clone());
                        let token = TurnToken { lease, instance_id }.to_string();
                        give_back_lost(&self.inner, Queue::Orchestrator, token);
                    }
                }
                Err(_) => {}
            }
            handed_over = granted.len();
            handover.land(granted);
        }
        let first = answer.as_ref().ok().and_then(|rows| rows.first());
        let to_look_for: Option<i32> = first.and_then(|row| row.try_get("to_look_for").ok()).flatten();
        let to_look_for = to_look_for.and_then(|count| usize::try_from(count).ok());
        to_look_for.is_none_or(|count| count > handed_over)
    }

    /// The turn of a row, if it has one that can be handed over.
    async fn granted(&self, row: &Row, handover: &Handover<TurnRequest>) -> Option<Granted<Turn>> {
        let lock_timeout = handover.request().lock_timeout();
        let instance_id: String = row.try_get::<_, Option<_>>("instance_id").ok()??;
        let lease: Uuid = row.try_get("lease").ok()?;
        if handover.is_stale() || !self.has_history(&instance_id, row).unwrap_or(false) {
            self.hand_back(handover, instance_id, lease);
            return None;
        }
        let decoded = self.inner.decode_claimed(row, instance_id.clone(), lease, None).await;
        if let Ok(Fetched::Turn { turn, .. }) = decoded {
            self.inner.leases.extended(lease, lock_timeout);
            let token = turn.1.clone();
            return Some(Granted::new(&self.inner, Queue::Orchestrator, lease, token, *turn));
        }
        if let Err(error) = decoded {
            warn!(%error, "a turn that was handed over cannot be read");
        }
        self.hand_back(handover, instance_id, lease);
        None
    }

    /// Whether what the database did not send of a history is still in memory. Reading it again is for a look: this call has an
    /// answer to give.
    fn has_history(&self, instance_id: &str, row: &Row) -> Result<bool, tokio_postgres::Error> {
        let event_id: i64 = row.try_get("cached_event_id")?;
        if event_id == 0 {
            return Ok(true);
        }
        let (epoch, execution_id) = (row.try_get("history_epoch")?, row.try_get("execution_id")?);
        let known = self
            .inner
            .cache
            .get_up_to(instance_id, epoch, execution_id, event_id, false);
        Ok(known.is_some())
    }

    fn hand_back(&self, handover: &Handover<TurnRequest>, instance_id: String, lease: Uuid) {
        self.inner.leases.extended(lease, handover.request().lock_timeout());
        let token = TurnToken { lease, instance_id };
        Granted::new(&self.inner, Queue::Orchestrator, lease, token.to_string(), ()).hand_back();
    }
}
