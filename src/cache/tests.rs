use std::sync::Arc;

use duroxide::{Event, EventKind};
use uuid::Uuid;

use super::{COPIED_AHEAD, HistoryCache, Known};

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

/// A turn that adds one event is acked. What should be copied ahead.
fn ack(cache: &HistoryCache, instance: &str) -> Option<Known> {
    let next = cache.get(instance)?.last_event_id as usize + 1;
    let ack_id = Uuid::from_u128(next as u128);
    let texts = Arc::new(vec!["{}".to_string()]);
    assert!(cache.announce(instance, ack_id, 1, vec![event(next)], texts));
    cache.confirm(instance, ack_id)
}

fn copy_ahead(cache: &HistoryCache, instance: &str, known: &Known) {
    cache.keep_copy(instance, known, known.events.to_vec());
}

fn known(cache: &HistoryCache, instance: &str) -> Known {
    cache.get(instance).expect("in memory")
}

fn bytes(cache: &HistoryCache) -> usize {
    cache.lock().bytes
}

#[test]
fn a_turn_gets_the_copy_made_ahead() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, "instance", COPIED_AHEAD);
    let acked = ack(&cache, "instance").expect("worth a copy");
    let without = bytes(&cache);
    let copy = acked.events.to_vec();
    let address = copy.as_ptr();
    cache.keep_copy("instance", &acked, copy);
    assert_eq!(bytes(&cache), without + acked.bytes);

    let events = cache.take_events("instance", known(&cache, "instance"));
    assert_eq!(events.as_ptr(), address, "copied again");
    assert_eq!(events, *acked.events);
    assert_eq!(bytes(&cache), without);
    // There is only one; and what is known stays known.
    let events = cache.take_events("instance", known(&cache, "instance"));
    assert_ne!(events.as_ptr(), address);
    assert_eq!(events, *acked.events);
}

#[test]
fn a_copy_that_comes_too_late_is_dropped() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, "instance", COPIED_AHEAD);
    let first = ack(&cache, "instance").expect("worth a copy");
    let second = ack(&cache, "instance").expect("worth a copy");
    let without = bytes(&cache);
    copy_ahead(&cache, "instance", &first);
    assert_eq!(bytes(&cache), without);
    assert_eq!(cache.take_events("instance", known(&cache, "instance")), *second.events);
    // Refuted by the database, and read again.
    cache.forget("instance");
    remember(&cache, "instance", COPIED_AHEAD);
    copy_ahead(&cache, "instance", &second);
    assert_eq!(
        cache.take_events("instance", known(&cache, "instance")).len(),
        COPIED_AHEAD
    );
    cache.forget("instance");
    copy_ahead(&cache, "instance", &second);
    assert_eq!(bytes(&cache), 0);
}

#[test]
fn a_copy_goes_with_what_it_was_made_of() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, "instance", COPIED_AHEAD);
    let first = ack(&cache, "instance").expect("worth a copy");
    copy_ahead(&cache, "instance", &first);
    drop(first);
    // Nobody else has it now: the events are added in place, and their address stays the same.
    let second = ack(&cache, "instance").expect("worth a copy");
    assert_eq!(cache.take_events("instance", known(&cache, "instance")), *second.events);
    copy_ahead(&cache, "instance", &second);
    cache.forget("instance");
    assert_eq!(bytes(&cache), 0);
}

/// A turn that was fetched before others were acked elsewhere gets what it was promised.
#[test]
fn only_what_is_known_now_has_a_copy() {
    let cache = HistoryCache::new(PLENTY);
    let before = remember(&cache, "instance", COPIED_AHEAD);
    let acked = ack(&cache, "instance").expect("worth a copy");
    copy_ahead(&cache, "instance", &acked);
    assert_eq!(cache.take_events("instance", before).len(), COPIED_AHEAD);
    assert_eq!(cache.take_events("instance", acked).len(), COPIED_AHEAD + 1);
}

#[test]
fn short_histories_are_not_copied_ahead() {
    let cache = HistoryCache::new(PLENTY);
    remember(&cache, "instance", COPIED_AHEAD - 2);
    assert!(ack(&cache, "instance").is_none());
    assert!(ack(&cache, "instance").is_some());
}

#[test]
fn copies_give_way_to_histories() {
    let size = remember(&HistoryCache::new(PLENTY), "instance", COPIED_AHEAD).bytes;
    // Room for ten of them.
    let limit = size * 21 / 2;
    let cache = HistoryCache::new(limit);
    let names: Vec<String> = (0..10).map(|number| format!("instance {number}")).collect();
    for name in &names[..9] {
        remember(&cache, name, COPIED_AHEAD);
    }
    let acked = ack(&cache, &names[0]).expect("there is room for a copy");
    copy_ahead(&cache, &names[0], &acked);
    assert!(bytes(&cache) <= limit && bytes(&cache) > size * 10);
    assert!(ack(&cache, &names[1]).is_none(), "there is none for another");
    copy_ahead(&cache, &names[1], &known(&cache, &names[1]));
    assert!(bytes(&cache) <= limit, "kept where there is no room");

    // The copy belongs to the one that was not used for longest.
    for name in &names[1..9] {
        cache.get(name);
    }
    remember(&cache, &names[9], COPIED_AHEAD);
    assert!(bytes(&cache) <= limit);
    for name in &names {
        assert!(cache.get(name).is_some(), "{name} was forgotten for a copy");
    }
}
