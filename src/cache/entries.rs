//! The histories in memory: the least recently used ones are forgotten first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use duroxide::Event;

use super::Known;
use crate::telemetry::metrics;

/// No history takes more than this part of the memory, its copy not counted.
const LARGEST_PART: usize = 8;
/// From so many events on, the copy that the next turn will get is made ahead of it, while nobody waits for it.
pub(super) const COPIED_AHEAD: usize = 500;
/// What an entry takes beside its events.
const ENTRY_BYTES: usize = 256;

/// By instance.
#[derive(Default)]
pub(super) struct Entries {
    by_instance: HashMap<Arc<str>, Entry>,
    by_use: BTreeMap<u64, Arc<str>>,
    /// Those with a copy, in the order in which they were made.
    copies: BTreeMap<u64, Arc<str>>,
    uses: u64,
    pub(super) bytes: usize,
}

struct Entry {
    known: Known,
    /// Of `known.events`, made ahead; and when, in uses.
    copy: Option<(u64, Vec<Event>)>,
    /// A turn has them already: the next one will have others.
    taken: bool,
    /// Of both.
    bytes: usize,
    used: u64,
}

impl Entries {
    pub(super) fn get(&mut self, instance: &str) -> Option<Known> {
        let entry = self.by_instance.get_mut(instance)?;
        let key = self.by_use.remove(&entry.used)?;
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, key);
        Some(entry.known.clone())
    }

    pub(super) fn put(&mut self, limit: usize, instance: &str, known: Known) {
        if let Some(entry) = self.by_instance.get(instance)
            && entry.known.is_of(known.epoch, known.execution_id)
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
        while self.bytes > limit {
            // A copy is made sooner than a history is read.
            if let Some((_, oldest)) = self.copies.first_key_value() {
                let oldest = Arc::clone(oldest);
                self.take_copy(&oldest);
            } else if let Some((_, oldest)) = self.by_use.first_key_value() {
                let oldest = Arc::clone(oldest);
                self.remove(&oldest);
                metrics::cache_eviction();
            } else {
                break;
            }
        }
    }

    fn insert(&mut self, key: Arc<str>, known: Known, bytes: usize) {
        self.uses += 1;
        self.resize(self.bytes + bytes);
        self.by_use.insert(self.uses, Arc::clone(&key));
        let used = self.uses;
        let entry = Entry {
            known,
            copy: None,
            taken: false,
            bytes,
            used,
        };
        self.by_instance.insert(key, entry);
    }

    pub(super) fn remove(&mut self, instance: &str) -> Option<Known> {
        let entry = self.by_instance.remove(instance)?;
        self.by_use.remove(&entry.used);
        if let Some((made, _)) = &entry.copy {
            self.copies.remove(made);
        }
        self.resize(self.bytes - entry.bytes);
        Some(entry.known)
    }

    /// What should be copied ahead, as long as no turn has it and there is room.
    pub(super) fn to_copy(&self, limit: usize, instance: &str) -> Option<Known> {
        let entry = self.by_instance.get(instance)?;
        let is_wanted = entry.known.events.len() >= COPIED_AHEAD && entry.copy.is_none() && !entry.taken;
        let has_room = self.bytes + entry.known.bytes <= limit;
        (is_wanted && has_room).then(|| entry.known.clone())
    }

    pub(super) fn keep_copy(&mut self, instance: &str, copy: Vec<Event>) {
        let Some(entry) = self.by_instance.get_mut(instance) else {
            return;
        };
        let bytes = entry.known.bytes;
        self.uses += 1;
        entry.copy = Some((self.uses, copy));
        entry.bytes += bytes;
        self.copies.insert(self.uses, instance.into());
        self.resize(self.bytes + bytes);
    }

    pub(super) fn take_events(&mut self, instance: &str, known: &Known) -> Option<Vec<Event>> {
        let entry = self.by_instance.get_mut(instance)?;
        if !Arc::ptr_eq(&entry.known.events, &known.events) {
            return None;
        }
        entry.taken = true;
        self.take_copy(instance)
    }

    /// A turn has what is known, from elsewhere.
    pub(super) fn taken(&mut self, instance: &str) {
        if let Some(entry) = self.by_instance.get_mut(instance) {
            entry.taken = true;
        }
    }

    fn take_copy(&mut self, instance: &str) -> Option<Vec<Event>> {
        let entry = self.by_instance.get_mut(instance)?;
        let (made, copy) = entry.copy.take()?;
        let bytes = entry.known.bytes;
        entry.bytes -= bytes;
        self.copies.remove(&made);
        self.resize(self.bytes - bytes);
        Some(copy)
    }

    fn resize(&mut self, bytes: usize) {
        metrics::cache_bytes(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.resize(0);
    }
}
