//! What a provider and its background work share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;
use tracing::debug;
use uuid::Uuid;

use crate::activities::NewActivity;
use crate::activity_ack::ActivityAck;
use crate::activity_fetch::ActivityRequest;
use crate::batch::Batcher;
use crate::cache::HistoryCache;
use crate::call::{Answer, Caller, Connection, LeaseCall, Parameters};
use crate::encode;
use crate::error::{CallError, Failure};
use crate::granted::GoingBack;
use crate::head::Heads;
use crate::history::{ReadAnswer, ReadRequest};
use crate::instances::{CustomStatus, StatusRequest};
use crate::lease::Leases;
use crate::messages::Outgoing;
use crate::orchestrations::TurnRequest;
use crate::pace::{Pace, Step};
use crate::poll::Line;
use crate::polled::Polled;
use crate::reason::Reason;
use crate::rests::Rests;
use crate::schema_name::SchemaName;
use crate::telemetry::metrics;
use crate::turn_ack::{TurnAck, TurnAnswer};
use crate::wake::{Queue, Waker};
use crate::words::Haste;

/// How long a provider that is closed waits for what goes back to the queues, and for calls that may lease something.
const UNTIL_CLOSED: Duration = Duration::from_millis(500);

/// One for all clones of a provider.
pub(crate) struct Inner {
    pub(crate) caller: Caller,
    pub(crate) leases: Leases,
    pub(crate) waker: Waker,
    pub(crate) long_poll: bool,
    pub(crate) schema: SchemaName,
    /// Tells this process from others.
    pub(crate) node: Uuid,
    pub(crate) cache: HistoryCache,
    pub(crate) pace: Pace,
    pub(crate) polled: Polled,
    pub(crate) rests: Rests,
    pub(crate) going_back: GoingBack,
    leaving: AtomicBool,
    closing: AtomicBool,
    pub(crate) turns: Line<TurnRequest>,
    pub(crate) activities: Line<ActivityRequest>,
    pub(crate) turn_acks: Batcher<TurnAck, Result<TurnAnswer, CallError>>,
    pub(crate) activity_acks: Batcher<ActivityAck, Result<bool, CallError>>,
    pub(crate) messages: Batcher<Outgoing, Result<(), CallError>>,
    pub(crate) new_activities: Batcher<NewActivity, Result<(), CallError>>,
    pub(crate) reads: Batcher<ReadRequest, Result<ReadAnswer, CallError>>,
    pub(crate) statuses: Batcher<StatusRequest, Result<Option<CustomStatus>, CallError>>,
    pub(crate) heads: Heads,
    /// Tag filters for which there were activities of sessions at the last look.
    pub(crate) tags_with_sessions: Mutex<HashSet<Option<Vec<String>>>>,
    /// Where each owner of sessions goes on visiting those of each tag, so that every session has its turn.
    pub(crate) session_cursors: Mutex<HashMap<String, HashMap<String, String>>>,
}

impl Inner {
    pub(crate) fn new(
        caller: Caller,
        waker: Waker,
        schema: SchemaName,
        long_poll: bool,
        cache_bytes: usize,
    ) -> Arc<Self> {
        metrics::describe();
        let inner = Arc::new(Self {
            caller,
            leases: Leases::default(),
            waker,
            long_poll,
            schema,
            node: Uuid::new_v4(),
            cache: HistoryCache::new(cache_bytes),
            pace: Pace::default(),
            polled: Polled::default(),
            rests: Rests::default(),
            going_back: GoingBack::default(),
            leaving: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            turns: Line::default(),
            activities: Line::default(),
            turn_acks: Batcher::paced(
                "ack_orchestration_item",
                Queue::Orchestrator,
                Step::Ack,
                Self::send_turn_acks,
            ),
            activity_acks: Batcher::paced("ack_work_item", Queue::Worker, Step::Ack, Self::send_activity_acks),
            messages: Batcher::paced(
                "enqueue_for_orchestrator",
                Queue::Orchestrator,
                Step::Enqueue,
                Self::send_messages,
            ),
            new_activities: Batcher::paced(
                "enqueue_for_worker",
                Queue::Worker,
                Step::Enqueue,
                Self::send_activities,
            ),
            reads: Batcher::new("read", Self::send_reads),
            statuses: Batcher::new("get_custom_status", Self::send_status_requests),
            heads: Heads::default(),
            tags_with_sessions: Mutex::default(),
            session_cursors: Mutex::default(),
        });
        inner.waker.start(&inner);
        inner
    }

