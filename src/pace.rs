//! Calls of few wait for each other.
//!
//! Those who work through a queue call in a circle: enqueue, fetch, ack and again. Two groups of callers at different steps
//! of it never meet: each finds the line free, and pays for a round trip and a commit of its own. So a call of few that
//! finds one of the step before on the wire waits for its end: whoever it sets free comes along. And an ack of few activities
//! waits for those who are about to finish theirs.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lease::Leases;
use crate::wake::Queue;

/// This many go without waiting for more.
const ENOUGH: usize = 8;
/// A call that takes longer has met something heavy, or a slow line: then waiting costs more than it brings.
const PATIENCE: Duration = Duration::from_millis(3);

/// Where in the circle a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Fetches find in memory what enqueues have handed over: there is no such step.
    has_no_fetches: AtomicBool,
}

#[derive(Default)]
struct OnTheWire {
    calls: AtomicUsize,
    /// How long the last that ended took, or that somebody waited for in vain, in microseconds.
    took: AtomicU64,
    ended: Notify,
}

impl OnTheWire {
    /// Whether one is there that will probably end soon.
    fn is_worth_waiting_for(&self) -> bool {
        let took = Duration::from_micros(self.took.load(Ordering::Relaxed));
        self.calls.load(Ordering::Acquire) > 0 && took < PATIENCE
    }

    /// Waits for the end of one that is worth it.
    async fn ends(&self) {
        let mut ended = pin!(self.ended.notified());
        ended.as_mut().enable();
        if !self.is_worth_waiting_for() {
            return;
        }
        if tokio::time::timeout(PATIENCE, ended).await.is_err() {
            self.took(PATIENCE);
            return;
        }
        // Those who were answered are on their way.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }

    fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.took.store(time, Ordering::Relaxed);
    }
}

/// A call on the wire, until it is dropped.
pub(crate) struct Sent<'a> {
    among: &'a OnTheWire,
    since: Instant,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.among.took(self.since.elapsed());
        self.among.calls.fetch_sub(1, Ordering::AcqRel);
        self.among.ended.notify_waiters();
    }
}

impl Pace {
    pub(crate) fn sent(&self, queue: Queue, step: Step) -> Sent<'_> {
        if step == Step::Fetch {
            self.circle(queue).has_no_fetches.store(false, Ordering::Relaxed);
        }
        let among = self.on_the_wire(queue, step);
        among.calls.fetch_add(1, Ordering::AcqRel);
        Sent {
            among,
            since: Instant::now(),
        }
    }

    /// How long the last call took, or seems to take.
    pub(crate) fn took(&self, queue: Queue, step: Step) -> Duration {
        let took = self.on_the_wire(queue, step).took.load(Ordering::Relaxed);
        Duration::from_micros(took)
    }

    /// Whether what is enqueued is handed over to those who will fetch it.
    pub(crate) fn hands_over(&self, queue: Queue, ahead: bool) {
        self.circle(queue).has_no_fetches.store(ahead, Ordering::Relaxed);
    }

    /// Waits until a call of this many callers should go out. `leases`: of those who are at work.
    pub(crate) async fn keep(&self, queue: Queue, step: Step, callers: usize, leases: &Leases) {
        if callers >= ENOUGH {
            return;
        }
        let circle = self.circle(queue);
        let before = match step {
            Step::Enqueue => &circle.acks,
            Step::Fetch => &circle.enqueues,
            Step::Ack if circle.has_no_fetches.load(Ordering::Relaxed) => &circle.enqueues,
            Step::Ack => &circle.fetches,
        };
        before.ends().await;
        if (queue, step) == (Queue::Worker, Step::Ack) {
            leases.company().await;
        }
    }

    fn on_the_wire(&self, queue: Queue, step: Step) -> &OnTheWire {
        let circle = self.circle(queue);
        match step {
            Step::Enqueue => &circle.enqueues,
            Step::Fetch => &circle.fetches,
            Step::Ack => &circle.acks,
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

    /// Whether a call of one goes out at once.
    fn goes_at_once(pace: &Pace, queue: Queue, step: Step) -> bool {
        pace.keep(queue, step, 1, &Leases::default()).now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait_for_the_end_of_the_step_before_and_no_longer() {
        let pace = Pace::default();
        for (step, before) in [
            (Step::Enqueue, Step::Ack),
            (Step::Fetch, Step::Enqueue),
            (Step::Ack, Step::Fetch),
        ] {
            let sent = pace.sent(QUEUE, before);
            let leases = Leases::default();
            let mut waiting = Box::pin(pace.keep(QUEUE, step, ENOUGH - 1, &leases));
            assert!(
                (&mut waiting).now_or_never().is_none(),
                "{step:?} does not wait for {before:?}"
            );
            let ended = Instant::now();
            drop(sent);
            waiting.await;
            assert_eq!(Instant::now(), ended, "{step:?} waits longer than for {before:?}");
            assert!(goes_at_once(&pace, QUEUE, step), "{step:?} waits for nothing");
        }
    }

    #[tokio::test]
    async fn acks_wait_for_enqueues_that_hand_over() {
        let pace = Pace::default();
        let _sent = (pace.sent(QUEUE, Step::Enqueue), pace.sent(QUEUE, Step::Fetch));
        for ahead in [true, false] {
            pace.hands_over(QUEUE, ahead);
            let enqueues = &pace.circle(QUEUE).enqueues;
            enqueues.took(PATIENCE * u32::from(!ahead));
            assert!(!goes_at_once(&pace, QUEUE, Step::Ack), "{ahead}");
            enqueues.took(PATIENCE * u32::from(ahead));
            assert_eq!(goes_at_once(&pace, QUEUE, Step::Ack), ahead);
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_anything_else() {
        let pace = Pace::default();
        let _sent = (pace.sent(QUEUE, Step::Ack), pace.sent(Queue::Orchestrator, Step::Fetch));
        let leases = Leases::default();
        assert!(
            pace.keep(QUEUE, Step::Enqueue, ENOUGH, &leases)
                .now_or_never()
                .is_some()
        );
        assert!(goes_at_once(&pace, QUEUE, Step::Fetch));
        assert!(goes_at_once(&pace, QUEUE, Step::Ack));
        assert!(goes_at_once(&pace, Queue::Orchestrator, Step::Enqueue));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_what_takes_long() {
        let pace = Pace::default();
        let slow = pace.sent(QUEUE, Step::Ack);
        tokio::time::sleep(PATIENCE).await;
        drop(slow);
        let next = pace.sent(QUEUE, Step::Ack);
        assert!(goes_at_once(&pace, QUEUE, Step::Enqueue));
        // It was quick again.
        drop(next);
        let _quick = pace.sent(QUEUE, Step::Ack);
        assert!(!goes_at_once(&pace, QUEUE, Step::Enqueue));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_stuck_is_waited_for_once() {
        let pace = Pace::default();
        let _stuck = pace.sent(QUEUE, Step::Ack);
        let begun = Instant::now();
        pace.keep(QUEUE, Step::Enqueue, 1, &Leases::default()).await;
        assert_eq!(begun.elapsed(), PATIENCE);
        assert!(goes_at_once(&pace, QUEUE, Step::Enqueue));
    }
}
