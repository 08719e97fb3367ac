//! Reads that wait for the end of an orchestration.
//!
//! `Client::wait_for_orchestration` reads a history twice in a row, and then again and again with growing pauses, until it has
//! ended. Most end in the very process that waits for them. So a read that is one of such a series waits until that happens, for
//! about as long as the series lasts already, and is told of the end by the ack that brings it (`ended.rs`). Otherwise it asks the database only then, together with others: its
//! answer is as fresh as any, and whoever waits hears of the end at once, by a few reads instead of a dozen. Where there are other processes the
//! orchestration may end there, so it waits for about 20 ms; in one that runs no turns, not at all.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use duroxide::{Event, EventKind};
use tokio::sync::oneshot;
use tokio::task;

use crate::ended::Ended;
use crate::swept::SweptMap;

/// Who reads once more within this time asks for nothing new: it polls.
const AT_ONCE: Duration = Duration::from_millis(2);
/// Who has not read for so long does not, or no longer. The client's longest pause is 100 ms.
const GIVEN_UP: Duration = Duration::from_millis(300);
/// How long one read waits.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(100);
/// All that wait stop it at multiples of this.
const TOGETHER: Duration = Duration::from_millis(20);
/// Beyond these, those are swept who have given up.
const SWEEP_ABOVE: usize = 1024;
const SWEEP_READERS_ABOVE: usize = 16;

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

pub(crate) struct Polled {
    since: Instant,
    instances: Mutex<SweptMap<String, Instance>>,
    /// Those who fetch: what they read they need at once.
    dispatchers: Mutex<HashSet<Reader>>,
}

#[derive(Default)]
struct Instance {
    /// In this process.
    has_ended: bool,
    waiting: Vec<Waiting>,
    readers: SweptMap<Reader, Series>,
}

/// The end, and what it is if that is known.
type Comes = oneshot::Receiver<Option<Ended>>;

/// A read that waits for the end.
struct Waiting {
    since: Instant,
    end: oneshot::Sender<Option<Ended>>,
}

struct Series {
    begun: Instant,
    /// The end of the last read, or the beginning of the first.
    last: Instant,
    is_first: bool,
    /// It is certainly one.
    repeated: bool,
    /// How often the custom status was asked for since the last read.
    statuses: usize,
}

impl Series {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            last: now,
            is_first: true,
            repeated: false,
            statuses: 0,
        }
    }

    fn goes_on(&self, now: Instant) -> bool {
        now < self.last + GIVEN_UP
    }
}

impl Default for Polled {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            instances: Mutex::default(),
            dispatchers: Mutex::default(),
        }
    }
}

impl Polled {
    fn lock(&self) -> MutexGuard<'_, SweptMap<String, Instance>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever calls fetches work.
    pub(crate) fn is_dispatcher(&self) {
        let mut dispatchers = self.dispatchers();
        if dispatchers.len() > SWEEP_ABOVE {
            dispatchers.clear();
        }
        dispatchers.insert(Reader::current());
    }

    fn dispatchers(&self) -> MutexGuard<'_, HashSet<Reader>> {
        self.dispatchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before an instance is read: waits, if this is one read of a series, and needs no answer if it was told of the end. `in_company`: it may
    /// come in another process.
    pub(crate) async fn wait(&self, instance: &str, in_company: bool) -> Option<Ended> {
        let now = Instant::now();
        let (end, limit) = self.begin(instance, Reader::current(), now)?;
        let limit = self.together(now, if in_company { SHORTEST } else { limit });
        tokio::time::timeout(limit, end).await.ok()?.ok()?
    }

    /// About as long as `limit`, but until others stop waiting as well: then one call does for all of them.
    fn together(&self, now: Instant, limit: Duration) -> Duration {
        let elapsed = now.duration_since(self.since);
        let steps = (elapsed + limit).div_duration_f64(TOGETHER).round();
        TOGETHER.mul_f64(steps).saturating_sub(elapsed)
    }

    /// What to wait for, and how long, if anything.
    fn begin(&self, instance: &str, reader: Reader, now: Instant) -> Option<(Comes, Duration)> {
        if self.dispatchers().contains(&reader) {
            return None;
        }
        let mut instances = self.lock();
        instances.sweep(SWEEP_ABOVE, |polled| {
            polled.readers.retain(|_, series| series.goes_on(now));
            !polled.readers.is_empty()
        });
        // Known before it is read: an end between the two must not be missed.
        let polled = instances.entry(instance.to_string()).or_default();
        polled.readers.sweep(SWEEP_READERS_ABOVE, |series| series.goes_on(now));
        if polled.has_ended && !polled.readers.values().any(|series| series.goes_on(now)) {
            // Nobody has read of that end. It may have been started anew.
            *polled = Instance::default();
        }
        let series = polled.readers.entry(reader).or_insert_with(|| Series::new(now));
        let is_at_once = !series.is_first && now < series.last + AT_ONCE;
        if !series.goes_on(now) || !(series.repeated || is_at_once) {
            *series = Series::new(now);
            return None;
        }
        series.repeated = true;
        let limit = now.duration_since(series.begun).clamp(SHORTEST, LONGEST);
        if polled.has_ended {
            return None;
        }
        let (end, comes) = oneshot::channel();
        polled.waiting.retain(|waiting| !waiting.end.is_closed());
        polled.waiting.push(Waiting { since: now, end });
        Some((comes, limit))
    }

    /// Whether somebody waits for the end of an instance.
    pub(crate) fn is_awaited(&self, instance: &str) -> bool {
        let instances = self.lock();
        let polled = instances.get(instance);
        polled.is_some_and(|polled| polled.waiting.iter().any(|waiting| !waiting.end.is_closed()))
    }

    /// An instance was read.
    pub(crate) fn was_read(&self, instance: &str, history: &[Event]) {
        let has_ended = history.last().is_some_and(ends_orchestration);
        self.note(instance, Reader::current(), has_ended, Instant::now());
    }

    fn note(&self, instance: &str, reader: Reader, has_ended: bool, now: Instant) {
        let mut instances = self.lock();
        let Some(polled) = instances.get_mut(instance) else {
            return;
        };
        if has_ended {
            polled.readers.remove(&reader);
            polled.readers.retain(|_, series| series.goes_on(now));
            if polled.readers.is_empty() {
                instances.remove(instance);
            }
        } else if let Some(series) = polled.readers.get_mut(&reader) {
            series.last = now;
            series.is_first = false;
            series.statuses = 0;
        }
    }

    /// The custom status is asked for. Once after each read, that is part of a series; whoever asks again waits for something else.
    pub(crate) fn asks_for_status(&self, instance: &str) {
        let mut instances = self.lock();
        if let Some(polled) = instances.get_mut(instance)
            && let Some(series) = polled.readers.get_mut(&Reader::current())
        {
            series.statuses += 1;
            if series.statuses > 1 {
                (series.repeated, series.is_first, series.begun) = (false, true, series.last);
            }
        }
    }

    /// The last turn of an instance was committed. `ended`: its history, for those who have waited for it since before it was.
    pub(crate) fn has_ended(&self, instance: &str, ended: Option<Ended>) {
        let waiting = match self.lock().get_mut(instance) {
            Some(polled) => {
                polled.has_ended = true;
                std::mem::take(&mut polled.waiting)
            }
            None => return,
        };
        for Waiting { since, end } in waiting {
            // Whoever went away does not want to know.
            let _ = end.send(ended.clone().filter(|ended| since <= ended.since));
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
mod tests;
