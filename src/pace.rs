//! Calls of few wait for each other.
//!
//! Those who work through a queue call in a circle: enqueue, fetch, ack and again. Two groups of callers at different steps
//! of it never meet: each finds the line free, and pays for a round trip and a commit of its own. So a call of few that
//! finds one of the step before on the wire waits for its end: whoever it sets free comes along.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::wake::Queue;

/// This many go without waiting for more.
const ENOUGH: usize = 8;
/// A call that takes longer has met something heavy, or a slow line.
const PATIENCE: Duration = Duration::from_millis(2);

/// Where in the circle a call is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Enqueue,
    Fetch,
    Ack,
}

#[derive(Default)]
pub(crate) struct Pace {
    orchestrator: Circle,
    worker: Circle,
}

#[derive(Default)]
struct Circle {
    enqueues: OnTheWire,
    fetches: OnTheWire,
    acks: OnTheWire,
}

#[derive(Default)]
struct OnTheWire {
    calls: AtomicUsize,
    ended: Notify,
}

/// A call on the wire, until it is dropped.
pub(crate) struct Sent<'a>(&'a OnTheWire);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl Pace {
    pub(crate) fn sent(&self, queue: Queue, step: Step) -> Sent<'_> {
        let circle = self.circle(queue);
        let calls = match step {
            Step::Enqueue => &circle.enqueues,
            Step::Fetch => &circle.fetches,
            Step::Ack => &circle.acks,
        };
        calls.calls.fetch_add(1, Ordering::AcqRel);
        Sent(calls)
    }

    /// Waits until a call of this many callers should go out.
    pub(crate) async fn keep(&self, queue: Queue, step: Step, callers: usize) {
        if callers >= ENOUGH {
            return;
        }
        let circle = self.circle(queue);
        let before = match step {
            Step::Enqueue => &circle.acks,
            Step::Fetch => &circle.enqueues,
            Step::Ack => &circle.fetches,
        };
        let mut ended = pin!(before.ended.notified());
        ended.as_mut().enable();
        if before.calls.load(Ordering::Acquire) == 0 {
            return;
        }
        if tokio::time::timeout(PATIENCE, ended).await.is_ok() {
            // Those who were answered are on their way.
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
    }

    fn circle(&self, queue: Queue) -> &Circle {
        match queue {
            Queue::Orchestrator => &self.orchestrator,
            Queue::Worker => &self.worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const QUEUE: Queue = Queue::Worker;

    #[tokio::test]
    async fn few_wait_for_the_end_of_the_step_before() {
        let pace = Pace::default();
        for (step, before) in [
            (Step::Enqueue, Step::Ack),
            (Step::Fetch, Step::Enqueue),
            (Step::Ack, Step::Fetch),
        ] {
            let sent = pace.sent(QUEUE, before);
            let mut waiting = Box::pin(pace.keep(QUEUE, step, ENOUGH - 1));
            assert!(
                (&mut waiting).now_or_never().is_none(),
                "{step:?} does not wait for {before:?}"
            );
            drop(sent);
            waiting.await;
            let alone = pace.keep(QUEUE, step, 1).now_or_never();
            assert!(alone.is_some(), "{step:?} waits for nothing");
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_anything_else() {
        let pace = Pace::default();
        let _acks = (pace.sent(QUEUE, Step::Ack), pace.sent(Queue::Orchestrator, Step::Fetch));
        assert!(pace.keep(QUEUE, Step::Enqueue, ENOUGH).now_or_never().is_some());
        assert!(pace.keep(QUEUE, Step::Fetch, 1).now_or_never().is_some());
        assert!(pace.keep(QUEUE, Step::Ack, 1).now_or_never().is_some());
        assert!(
            pace.keep(Queue::Orchestrator, Step::Enqueue, 1)
                .now_or_never()
                .is_some()
        );
    }

    #[tokio::test]
    async fn nobody_waits_long() {
        let pace = Pace::default();
        let _stuck = pace.sent(QUEUE, Step::Ack);
        pace.keep(QUEUE, Step::Enqueue, 1).await;
    }
}
