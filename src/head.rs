//! Where the line of activities begins.
//!
//! Activities are claimed at one end of an index and added at the other, and what was claimed stays in it until the next vacuum. A look that
//! begins at the beginning passes all of that; one that begins where the last one found something does not. What turns up behind that place
//! later, because somebody had it locked or committed late, is found by the looks that go back to the beginning: one a second, and
//! each that found too little otherwise. From then on looks begin there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long looks may pass over what is behind the head.
const ALL_AGAIN: Duration = Duration::from_secs(1);
/// How far behind the head they begin: what was added there is committed by then, as a rule.
const MARGIN_MS: i64 = 250;
/// Tag filters beyond this begin at the beginning again.
const MAX_FILTERS: usize = 1000;

/// The heads of the lines, by tag filter.
#[derive(Default)]
pub(crate) struct Heads(Mutex<HashMap<Option<Vec<String>>, Head>>);

struct Head {
    /// When what was claimed last was due, by the server's clock.
    due_ms: i64,
    /// When the look went out that claimed it.
    sent: Instant,
    /// When the last look went out that went back to the beginning.
    all_seen: Instant,
}

impl Heads {
    /// Where a look begins; None: at the beginning.
    pub(crate) fn begin(&self, tags: &Option<Vec<String>>, now: Instant) -> Option<i64> {
        let heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let head = heads.get(tags)?;
        (now.saturating_duration_since(head.all_seen) < ALL_AGAIN).then(|| head.due_ms.saturating_sub(MARGIN_MS))
    }

    /// What a look saw that went out at `sent`. `due_ms`: when the first it claimed was due; the time of the look, if it claimed nothing. `all`: it went back to
    /// the beginning.
    pub(crate) fn seen(&self, tags: &Option<Vec<String>>, sent: Instant, due_ms: i64, all: bool) {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match heads.get_mut(tags) {
            Some(head) => {
                if sent >= head.sent {
                    head.due_ms = due_ms;
                    head.sent = sent;
                } else {
                    // Overtaken by one that may have found more behind it.
                    head.due_ms = head.due_ms.min(due_ms);
                }
                if all {
                    head.all_seen = head.all_seen.max(sent);
                }
            }
            None if all => {
                if heads.len() >= MAX_FILTERS {
                    heads.clear();
                }
                let head = Head {
                    due_ms,
                    sent,
                    all_seen: sent,
                };
                heads.insert(tags.clone(), head);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_begin_behind_the_head_until_it_is_time_for_all_again() {
        let heads = Heads::default();
        let (any, some) = (None, Some(vec![String::new()]));
        let start = Instant::now();
        assert_eq!(heads.begin(&some, start), None);
        heads.seen(&some, start, 10_000, true);
        assert_eq!(heads.begin(&some, start), Some(10_000 - MARGIN_MS));
        assert_eq!(heads.begin(&any, start), None, "another filter, another line");

        let later = start + ALL_AGAIN / 2;
        heads.seen(&some, later, 11_000, false);
        assert_eq!(heads.begin(&some, later), Some(11_000 - MARGIN_MS));
        assert_eq!(
            heads.begin(&some, start + ALL_AGAIN),
            None,
            "only a look at all of them counts"
        );
        heads.seen(&some, start + ALL_AGAIN, 10_000, true);
        // Those that were overtaken.
        heads.seen(&some, later, 12_000, false);
        assert_eq!(heads.begin(&some, start + ALL_AGAIN), Some(10_000 - MARGIN_MS));
        heads.seen(&some, later, 9_000, true);
        assert_eq!(heads.begin(&some, start + ALL_AGAIN), Some(9_000 - MARGIN_MS));
    }

    #[test]
    fn filters_do_not_pile_up() {
        let heads = Heads::default();
        let start = Instant::now();
        for number in 0..=MAX_FILTERS {
            heads.seen(&Some(vec![number.to_string()]), start, 10_000, true);
        }
        assert!(heads.0.lock().expect("heads").len() <= MAX_FILTERS);
    }
}
