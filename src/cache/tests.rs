use std::sync::Arc;

use duroxide::{Event, EventKind};
use uuid::Uuid;

use super::entries::COPIED_AHEAD;
use super::{HistoryCache, Known};

const INSTANCE: &str = "instance";
const EPOCH: i64 = 7;
const PLENTY: usize = 64 << 20;

fn event(id: usize) -> Event {
    let kind = EventKind::ExternalEvent {
        name: "note".to_string(),
        data: format!("the {id}th"),
    };
    Event::with_event_id(id as u64, "instance", 1, None, kind)
}

/// An instance with so many events in memory.
fn remember(cache: &HistoryCache, instance: &str, events: usize) -> Known {
    let events: Vec<Event> = (1..=events).map(event).collect();
    let texts = vec!["{}".to_string(); events.len()];
    let mut known = Known::nothing(EPOCH, 1);
    known.append(events, &texts);
    cache.put(instance, known.clone());
    known
}

/// A turn that adds one event is about to be acked.
fn announce(cache: &HistoryCache, instance: &str) -> Uuid {
    let next = known(cache, instance).last_event_id as usize + 1;
    let ack_id = Uuid::from_u128(next as u128);
    let texts = Arc::new(vec!["{}".to_string()]);
    assert!(cache.announce(instance, ack_id, 1, vec![event(next)], texts));
    ack_id
}

/// It is acked. What is known then, if it should be copied ahead.
fn ack(cache: &HistoryCache, instance: &str) -> Option<Known> {
    let ack_id = announce(cache, instance);
    cache.confirm(instance, ack_id).then(|| known(cache, instance))
}

fn turn(cache: &HistoryCache, instance: &str) -> Vec<Event> {
    cache.take_events(instance, known(cache, instance))
}

fn known(cache: &HistoryCache, instance: &str) -> Known {
    cache.get(instance).expect("in memory")
}

fn bytes(cache: &HistoryCache) -> usize {
    cache.lock().entries.bytes
}

#[test]
fn a_turn_gets_the_copy_made_ahead() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, INSTANCE, COPIED_AHEAD);
    let acked = ack(&cache, INSTANCE).expect("worth a copy");
    let without = bytes(&cache);
    let copy = acked.events.to_vec();
    let address = copy.as_ptr();
    cache.keep_copy(INSTANCE, &acked, copy);
    assert_eq!(bytes(&cache), without + acked.bytes);

    let events = turn(&cache, INSTANCE);
    assert_eq!(events.as_ptr(), address, "copied again");
    assert_eq!(events, *acked.events);
    assert_eq!(bytes(&cache), without);
    // There is only one; and what is known stays known.
    let events = turn(&cache, INSTANCE);
    assert_ne!(events.as_ptr(), address);
    assert_eq!(events, *acked.events);
}

#[test]
fn a_copy_that_comes_too_late_is_dropped() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, INSTANCE, COPIED_AHEAD);
    let first = ack(&cache, INSTANCE).expect("worth a copy");
    let second = ack(&cache, INSTANCE).expect("worth a copy");
    let without = bytes(&cache);
    cache.keep_copy(INSTANCE, &first, first.events.to_vec());
    assert_eq!(bytes(&cache), without);
    assert_eq!(turn(&cache, INSTANCE), *second.events);
    // The turn has its events now.
    cache.copy_ahead(INSTANCE);
    cache.keep_copy(INSTANCE, &second, second.events.to_vec());
    assert_eq!(bytes(&cache), without);

    // Refuted by the database, and read again.
    cache.forget(INSTANCE);
    remember(&cache, INSTANCE, COPIED_AHEAD);
    cache.keep_copy(INSTANCE, &second, second.events.to_vec());
    assert_eq!(turn(&cache, INSTANCE).len(), COPIED_AHEAD);
    cache.forget(INSTANCE);
    cache.keep_copy(INSTANCE, &second, second.events.to_vec());
    cache.copy_ahead(INSTANCE);
    assert_eq!(bytes(&cache), 0);
}

#[test]
fn a_copy_goes_with_what_it_was_made_of() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, INSTANCE, COPIED_AHEAD);
    assert!(ack(&cache, INSTANCE).is_some());
    cache.copy_ahead(INSTANCE);
    // Nobody else has it: the event is added in place, and the address of the events stays the same.
    let second = ack(&cache, INSTANCE).expect("worth a copy");
    assert_eq!(turn(&cache, INSTANCE), *second.events);
    assert!(ack(&cache, INSTANCE).is_some());
    cache.copy_ahead(INSTANCE);
    cache.forget(INSTANCE);
    assert_eq!(bytes(&cache), 0);
}

/// A turn that learned of its history before gets that, and not what was added since.
#[test]
fn only_what_is_known_now_has_a_copy() {
    let cache = HistoryCache::new(PLENTY);
    let before = remember(&cache, INSTANCE, COPIED_AHEAD);
    let acked = ack(&cache, INSTANCE).expect("worth a copy");
    cache.copy_ahead(INSTANCE);
    assert_eq!(cache.take_events(INSTANCE, before).len(), COPIED_AHEAD);
    assert_eq!(cache.take_events(INSTANCE, acked).len(), COPIED_AHEAD + 1);
}

/// The next turn begins before the answer to the ack is there: no copy is made for a turn that has its events.
#[test]
fn a_turn_that_does_not_wait_for_the_ack_needs_no_copy() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, INSTANCE, COPIED_AHEAD);
    let ack_id = announce(&cache, INSTANCE);
    let next = cache
        .get_up_to(INSTANCE, EPOCH, 1, COPIED_AHEAD as i64 + 1, true)
        .expect("announced");
    assert_eq!(cache.take_events(INSTANCE, next).len(), COPIED_AHEAD + 1);
    assert!(!cache.confirm(INSTANCE, ack_id));
    assert!(ack(&cache, INSTANCE).is_some(), "the one after it does");
}

#[test]
fn short_histories_are_not_copied_ahead() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, INSTANCE, COPIED_AHEAD - 2);
    assert!(ack(&cache, INSTANCE).is_none());
    assert!(ack(&cache, INSTANCE).is_some());
}

#[test]
fn copies_give_way_to_histories() {
    let size = remember(&HistoryCache::new(PLENTY), INSTANCE, COPIED_AHEAD).bytes;
    // Room for ten of them.
    let limit = size * 21 / 2;
    for copied in ["instance 0", "instance 4", "instance 8"] {
        let cache = HistoryCache::new(limit);
        let names: Vec<String> = (0..10).map(|number| format!("instance {number}")).collect();
        for name in &names[..9] {
            remember(&cache, name, COPIED_AHEAD);
        }
        assert!(ack(&cache, copied).is_some(), "there is room for a copy");
        cache.copy_ahead(copied);
        assert!(bytes(&cache) <= limit && bytes(&cache) > size * 10);
        assert!(ack(&cache, &names[1]).is_none(), "there is none for another");
        cache.copy_ahead(&names[1]);
        assert!(bytes(&cache) <= limit, "kept where there is no room");

        // Whoever has the copy, and whenever it was used: another history is worth more.
        remember(&cache, &names[9], COPIED_AHEAD);
        assert!(bytes(&cache) <= limit);
        for name in &names {
            assert!(cache.get(name).is_some(), "{name} was forgotten for a copy");
        }
    }
}
