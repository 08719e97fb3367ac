//! Instances that rest: turns that wait for more of their instance's activities to end (`p_rest_ms` of `ack_work_item`).
//!
//! That is worth it where the others end soon. Nobody can know: one of them may take hours beside many that take a moment. So an
//! instance that has rested in vain again and again is left alone for a while.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::swept::SweptMap;

/// How long a turn waits.
pub(crate) const REST: Duration = Duration::from_millis(10);
/// Who has rested so often in vain...
const OFTEN: u32 = 2;
/// ... does not for so long.
const PAUSE: Duration = Duration::from_secs(1);
/// Entries beyond this are swept.
const SWEEP_ABOVE: usize = 1024;

#[derive(Default)]
pub(crate) struct Rests(Mutex<SweptMap<String, Rest>>);

struct Rest {
    until: Instant,
    /// How many ran out before the last activity ended.
    in_vain: u32,
}

impl Rests {
    fn lock(&self) -> MutexGuard<'_, SweptMap<String, Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of these may rest, or go on with it.
    pub(crate) fn are_worth_it<'a>(&self, mut instances: impl Iterator<Item = &'a str>, now: Instant) -> bool {
        let rests = self.lock();
        instances.all(|instance| {
            let is_paused = |rest: &Rest| rest.in_vain >= OFTEN && (rest.until..rest.until + PAUSE).contains(&now);
            !rests.get(instance).is_some_and(is_paused)
        })
    }

    /// Activities of this instance have ended; there are others, and it rests.
    pub(crate) fn begins(&self, instance: &str, now: Instant) {
        let mut rests = self.lock();
        rests.sweep(SWEEP_ABOVE, |rest| rest.until + PAUSE > now);
        let until = now + REST;
        match rests.get_mut(instance) {
            // It has not ended yet, and does not become longer.
            Some(rest) if now < rest.until => {}
            // Another process may have ended the last activity, so only what follows at once counts.
            Some(rest) if now < rest.until + PAUSE => {
                rest.until = until;
                rest.in_vain += 1;
            }
            Some(rest) => rest.until = until,
            None => {
                let rest = Rest { until, in_vain: 0 };
                rests.insert(instance.to_string(), rest);
            }
        }
    }

    /// The last activity of this instance has ended.
    pub(crate) fn ends(&self, instance: &str) {
        self.lock().remove(instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_worth_it(rests: &Rests, now: Instant) -> bool {
        rests.are_worth_it(["other", "i"].into_iter(), now)
    }

    #[test]
    fn who_rests_in_vain_again_and_again_is_left_alone_for_a_while() {
        let rests = Rests::default();
        let mut now = Instant::now();
        for _ in 0..=OFTEN {
            assert!(is_worth_it(&rests, now));
            rests.begins("i", now);
            // Another ends meanwhile.
            rests.begins("i", now + REST / 2);
            now += REST;
        }
        assert!(!is_worth_it(&rests, now));
        assert!(rests.are_worth_it(["other"].into_iter(), now));
        now += PAUSE;
        assert!(is_worth_it(&rests, now));
        rests.begins("i", now);
        assert!(is_worth_it(&rests, now + REST / 2), "it goes on");
        assert!(!is_worth_it(&rests, now + REST), "once more in vain");
        rests.ends("i");
        assert!(is_worth_it(&rests, now + REST));
    }

    #[test]
    fn rests_with_pauses_between_them_are_not_in_vain() {
        let rests = Rests::default();
        let mut now = Instant::now();
        for _ in 0..10 {
            assert!(is_worth_it(&rests, now));
            rests.begins("i", now);
            now += REST + PAUSE;
        }
    }

    #[test]
    fn nothing_is_kept_of_what_rested_long_ago() {
        let rests = Rests::default();
        let now = Instant::now();
        for number in 0..=SWEEP_ABOVE {
            rests.begins(&number.to_string(), now);
        }
        rests.begins("i", now + REST + PAUSE);
        assert_eq!(rests.lock().len(), 1);
    }
}
