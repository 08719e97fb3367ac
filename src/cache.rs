//! Histories that this process knows already, so that only what is new has to be sent and parsed.
//!
//! What is here is never trusted by itself. A fetch uses it only where the mailbox says that this process has the
//! history up to a certain event (`mailboxes.cached_by`), a read only where the epoch it was read under still holds, or where
//! the fetch of an activity said so just before (`ahead.rs`). All are decided by the database, in the transaction that reads the rest.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duroxide::Event;
use tokio::runtime::Handle;
use uuid::Uuid;

use self::entries::Entries;
use crate::encode;
use crate::inner::Inner;
use crate::turn_ack::TurnAck;

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
    /// The next turn has them already.
    taken: bool,
}

/// By instance, the least recently used ones forgotten first.
pub(crate) struct HistoryCache {
    /// In bytes; 0 if nothing is to be kept.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: Entries,
    announced: HashMap<Arc<str>, Vec<Announced>>,
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
        self.lock().entries.get(instance)
    }

    /// All events up to `event_id`, which the database says this process has. `leased`: for a turn.
    pub(crate) fn get_up_to(
        &self,
        instance: &str,
        epoch: i64,
        execution_id: i64,
        event_id: i64,
        leased: bool,
    ) -> Option<Known> {
        let mut state = self.lock();
        let known = state
            .entries
            .get(instance)
            .filter(|known| known.is_of(epoch, execution_id));
        if known.as_ref().is_some_and(|known| known.last_event_id == event_id) {
            return known;
        }
        // The answer to the ack that added them is still under way. Of two that could have, nobody knows which did.
        let mut candidates = state.announced.get_mut(instance)?.iter_mut().filter(|announced| {
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
        announced.taken |= leased;
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
        let Some(known) = state.entries.get(instance) else {
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
            taken: false,
        };
        state.announced.entry(instance.into()).or_default().push(announced);
        true
    }

    /// What was announced has come true. Whether what is known now may be worth a copy ahead.
    pub(crate) fn confirm(&self, instance: &str, ack_id: Uuid) -> bool {
        let mut state = self.lock();
        state.confirm(self.limit, instance, ack_id);
        state.entries.to_copy(self.limit, instance).is_some()
    }

    /// Makes the copy for the next turn, if it is still wanted and there is room for it.
    fn copy_ahead(&self, instance: &str) {
        let Some(known) = self.lock().entries.to_copy(self.limit, instance) else {
            return;
        };
        let copy = Vec::clone(&known.events);
        self.keep_copy(instance, &known, copy);
    }

    /// Keeps `copy`, made of `known`, if that is still what the next turn will get.
    fn keep_copy(&self, instance: &str, known: &Known, copy: Vec<Event>) {
        let mut state = self.lock();
        let is_wanted = state
            .entries
            .to_copy(self.limit, instance)
            .is_some_and(|wanted| Arc::ptr_eq(&wanted.events, &known.events));
        if is_wanted {
            state.entries.keep_copy(instance, copy);
        }
    }

    /// The events for a turn: the copy made ahead, if these are still what is known.
    pub(crate) fn take_events(&self, instance: &str, known: Known) -> Vec<Event> {
        let copy = self.lock().entries.take_events(instance, &known);
        copy.unwrap_or_else(|| Arc::unwrap_or_clone(known.events))
    }

    /// What was announced has not come true, or nobody will ever know.
    pub(crate) fn retract(&self, instance: &str, ack_id: Uuid) {
        self.lock().retract(instance, ack_id);
    }

    pub(crate) fn put(&self, instance: &str, known: Known) {
        self.lock().entries.put(self.limit, instance, known);
    }

    /// What was known.
    pub(crate) fn forget(&self, instance: &str) -> Option<Known> {
        self.lock().entries.remove(instance)
    }
}

impl State {
    fn confirm(&mut self, limit: usize, instance: &str, ack_id: Uuid) {
        let Some(announced) = self.retract(instance, ack_id) else {
            return;
        };
        // Out of the map it is the only one, so that adding to it copies nothing.
        let Some(mut known) = self.entries.remove(instance) else {
            return;
        };
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
            self.entries.put(limit, instance, known);
            if announced.taken {
                self.entries.taken(instance);
            }
        }
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
}

/// What a turn adds, until its ack has come to an end one way or the other.
pub(crate) struct Announcement {
    inner: Arc<Inner>,
    instance_id: String,
    ack_id: Uuid,
}

impl Announcement {
    pub(crate) fn confirm(self) {
        if self.inner.cache.confirm(&self.instance_id, self.ack_id)
            && let Ok(runtime) = Handle::try_current()
        {
            let (inner, instance_id) = (Arc::downgrade(&self.inner), self.instance_id.clone());
            runtime.spawn(async move {
                if let Some(inner) = inner.upgrade() {
                    inner.cache.copy_ahead(&instance_id);
                }
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
