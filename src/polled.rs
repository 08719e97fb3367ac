//! Reads that wait for the end of an orchestration.
//!
//! `Client::wait_for_orchestration` reads a history twice in a row, and then again and again with growing pauses, until it has
//! ended. Most end in the very process that waits for them. So a read that is one of such a series waits until that happens, or for
//! about as long as the series lasts already, and asks the database only then: its answer is as fresh as any, and whoever waits
//! hears of the end at once, by a few reads instead of a dozen. Orchestrations that end elsewhere are found about as soon as by the growing
//! pauses alone. In a process that runs no turns nothing is waited for.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use duroxide::{Event, EventKind};
use tokio::sync::Notify;
use tokio::task;

/// Who reads once more within this time asks for nothing new: it polls.
const AT_ONCE: Duration = Duration::from_millis(2);
/// Who has not read for so long does not, or no longer. The client's longest pause is 100 ms.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// How long one read waits.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(100);
/// Beyond this, those are swept who have given up.
const SWEEP_ABOVE: usize = 1024;

/// Who reads: a task, or what runs on a thread outside of any.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    Task(task::Id),
    Thread(ThreadId),
}

impl Reader {
    fn current() -> Self {
        task::try_id().map_or_else(|| Self::Thread(std::thread::current().id()), Self::Task)
    }
}

#[derive(Default)]
pub(crate) struct Polled {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    instances: HashMap<String, Instance>,
    /// Those who fetch: what they read they need at once.
    dispatchers: HashSet<Reader>,
}

#[derive(Default)]
struct Instance {
    end: Arc<End>,
    readers: HashMap<Reader, Series>,
}

/// The end of an orchestration in this process, of which those learn who wait for it.
#[derive(Default)]
struct End {
    has_come: AtomicBool,
    comes: Notify,
}

struct Series {
    begun: Instant,
    /// The end of the last read.
    last: Instant,
    /// It is certainly one.
    repeated: bool,
}

impl Polled {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever calls fetches work.
    pub(crate) fn is_dispatcher(&self) {
        let reader = Reader::current();
        let mut state = self.lock();
        if state.dispatchers.len() > SWEEP_ABOVE {
            state.dispatchers.clear();
        }
        state.dispatchers.insert(reader);
    }

    /// Before an instance is read: waits, if this is one read of a series.
    pub(crate) async fn wait(&self, instance: &str) {
        let Some((end, limit)) = self.begin(instance, Reader::current(), Instant::now()) else {
            return;
        };
        let mut comes = pin!(end.comes.notified());
        comes.as_mut().enable();
        if !end.has_come.load(Ordering::Acquire) {
            let _ = tokio::time::timeout(limit, comes).await;
        }
    }

    /// What to wait for, and how long, if anything.
    fn begin(&self, instance: &str, reader: Reader, now: Instant) -> Option<(Arc<End>, Duration)> {
        let mut state = self.lock();
        if state.dispatchers.contains(&reader) {
            return None;
        }
        if state.instances.len() > SWEEP_ABOVE {
            state.instances.retain(|_, instance| {
                instance.readers.retain(|_, series| now < series.last + GIVEN_UP);
                !instance.readers.is_empty()
            });
        }
        // Known before it is read: an end between the two must not be missed.
        let polled = state.instances.entry(instance.to_string()).or_default();
        let series = polled.readers.entry(reader).or_insert(Series {
            begun: now,
            last: now,
            repeated: false,
        });
        let pause = now.duration_since(series.last);
        let is_first = series.begun == series.last;
        if pause >= GIVEN_UP || (!series.repeated && (is_first || pause >= AT_ONCE)) {
            (series.begun, series.last, series.repeated) = (now, now, false);
            return None;
        }
        series.repeated = true;
        let limit = now.duration_since(series.begun).clamp(SHORTEST, LONGEST);
        Some((Arc::clone(&polled.end), limit))
    }

    /// An instance was read.
    pub(crate) fn was_read(&self, instance: &str, history: &[Event]) {
        let has_ended = history.last().is_some_and(ends_orchestration);
        self.note(instance, Reader::current(), has_ended, Instant::now());
    }