    /// A fetch that waited for work was dropped, and none has begun since: the runtime is probably shutting down. Or the provider is.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_leaving(&self, leaving: bool) {
        if !self.leaving.swap(leaving, Ordering::Relaxed) && leaving {
            self.waker.hurry();
        }
    }

    /// Whether somebody of this process works on turns, and waits for more when there are none.
    pub(crate) fn runs_turns(&self) -> bool {
        !self.is_leaving() && self.turns.is_attended()
    }

    /// Nothing new is begun. What was leased for those who have yet to ask goes back first: nobody will.
    pub(crate) fn close(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Relaxed);
        self.caller.close_to_new_work();
        self.hand_back_kept();
        // Those who wait find out.
        self.woken(Queue::Orchestrator, Reason::Closed, None);
        self.woken(Queue::Worker, Reason::Closed, None);
        let closing = Closing(Arc::clone(self));
        if let Ok(runtime) = Handle::try_current()
            && self.may_have_nobodys_leases()
        {
            runtime.spawn(async move {
                let inner = &closing.0;
                let given_back = || (!inner.may_have_nobodys_leases()).then_some(());
                inner.going_back.until(Instant::now() + UNTIL_CLOSED, given_back).await;
            });
        }
    }

    /// Whether something is on its way that is, or may be, leased, and that nobody asked for, or no longer does.
    fn may_have_nobodys_leases(&self) -> bool {
        // In this order: what a call has brought is on its way back before the call is no longer on the wire.
        self.turns.is_on_the_wire() || self.activities.is_on_the_wire() || self.going_back.is_any()
    }

    /// All that is kept for those who have yet to ask goes back to the queues.
    pub(crate) fn hand_back_kept(&self) {
        self.turns.hand_back_kept();
        self.activities.hand_back_kept();
    }

    fn disconnect(&self) {
        self.caller.close();
        self.waker.stop();
    }

    /// Something was put into a queue, by the call `behind` if some may have looked right behind it.
    ///
    /// Others hear of a turn when the look for it has landed, and has left some: mostly there is nothing left to look for.
    pub(crate) fn enqueued(self: &Arc<Self>, queue: Queue, behind: Option<u64>) {
        let is_looked_for = self.woken(queue, Reason::Enqueued, behind);
        let haste = match queue {
            Queue::Orchestrator if is_looked_for => Haste::Later,
            Queue::Orchestrator if self.runs_turns() => Haste::Soon,
            _ => Haste::Now,
        };
        self.waker.tell_others(queue, haste);
    }

    /// Something was put into a queue. `look`: somebody has to look for it; otherwise whoever gets it is known, and others only have
    /// to know that there are leases that end.
    pub(crate) fn made_due(self: &Arc<Self>, queue: Queue, look: bool, behind: Option<u64>) {
        if look {
            self.enqueued(queue, behind);
        } else {
            self.waker.tell_others(queue, Haste::Later);
        }
    }

    /// Something happened to a queue: fetches that wait for it look again. `behind`: as for [`enqueued`](Self::enqueued). Whether one does
    /// so right now.
    pub(crate) fn woken(self: &Arc<Self>, queue: Queue, reason: Reason, behind: Option<u64>) -> bool {
        match queue {
            Queue::Orchestrator => self.turns.woken(self, reason, behind),
            Queue::Worker => self.activities.woken(self, reason, behind),
        }
    }

    /// Calls a function whose first parameter is an instance.
    pub(crate) async fn rows(
        &self,
        operation: &'static str,
        instance: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let instance = encode::key(operation, "instance id", instance)?;
        let mut all: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![&instance];
        all.extend_from_slice(parameters);
        self.caller
            .call(operation, &all)
            .await
            .map_err(|error| error.to_failure(operation))
    }

    /// As [`rows`](Self::rows), for a function that returns one value.
    pub(crate) async fn value<T: FromSqlOwned>(
        &self,
        operation: &'static str,
        instance: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<T>, Failure> {
        match self.rows(operation, instance, parameters).await?.first() {
            Some(row) => row.try_get(0).map_err(|error| self.decoding(operation, error)),
            None => Ok(None),
        }
    }

    /// Calls a function that takes many rows at once, and should one of them be unreadable, takes them one by one: its
    /// last parameter. `behind`: where another call is on the wire.
    pub(crate) async fn call_with_care(
        &self,
        operation: &'static str,
        parameters: Parameters<'_>,
        behind: Option<Connection>,
    ) -> Result<Vec<Row>, Failure> {
        let mut all = parameters.to_vec();
        all.push(&false);
        let was_behind = behind.is_some();
        let mut result = match behind {
            Some(connection) => self.caller.call_behind(&connection, operation, &all).await,
            None => self.caller.call(operation, &all).await,
        };
        if was_behind && result.as_ref().is_err_and(|error| error.sql_state().is_none()) {
            // Trouble with a connection that was another's to begin with is not this call's.
            metrics::retry(operation, "behind");
            result = self.caller.call(operation, &all).await;
        }
        if let Err(error) = &result
            && error.may_be_unreadable()
        {
            debug!(%error, "{operation} failed; trying again with care");
            metrics::retry(operation, "care");
            all.pop();
            all.push(&true);
            result = self.caller.call(operation, &all).await;
        }
        result.map_err(|error| error.to_failure(operation))
    }

    /// Calls a function that returns one row.
    pub(crate) async fn one_row(&self, operation: &'static str, parameters: Parameters<'_>) -> Result<Row, Failure> {
        let rows = self
            .caller
            .call(operation, parameters)
            .await
            .map_err(|error| error.to_failure(operation))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| Failure::permanent(operation, "the function returned no row"))
    }

    pub(crate) fn lease_call(&self, lease: Uuid, extended_by: Option<Duration>) -> LeaseCall<'_> {
        LeaseCall {
            leases: &self.leases,
            id: lease,
            extended_by,
            bytes: 0,
        }
    }

    /// What became of a call that ends a lease. `traceless`: had an earlier attempt committed, no row would say so.
    ///
    /// Nobody can take a lease before its end, and this process has not given it back. So when it is gone and the
    /// answer of an earlier attempt was lost, that attempt had ended it (or an activity was cancelled, and nobody
    /// wants its result).
    pub(crate) fn lease_ended<T: Default>(
        &self,
        operation: &str,
        lease: Uuid,
        answer: Answer<T>,
        traceless: bool,
    ) -> Result<T, Failure> {
        let result = match answer.result {
            Ok(result) => result,
            Err(error) if traceless && answer.repeated && error.is_lease_lost() && self.leases.holds(lease) => {
                T::default()
            }
            Err(error) => return Err(error.to_failure(operation)),
        };
        self.leases.ended(lease);
        Ok(result)
    }

    pub(crate) fn decoding(&self, operation: &str, error: tokio_postgres::Error) -> Failure {
        CallError::from(error).to_failure(operation)
    }
}

/// The connections end with it, also if its task is dropped.
struct Closing(Arc<Inner>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.disconnect();
    }
}
