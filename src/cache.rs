//! Histories that this process knows already, so that only what is new has to be sent and parsed.
//!
//! What is here is never trusted by itself. A fetch uses it only where the mailbox says that this process has the
//! history up to a certain event (`mailboxes.cached_by`), a read only where the epoch it was read under still holds.
//! Both are decided by the database, in the transaction that reads the rest.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duroxide::Event;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::encode;
use crate::inner::Inner;
use crate::telemetry::metrics;
use crate::turn_ack::TurnAck;

/// No history takes more than this part of the memory.
const LARGEST_PART: usize = 8;
/// From so many events on, the copy that the next turn will get is made ahead of it, while nobody waits for it.
const COPIED_AHEAD: usize = 500;
/// What an entry takes beside its events.
const ENTRY_BYTES: usize = 256;
/// What an event takes beside its text: itself, and what the allocator adds.
const EVENT_BYTES: usize = size_of::<Event>() + 96;

/// All events of an execution up to some point.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) epoch: i64,
    pub(crate) execution_id: i64,
    pub(crate) last_event_id: i64,
    /// The last event as it is stored. A server that went back in time, losing commits, has another one or none.
    pub(crate) last_text: Arc<str>,
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
            last_text: Arc::default(),
            events: Arc::default(),
            bytes: 0,
        }
    }

    /// Adds events that follow. `texts`: as they are stored.
    pub(crate) fn append(&mut self, events: Vec<Event>, texts: &[String]) {
        let (Some(last), Some(text)) = (events.last(), texts.last()) else {
            return;
        };
        self.bytes += texts.iter().map(String::len).sum::<usize>() + text.len() + events.len() * EVENT_BYTES;
        self.last_event_id = encode::saturated_id(last.event_id());
        self.last_text = text.as_str().into();
        Arc::make_mut(&mut self.events).extend(events);
    }

    fn is_of(&self, epoch: i64, execution_id: i64) -> bool {
        (self.epoch, self.execution_id) == (epoch, execution_id)
    }
}

/// What a turn adds, while its ack is under way. It counts from the moment the database says so, which another fetch may
/// learn before the ack's own answer arrives.
struct Announced {
    ack_id: Uuid,
    epoch: i64,
    execution_id: i64,
    /// The event it follows; 0 if it begins the execution.
    after_event_id: i64,
    last_event_id: i64,
    events: Vec<Event>,
    texts: Arc<Vec<String>>,
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
    announced: HashMap<Arc<str>, Vec<Announced>>,
}

struct Entry {
    known: Known,
    /// Of `known.events`, made ahead.
    copy: Option<Vec<Event>>,
    /// Of both.
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

    /// All events up to `event_id`, which the database says this process has.
    pub(crate) fn get_up_to(&self, instance: &str, epoch: i64, execution_id: i64, event_id: i64) -> Option<Known> {
        let mut state = self.lock();
        let known = state.get(instance).filter(|known| known.is_of(epoch, execution_id));
        if known.as_ref().is_some_and(|known| known.last_event_id == event_id) {
            return known;
        }
        // The answer to the ack that added them is still under way. Of two that could have, nobody knows which did.
        let mut candidates = state.announced.get(instance)?.iter().filter(|announced| {
            (announced.epoch, announced.execution_id, announced.last_event_id) == (epoch, execution_id, event_id)
        });
        let (Some(announced), None) = (candidates.next(), candidates.next()) else {
            return None;
        };
        let mut known = match announced.after_event_id {
            0 => Known::nothing(epoch, execution_id),
            after => known.filter(|known| known.last_event_id == after)?,
        };
        known.append(announced.events.clone(), &announced.texts);
        Some(known)
    }

    /// A turn is about to be acked that adds `events`. Whether this process will then know all of its history.
    pub(crate) fn announce(
        &self,
        instance: &str,
        ack_id: Uuid,
        execution_id: i64,
        events: Vec<Event>,
        texts: Arc<Vec<String>>,
    ) -> bool {
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let ids = || events.iter().map(|event| encode::saturated_id(event.event_id()));
        let mut state = self.lock();
        let Some(known) = state.get(instance) else {
            return false;
        };
        let goes_on = known.execution_id == execution_id;
        let after_event_id = if goes_on { known.last_event_id } else { 0 };
        // One after the other, as the runtime numbers them.
        let follows = ids().eq((after_event_id + 1)..=after_event_id.saturating_add(count));
        if !follows || (events.is_empty() && !goes_on) {
            return false;
        }
        let announced = Announced {
            ack_id,
            epoch: known.epoch,
            execution_id,
            after_event_id,
            last_event_id: after_event_id.saturating_add(count),
            events,
            texts,
        };
        state.announced.entry(instance.into()).or_default().push(announced);
        true
    }

    /// What was announced has come true. Returns what is known now if it should be copied ahead.
    pub(crate) fn confirm(&self, instance: &str, ack_id: Uuid) -> Option<Known> {
        let mut state = self.lock();
        let announced = state.retract(instance, ack_id)?;
        // Out of the map it is the only one, so that adding to it copies nothing.
        let mut known = state.remove(instance)?;
        if known.epoch == announced.epoch
            && known.execution_id != announced.execution_id
            && announced.after_event_id == 0
        {
            known = Known::nothing(announced.epoch, announced.execution_id);
        }
        if known.is_of(announced.epoch, announced.execution_id) {
            if known.last_event_id == announced.after_event_id {
                known.append(announced.events, &announced.texts);
            }
            state.put(self.limit, instance, known);
        }
        let known = &state.entries.get(instance)?.known;
        let worth_it = known.events.len() >= COPIED_AHEAD && state.bytes + known.bytes <= self.limit;
        worth_it.then(|| known.clone())
    }