    fn note(&self, instance: &str, reader: Reader, has_ended: bool, now: Instant) {
        let mut state = self.lock();
        let Some(polled) = state.instances.get_mut(instance) else {
            return;
        };
        if has_ended {
            polled.readers.remove(&reader);
            if polled.readers.is_empty() {
                state.instances.remove(instance);
            }
        } else if let Some(series) = polled.readers.get_mut(&reader) {
            series.last = now;
        }
    }

    /// The last turn of an instance was committed.
    pub(crate) fn has_ended(&self, instance: &str) {
        if let Some(polled) = self.lock().instances.get(instance) {
            polled.end.has_come.store(true, Ordering::Release);
            polled.end.comes.notify_waiters();
        }
    }
}

fn ends_orchestration(event: &Event) -> bool {
    matches!(
        event.kind,
        EventKind::OrchestrationCompleted { .. } | EventKind::OrchestrationFailed { .. }
    )
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const INSTANCE: &str = "i";

    fn reader() -> Reader {
        Reader::Thread(std::thread::current().id())
    }

    fn after(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    /// How long the read that begins then waits, in milliseconds; it ends a millisecond after that.
    fn waits(polled: &Polled, begin: Instant, ms: u64) -> Option<u128> {
        let limit = polled
            .begin(INSTANCE, reader(), after(begin, ms))
            .map(|(_, limit)| limit);
        let end = after(begin, ms + 1) + limit.unwrap_or_default();
        polled.note(INSTANCE, reader(), false, end);
        limit.map(|limit| limit.as_millis())
    }

    #[test]
    fn who_reads_twice_in_a_row_polls_and_waits_longer_and_longer() {
        let polled = Polled::default();
        let begin = Instant::now();
        assert_eq!(waits(&polled, begin, 0), None);
        assert_eq!(waits(&polled, begin, 2), Some(20));
        assert_eq!(waits(&polled, begin, 28), Some(28));
        assert_eq!(waits(&polled, begin, 67), Some(67));
        assert_eq!(waits(&polled, begin, 155), Some(100));
        // It has given up meanwhile.
        assert_eq!(waits(&polled, begin, 756), None);
        assert_eq!(waits(&polled, begin, 757), Some(20));
    }

    #[test]
    fn who_pauses_between_two_reads_is_not_held_up() {
        let polled = Polled::default();
        let begin = Instant::now();
        for ms in [0, 10, 20, 100] {
            assert_eq!(waits(&polled, begin, ms), None, "{ms}");
        }
    }

    #[test]
    fn nor_is_who_fetches() {
        let polled = Polled::default();
        polled.is_dispatcher();
        let begin = Instant::now();
        assert_eq!(polled.begin(INSTANCE, Reader::current(), begin).map(|_| ()), None);
        polled.note(INSTANCE, Reader::current(), false, begin);
        assert_eq!(polled.begin(INSTANCE, Reader::current(), begin).map(|_| ()), None);
    }

    #[tokio::test]
    async fn an_end_is_heard_of_at_once_whenever_it_comes() {
        let polled = Polled::default();
        polled.wait(INSTANCE).await;
        polled.was_read(INSTANCE, &[]);
        let mut waiting = Box::pin(polled.wait(INSTANCE));
        assert!((&mut waiting).now_or_never().is_none());
        polled.has_ended("another");
        assert!((&mut waiting).now_or_never().is_none());
        polled.has_ended(INSTANCE);
        assert!((&mut waiting).now_or_never().is_some());
        drop(waiting);

        // It came between two reads.
        polled.was_read(INSTANCE, &[]);
        assert!(polled.wait(INSTANCE).now_or_never().is_some());
    }

    #[test]
    fn nothing_is_kept_of_what_has_ended_or_was_given_up() {
        let polled = Polled::default();
        let begin = Instant::now();
        waits(&polled, begin, 0);
        polled.note(INSTANCE, reader(), true, begin);
        assert!(polled.lock().instances.is_empty());

        for number in 0..=SWEEP_ABOVE {
            polled.begin(&number.to_string(), reader(), begin);
        }
        polled.begin(INSTANCE, reader(), after(begin, 1000));
        assert_eq!(polled.lock().instances.len(), 1);
    }
}
