//! Histories that this process knows already, so that only what is new has to be sent and parsed.
//!
//! What is here is never trusted by itself. A fetch uses it only where the mailbox says that this process has the
//! history up to a certain event (`mailboxes.cached_by`), a read only where the epoch it was read under still holds.
//! Both are decided by the database, in the transaction that reads the rest.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duroxide::Event;

/// No history takes more than this part of the memory.
const LARGEST_PART: usize = 8;
/// What an entry takes beside its events.
const ENTRY_BYTES: usize = 256;

/// All events of an execution up to some point.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) epoch: i64,
    pub(crate) execution_id: i64,
    pub(crate) last_event_id: i64,
    pub(crate) events: Arc<Vec<Event>>,
    /// About what the events take in memory.
    pub(crate) bytes: usize,
}

impl Known {
    /// Adds events that follow.
    pub(crate) fn append(&mut self, events: Vec<Event>, json_bytes: usize) {
        self.bytes += json_bytes + events.len() * size_of::<Event>();
        if let Some(last) = events.iter().map(Event::event_id).max() {
            self.last_event_id = self.last_event_id.max(crate::encode::saturated_id(last));
        }
        Arc::make_mut(&mut self.events).extend(events);
    }
}

/// By instance, the least recently used ones forgotten first.
pub(crate) struct HistoryCache {
    /// In bytes; 0 if nothing is to be kept.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    bytes: usize,
}

struct Entry {
    known: Known,
    bytes: usize,
    used: u64,
}

impl HistoryCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            state: Mutex::default(),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.limit > 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, instance: &str) -> Option<Known> {
        let mut state = self.lock();
        let (key, entry) = state.entries.remove_entry(instance)?;
        state.by_use.remove(&entry.used);
        state.bytes -= entry.bytes;
        let known = entry.known.clone();
        state.insert(key, entry.known, entry.bytes);
        Some(known)
    }

    pub(crate) fn put(&self, instance: &str, known: Known) {
        let bytes = known.bytes + instance.len() + ENTRY_BYTES;
        let mut state = self.lock();
        if let Some(entry) = state.entries.get(instance)
            && entry.known.epoch == known.epoch
            && entry.known.execution_id == known.execution_id
            && entry.known.last_event_id > known.last_event_id
        {
            // An answer that was overtaken.
            return;
        }
        state.remove(instance);
        if bytes > self.limit / LARGEST_PART {
            return;
        }
        state.insert(instance.into(), known, bytes);
        while state.bytes > self.limit {
            let Some((_, oldest)) = state.by_use.pop_first() else {
                break;
            };
            state.remove(&oldest);
        }
    }

    pub(crate) fn forget(&self, instance: &str) {
        self.lock().remove(instance);
    }
}

impl State {
    fn insert(&mut self, key: Arc<str>, known: Known, bytes: usize) {
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, Arc::clone(&key));
        let used = self.uses;
        self.entries.insert(key, Entry { known, bytes, used });
    }

    fn remove(&mut self, instance: &str) {
        if let Some(entry) = self.entries.remove(instance) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}
