//! What can be watched: spans by `tracing`, and metrics with the cargo feature `metrics`. The one table of both is
//! `docs/observability.md`. Instances are named, payloads never.
//!
//! A provider method is an *operation*; what it asks of the database is a *call*. In between, operations of one kind
//! may share a *batch*, and fetches that wait share a *look*. For one operation alone they are its children; for several
//! they run in tasks of their own and follow from all of them.

#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
pub(crate) mod metrics;
mod operation;
mod outcome;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tracing::{Id, Span, debug_span, field};

use crate::error::{CallError, ErrorClass};
use crate::reason::Reason;
use crate::wake::Queue;
pub(crate) use operation::operation;

/// How something that was begun came to its end.
#[derive(Clone, Copy)]
enum End {
    Done {
        rows: u64,
    },
    Failed(ErrorClass),
    /// Nobody waited for it any longer.
    Dropped,
}

impl End {
    fn outcome(self) -> &'static str {
        match self {
            Self::Done { .. } => "ok",
            Self::Failed(_) => "error",
            Self::Dropped => "dropped",
        }
    }

    /// What the span of it, which has these fields, says at its end.
    fn record(self, span: &Span, elapsed: Duration) {
        if span.is_disabled() {
            return;
        }
        span.record("elapsed_us", microseconds(elapsed));
        match self {
            Self::Done { rows } => span.record("rows", rows),
            Self::Failed(class) => span.record("error", class.as_str()),
            Self::Dropped => span.record("error", self.outcome()),
        };
    }
}

/// For `u64` fields, which every subscriber takes.
fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// One call of a function, with all its attempts.
pub(crate) struct Call {
    pub(crate) function: &'static str,
    span: Span,
    started: Instant,
    attempts: AtomicU32,
    pool_wait_us: AtomicU64,
    ended: bool,
}

impl Call {
    pub(crate) fn begin(function: &'static str) -> Self {
        Self {
            function,
            span: debug_span!(
                target: "duroxide_postgres",
                "duroxide_postgres.call",
                function,
                attempts = field::Empty,
                pool_wait_us = field::Empty,
                rows = field::Empty,
                elapsed_us = field::Empty,
                error = field::Empty,
            ),
            started: Instant::now(),
            attempts: AtomicU32::new(0),
            pool_wait_us: AtomicU64::new(0),
            ended: false,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Until what it returns is dropped, the call waits for a connection.
    pub(crate) fn waits_for(&self, connections: Connections) -> PoolWait<'_> {
        PoolWait {
            call: self,
            connections,
            since: Instant::now(),
        }
    }

    pub(crate) fn attempted(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(mut self, result: &Result<Vec<Row>, CallError>) {
        self.ended = true;
        self.finish(match result {
            Ok(rows) => End::Done {
                rows: rows.len() as u64,
            },
            Err(error) => End::Failed(error.class()),
        });
    }

    fn finish(&self, end: End) {
        let elapsed = self.started.elapsed();
        if !self.span.is_disabled() {
            self.span.record("attempts", self.attempts.load(Ordering::Relaxed));
            self.span
                .record("pool_wait_us", self.pool_wait_us.load(Ordering::Relaxed));
        }
        end.record(&self.span, elapsed);
        metrics::call(self.function, end.outcome(), elapsed);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(End::Dropped);
        }
    }
}

/// Which connections of the pool a call may take.
#[derive(Clone, Copy)]
pub(crate) enum Connections {
    Ordinary,
    /// Those kept for acks and renewals, too.
    Reserved,
}

pub(crate) struct PoolWait<'a> {
    call: &'a Call,
    connections: Connections,
    since: Instant,
}

impl Drop for PoolWait<'_> {
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        self.call
            .pool_wait_us
            .fetch_add(microseconds(waited), Ordering::Relaxed);
        metrics::pool_wait(self.connections, waited);
    }
}

/// The span of what carries so many requests. `callers`: the spans of those who made them, as far as they have one.
pub(crate) fn batch(operation: &'static str, items: usize, callers: &[Span]) -> Span {
    metrics::batch(operation, items);
    shared(items, callers, |parent| {
        debug_span!(
            target: "duroxide_postgres",
            parent: parent,
            "duroxide_postgres.batch",
            operation,
            items = items as u64,
        )
    })
}

/// What is done for one is its child; what is done for several follows from each.
fn shared(count: usize, callers: &[Span], span: impl FnOnce(Option<Id>) -> Span) -> Span {
    if let (1, [caller]) = (count, callers) {
        return span(caller.id());
    }
    let span = span(None);
    for caller in callers {
        span.follows_from(caller);
    }
    span
}

/// A look at a queue for all fetches that wait for the same.
pub(crate) struct LookSpan {
    span: Span,
    queue: Queue,
    reason: Reason,
    started: Instant,
}

impl LookSpan {
    /// For so many. `callers`: their spans, as far as they have one.
    pub(crate) fn begin(queue: Queue, reason: Reason, wanted: usize, callers: &[Span]) -> Self {
        metrics::look_callers(queue, wanted);
        Self {
            span: shared(wanted, callers, |parent| {
                debug_span!(
                    target: "duroxide_postgres",
                    parent: parent,
                    "duroxide_postgres.look",
                    queue = queue.as_str(),
                    reason = reason.as_str(),
                    callers = wanted as u64,
                    rows = field::Empty,
                    elapsed_us = field::Empty,
                    error = field::Empty,
                )
            }),
            queue,
            reason,
            started: Instant::now(),
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// What it brought: so many items, or an error, or nobody will ever know.
    pub(crate) fn end(&self, brought: Option<Result<usize, ErrorClass>>) {
        let (end, outcome) = match brought {
            Some(Ok(0)) => (End::Done { rows: 0 }, "nothing"),
            Some(Ok(items)) => (End::Done { rows: items as u64 }, "found"),
            Some(Err(class)) => (End::Failed(class), "error"),
            None => (End::Dropped, "dropped"),
        };
        end.record(&self.span, self.started.elapsed());
        metrics::look(self.queue, self.reason, outcome);
    }
}
