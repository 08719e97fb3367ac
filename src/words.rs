//! What other processes are still to be told: that there is something in a queue.
//!
//! A word wakes everybody who waits there, and at most one of them finds what it is about. So it is the more urgent the less
//! likely somebody of this process takes it, and words about the same queue are few.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::wake::Queue;

/// How soon others are to be told. The first after a pause is told at once, unless it can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Haste {
    /// Nobody here takes it.
    Now,
    /// Somebody here will take it, if others are not quicker.
    Soon,
    /// Somebody here has it, or is about to. Should this process die, others must know when to look.
    Later,
}

impl Haste {
    /// There is at most one word in this time that is no more urgent.
    fn interval(self) -> Duration {
        match self {
            Self::Now => Duration::from_millis(10),
            Self::Soon => Duration::from_millis(50),
            Self::Later => Duration::from_secs(1),
        }
    }

    /// How long it waits in any case: telling others is not to be in the way of whoever has it here. No longer: should the process die before,
    /// others learn of the lease only by their fallback poll.
    fn delay(self) -> Duration {
        match self {
            Self::Now | Self::Soon => Duration::ZERO,
            Self::Later => Duration::from_millis(5),
        }
    }
}

#[derive(Default)]
pub(crate) struct Words {
    queues: Mutex<[Word; Queue::ALL.len()]>,
    added: Notify,
}

/// What is to be said about one queue.
#[derive(Default)]
struct Word {
    /// How urgent it is, and since when there is one.
    unsent: Option<(Haste, Instant)>,
    sent_at: Option<Instant>,
}

impl Word {
    /// When it is to be sent, if there is one.
    fn due(&self) -> Option<Instant> {
        let (haste, since) = self.unsent?;
        let due = since + haste.delay();
        Some(self.sent_at.map_or(due, |sent| due.max(sent + haste.interval())))
    }

    fn add(&mut self, haste: Haste, now: Instant) -> bool {
        let is_more_urgent = self.unsent.is_none_or(|(unsent, _)| haste < unsent);
        if is_more_urgent {
            let since = self.unsent.map_or(now, |(_, since)| since);
            self.unsent = Some((haste, since));
        }
        is_more_urgent
    }
}

impl Words {
    fn lock(&self) -> MutexGuard<'_, [Word; Queue::ALL.len()]> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, queue: Queue, haste: Haste) {
        if self.lock()[queue as usize].add(haste, Instant::now()) {
            self.added.notify_one();
        }
    }

    /// Nobody here takes anything any more.
    pub(crate) fn hurry(&self) {
        for queue in Queue::ALL {
            if self.lock()[queue as usize].unsent.is_some() {
                self.add(queue, Haste::Now);
            }
        }
    }

    /// Waits until something is due. Can be dropped and called again at any point.
    pub(crate) async fn due(&self) {
        loop {
            let now = Instant::now();
            let due = self.lock().iter().filter_map(Word::due).min();
            match due {
                None => self.added.notified().await,
                Some(due) if due <= now => return,
                // Something more urgent may come meanwhile.
                Some(due) => drop(tokio::time::timeout_at(due, self.added.notified()).await),
            }
        }
    }

    /// The queues that others are to be told about now; or, at the last, all of them.
    pub(crate) fn take(&self, all: bool) -> Vec<Queue> {
        let now = Instant::now();
        let mut queues = self.lock();
        let mut taken = Vec::new();
        for queue in Queue::ALL {
            let word = &mut queues[queue as usize];
            if word.due().is_some_and(|due| all || due <= now) {
                word.unsent = None;
                word.sent_at = Some(now);
                taken.push(queue);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const TURNS: Queue = Queue::Orchestrator;
    const ACTIVITIES: Queue = Queue::Worker;

    #[tokio::test(start_paused = true)]
    async fn the_first_word_is_sent_at_once_unless_it_can_wait_and_the_next_as_soon_as_it_is_urgent() {
        for haste in [Haste::Now, Haste::Soon, Haste::Later] {
            let words = Words::default();
            assert!(words.due().now_or_never().is_none());
            let added = Instant::now();
            words.add(TURNS, haste);
            assert_eq!(words.due().now_or_never().is_some(), haste != Haste::Later, "{haste:?}");
            words.due().await;
            assert_eq!(Instant::now(), added + haste.delay(), "{haste:?}");
            assert_eq!(words.take(false), [TURNS]);
            let sent = Instant::now();
            words.add(TURNS, haste);
            assert_eq!(words.take(false), []);
            words.due().await;
            assert_eq!(Instant::now(), sent + haste.interval(), "{haste:?}");
            assert_eq!(words.take(false), [TURNS]);
            assert_eq!(words.take(true), []);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_becomes_urgent_does_not_wait() {
        let words = Words::default();
        words.add(TURNS, Haste::Later);
        words.take(true);
        let sent = Instant::now();
        words.add(TURNS, Haste::Later);
        let mut waiting = pin!(words.due());
        assert!((&mut waiting).now_or_never().is_none());
        words.add(TURNS, Haste::Soon);
        words.add(TURNS, Haste::Later);
        assert!((&mut waiting).now_or_never().is_none());
        words.hurry();
        waiting.await;
        assert_eq!(Instant::now(), sent + Haste::Now.interval());
    }

    #[tokio::test(start_paused = true)]
    async fn queues_do_not_wait_for_each_other_nor_take_each_other_along() {
        let words = Words::default();
        words.add(TURNS, Haste::Soon);
        assert_eq!(words.take(false), [TURNS]);
        words.add(TURNS, Haste::Soon);
        words.add(ACTIVITIES, Haste::Now);
        assert!(words.due().now_or_never().is_some());
        assert_eq!(words.take(false), [ACTIVITIES]);
        assert!(words.due().now_or_never().is_none());
        assert_eq!(words.take(true), [TURNS]);
    }
}