    /// Keeps `copy`, made of `known`, for the next turn, if that is still what is known and there is room left.
    fn keep_copy(&self, instance: &str, known: &Known, copy: Vec<Event>) {
        let mut state = self.lock();
        let room = self.limit.saturating_sub(state.bytes);
        if let Some(entry) = state.entries.get_mut(instance)
            && Arc::ptr_eq(&entry.known.events, &known.events)
            && entry.copy.is_none()
            && known.bytes <= room
        {
            entry.copy = Some(copy);
            entry.bytes += known.bytes;
            let bytes = state.bytes + known.bytes;
            state.resize(bytes);
        }
    }

    /// The events for a turn: the copy made ahead, if these are still what is known.
    pub(crate) fn take_events(&self, instance: &str, known: Known) -> Vec<Event> {
        let mut state = self.lock();
        let is_known = state
            .entries
            .get(instance)
            .is_some_and(|entry| Arc::ptr_eq(&entry.known.events, &known.events));
        let copy = if is_known { state.take_copy(instance) } else { None };
        drop(state);
        copy.unwrap_or_else(|| Arc::unwrap_or_clone(known.events))
    }

    /// What was announced has not come true, or nobody will ever know.
    pub(crate) fn retract(&self, instance: &str, ack_id: Uuid) {
        self.lock().retract(instance, ack_id);
    }

    pub(crate) fn put(&self, instance: &str, known: Known) {
        self.lock().put(self.limit, instance, known);
    }

    pub(crate) fn forget(&self, instance: &str) {
        self.lock().remove(instance);
    }
}

impl State {
    fn get(&mut self, instance: &str) -> Option<Known> {
        let entry = self.entries.get_mut(instance)?;
        let key = self.by_use.remove(&entry.used)?;
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, key);
        Some(entry.known.clone())
    }

    fn retract(&mut self, instance: &str, ack_id: Uuid) -> Option<Announced> {
        let announced = self.announced.get_mut(instance)?;
        let position = announced.iter().position(|announced| announced.ack_id == ack_id)?;
        let retracted = announced.swap_remove(position);
        if announced.is_empty() {
            self.announced.remove(instance);
        }
        Some(retracted)
    }

    fn insert(&mut self, key: Arc<str>, known: Known, bytes: usize) {
        self.uses += 1;
        self.resize(self.bytes + bytes);
        self.by_use.insert(self.uses, Arc::clone(&key));
        let used = self.uses;
        let entry = Entry {
            known,
            copy: None,
            bytes,
            used,
        };
        self.entries.insert(key, entry);
    }

    fn put(&mut self, limit: usize, instance: &str, known: Known) {
        if let Some(entry) = self.entries.get(instance)
            && entry.known.is_of(known.epoch, known.execution_id)
            && entry.known.last_event_id > known.last_event_id
        {
            // An answer that was overtaken.
            return;
        }
        self.remove(instance);
        let bytes = entry_bytes(instance, &known);
        if bytes > limit / LARGEST_PART {
            return;
        }
        self.insert(instance.into(), known, bytes);
        while self.bytes > limit
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = Arc::clone(oldest);
            if self.take_copy(&oldest).is_none() {
                self.remove(&oldest);
                metrics::cache_eviction();
            }
        }
    }

    fn take_copy(&mut self, instance: &str) -> Option<Vec<Event>> {
        let entry = self.entries.get_mut(instance)?;
        let copy = entry.copy.take()?;
        let freed = entry.bytes - entry_bytes(instance, &entry.known);
        entry.bytes -= freed;
        self.resize(self.bytes - freed);
        Some(copy)
    }

    fn remove(&mut self, instance: &str) -> Option<Known> {
        let entry = self.entries.remove(instance)?;
        self.by_use.remove(&entry.used);
        self.resize(self.bytes - entry.bytes);
        Some(entry.known)
    }

    fn resize(&mut self, bytes: usize) {
        metrics::cache_bytes(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Without a copy.
fn entry_bytes(instance: &str, known: &Known) -> usize {
    known.bytes + instance.len() + ENTRY_BYTES
}

/// What a turn adds, until its ack has come to an end one way or the other.
pub(crate) struct Announcement {
    inner: Arc<Inner>,
    instance_id: String,
    ack_id: Uuid,
}

impl Announcement {
    pub(crate) fn confirm(self) {
        let known = self.inner.cache.confirm(&self.instance_id, self.ack_id);
        if let Some(known) = known
            && let Ok(runtime) = Handle::try_current()
        {
            let (inner, instance_id) = (Arc::clone(&self.inner), self.instance_id.clone());
            runtime.spawn(async move {
                let copy = Vec::clone(&known.events);
                inner.cache.keep_copy(&instance_id, &known, copy);
            });
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.inner.cache.retract(&self.instance_id, self.ack_id);
    }
}

impl Inner {
    /// Before an ack is sent: what it adds to the history, if this process keeps it in memory.
    pub(crate) fn announce_turn(self: &Arc<Self>, ack: &mut TurnAck, events: Vec<Event>) -> Option<Announcement> {
        let instance_id = &ack.token.instance_id;
        if !ack.goes_on() {
            self.cache.forget(instance_id);
            return None;
        }
        let texts = Arc::clone(&ack.events.data);
        if !self
            .cache
            .announce(instance_id, ack.id, ack.execution_id, events, texts)
        {
            return None;
        }
        ack.node = Some(self.node);
        Some(Announcement {
            inner: Arc::clone(self),
            instance_id: instance_id.clone(),
            ack_id: ack.id,
        })
    }
}
