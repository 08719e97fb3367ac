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
    pub(crate) fn nothing(epoch: i64, execution_id: i64) -> Self {
        Self {
            epoch,
            execution_id,
            last_event_id: 0,
            events: Arc::default(),
            bytes: 0,
        }
    }

    /// Adds events that follow.
    pub(crate) fn append(&mut self, events: Vec<Event>, json_bytes: usize) {
        self.bytes += json_bytes + events.len() * size_of::<Event>();
        if let Some(last) = events.iter().map(Event::event_id).max() {
            self.last_event_id = self.last_event_id.max(crate::encode::saturated_id(last));
        }
        Arc::make_mut(&mut self.events).extend(events);
    }
}

/// What a turn adds, while its ack is under way. It counts from the moment the database says so, which another fetch may
/// learn before the ack's own answer arrives.
struct Announced {
    epoch: i64,
    execution_id: i64,
    /// The event it follows; 0 if it begins the execution.
    after_event_id: i64,
    last_event_id: i64,
    events: Arc<Vec<Event>>,
    json_bytes: usize,
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
    announced: HashMap<Arc<str>, Announced>,
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

    /// The most that is known for sure.
    pub(crate) fn get(&self, instance: &str) -> Option<Known> {
        self.lock().get(instance)
    }

    /// All events up to `event_id`, which the database says this process has, and perhaps later ones.
    pub(crate) fn get_up_to(&self, instance: &str, epoch: i64, execution_id: i64, event_id: i64) -> Option<Known> {
        let mut state = self.lock();
        let known = state.get(instance).filter(|known| known.epoch == epoch);
        if let Some(known) = &known
            && known.execution_id == execution_id
            && known.last_event_id >= event_id
        {
            return Some(known.clone());
        }
        // The answer to the ack that added them is still under way.
        let announced = state.announced.get(instance)?;
        if (announced.epoch, announced.execution_id, announced.last_event_id) != (epoch, execution_id, event_id) {
            return None;
        }
        let mut known = match announced.after_event_id {
            0 => Known::nothing(epoch, execution_id),
            after => known.filter(|known| known.execution_id == execution_id && known.last_event_id == after)?,
        };
        known.append(announced.events.to_vec(), announced.json_bytes);
        Some(known)
    }

    /// A turn is about to be acked that adds `events`. Whether this process will then know all of its history.
    pub(crate) fn announce(&self, instance: &str, execution_id: i64, events: &[Event], json_bytes: usize) -> bool {
        let ids = || events.iter().map(|event| crate::encode::saturated_id(event.event_id()));
        let mut state = self.lock();
        let Some(known) = state.get(instance) else {
            return false;
        };
        let after_event_id = if known.execution_id == execution_id {
            known.last_event_id
        } else {
            0
        };
        // One after the other, as the runtime numbers them.
        if !ids().eq((after_event_id + 1)..=after_event_id + events.len() as i64)
            || (events.is_empty() && known.execution_id != execution_id)
        {
            return false;
        }
        let announced = Announced {
            epoch: known.epoch,
            execution_id,
            after_event_id,
            last_event_id: after_event_id + events.len() as i64,
            events: Arc::new(events.to_vec()),
            json_bytes,
        };
        state.announced.insert(instance.into(), announced);
        true
    }

    /// What was announced has come true.
    pub(crate) fn confirm(&self, instance: &str) {
        let mut state = self.lock();
        let Some(announced) = state.announced.remove(instance) else {
            return;
        };
        // Out of the map it is the only copy, so that adding to it copies nothing.
        let Some(mut known) = state.remove(instance).filter(|known| known.epoch == announced.epoch) else {
            return;
        };
        if known.execution_id != announced.execution_id && announced.after_event_id == 0 {
            known = Known::nothing(announced.epoch, announced.execution_id);
        }
        if known.last_event_id == announced.after_event_id {
            let events = Arc::unwrap_or_clone(announced.events);
            known.append(events, announced.json_bytes);
        }
        if known.execution_id == announced.execution_id {
            state.put(self.limit, instance, known);
        }
    }

    pub(crate) fn put(&self, instance: &str, known: Known) {
        self.lock().put(self.limit, instance, known);
    }

    pub(crate) fn forget(&self, instance: &str) {
        let mut state = self.lock();
        state.announced.remove(instance);
        state.remove(instance);
    }
}

impl State {
    fn get(&mut self, instance: &str) -> Option<Known> {
        let (key, entry) = self.entries.remove_entry(instance)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        let known = entry.known.clone();
        self.insert(key, entry.known, entry.bytes);
        Some(known)
    }

    fn insert(&mut self, key: Arc<str>, known: Known, bytes: usize) {
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, Arc::clone(&key));
        let used = self.uses;
        self.entries.insert(key, Entry { known, bytes, used });
    }

    fn put(&mut self, limit: usize, instance: &str, known: Known) {
        if let Some(entry) = self.entries.get(instance)
            && entry.known.epoch == known.epoch
            && entry.known.execution_id == known.execution_id
            && entry.known.last_event_id > known.last_event_id
        {
            // An answer that was overtaken.
            return;
        }
        self.remove(instance);
        let bytes = known.bytes + instance.len() + ENTRY_BYTES;
        if bytes > limit / LARGEST_PART {
            return;
        }
        self.insert(instance.into(), known, bytes);
        while self.bytes > limit
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = Arc::clone(oldest);
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, instance: &str) -> Option<Known> {
        let entry = self.entries.remove(instance)?;
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry.known)
    }
}
