//! The leases this process holds: when each has certainly ended, by its own monotonic clock, and who will ask for more after it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::swept::SweptMap;

/// How long to go on for a lease that another provider object was granted.
const UNKNOWN_LEASE: Duration = Duration::from_secs(5);
/// Entries beyond this are swept of leases that ended long ago (tasks that died with their token).
const SWEEP_ABOVE: usize = 1024;

/// What usually takes longer than this has no influence on what others do.
const SHORT: Duration = Duration::from_millis(15);
/// What usually takes longer than this is not waited for.
const A_MOMENT: Duration = Duration::from_millis(4);
/// Nobody waits longer than this for the others.
const PATIENCE: Duration = Duration::from_millis(2);
/// Of what the last one took, so much counts for what they usually take.
const WEIGHT: u32 = 8;

/// Leases by their id.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<SweptMap<Uuid, Held>>,
    /// How long the work of those who come back usually takes, as far as is known.
    usual: Mutex<Option<Duration>>,
    /// One of them has finished.
    finished: Notify,
}

struct Held {
    end: Instant,
    /// The group of fetches its holder comes back to, if it does.
    returns_to: Option<u64>,
    /// When such a holder began to work.
    begun: Option<Instant>,
}

impl Leases {
    /// A lease was granted or extended by `duration`, and the answer has just arrived: the server counted
    /// from an earlier moment, so it certainly ends by now plus `duration`.
    pub(crate) fn extended(&self, lease: Uuid, duration: Duration) {
        let now = Instant::now();
        let end = now.checked_add(duration).unwrap_or(now + UNKNOWN_LEASE);
        let mut held = self.lock();
        held.sweep(SWEEP_ABOVE, |held| held.end > now);
        let new = Held {
            end,
            returns_to: None,
            begun: None,
        };
        held.entry(lease).or_insert(new).end = end;
    }

    /// Whoever holds this lease asks the same of this group again as soon as it has ended it.
    pub(crate) fn returns_to(&self, lease: Uuid, group: u64) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.returns_to = Some(group);
            held.begun = Some(Instant::now());
        }
    }

    /// Whoever holds this lease has finished its work, and is about to end it.
    pub(crate) fn finished(&self, lease: Uuid) {
        let begun = self.lock().get_mut(&lease).and_then(|held| held.begun.take());
        if let Some(begun) = begun {
            let mut usual = self.usual();
            let took = begun.elapsed();
            *usual = Some(usual.map_or(took, |usual| (usual * (WEIGHT - 1) + took) / WEIGHT));
            drop(usual);
            self.finished.notify_waiters();
        }
    }

    /// Whether what those do who come back is soon done.
    pub(crate) fn work_is_short(&self) -> bool {
        self.usual().is_some_and(|usual| usual <= SHORT)
    }

    /// Whether it is done almost at once.
    pub(crate) fn work_takes_a_moment(&self) -> bool {
        self.usual().is_some_and(|usual| usual <= A_MOMENT)
    }

    /// Waits until those have finished who are probably about to.
    pub(crate) async fn company(&self) {
        let since = Instant::now();
        loop {
            let mut finished = pin!(self.finished.notified());
            finished.as_mut().enable();
            if !self.expects_somebody(since, Instant::now()) {
                return;
            }
            let until = tokio::time::Instant::from_std(since + PATIENCE);
            if tokio::time::timeout_at(until, finished).await.is_err() {
                return;
            }
        }
    }

    /// Whether somebody who began before `since` has probably almost finished.
    fn expects_somebody(&self, since: Instant, now: Instant) -> bool {
        let Some(usual) = self.usual().filter(|usual| *usual <= A_MOMENT) else {
            return false;
        };
        let is_expected = |begun: Instant| begun <= since && now < begun + usual * 2;
        self.lock().values().filter_map(|held| held.begun).any(is_expected)
    }

    fn usual(&self) -> MutexGuard<'_, Option<Duration>> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group to which most of those return who hold these leases, and how many they are.
    pub(crate) fn most_return_to(&self, leases: impl Iterator<Item = Uuid>) -> Option<(u64, usize)> {
        let mut groups = HashMap::new();
        let held = self.lock();
        for group in leases.filter_map(|lease| held.get(&lease)?.returns_to) {
            *groups.entry(group).or_insert(0) += 1;
        }
        groups.into_iter().max_by_key(|(_, count)| *count)
    }

    fn lock(&self) -> MutexGuard<'_, SweptMap<Uuid, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease was given back.
    pub(crate) fn ended(&self, lease: Uuid) {
        self.lock().remove(&lease);
    }

    /// Whether a lease was granted to this process and not given back by it.
    pub(crate) fn holds(&self, lease: Uuid) -> bool {
        self.lock().contains_key(&lease)
    }

    /// A function that tells when the lease has certainly ended. It follows renewals.
    pub(crate) fn end_of(&self, lease: Uuid) -> impl Fn() -> Instant + '_ {
        let unknown = Instant::now() + UNKNOWN_LEASE;
        move || self.lock().get(&lease).map_or(unknown, |held| held.end)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Three who come back, of whom one has just finished what took it so long.
    fn three(usual: Duration) -> (Leases, [Uuid; 3]) {
        let leases = Leases::default();
        let ids = [(); 3].map(|()| Uuid::new_v4());
        for id in ids {
            leases.extended(id, Duration::from_secs(60));
            leases.returns_to(id, 1);
        }
        leases.finished(ids[0]);
        *leases.usual() = Some(usual);
        (leases, ids)
    }

    #[test]
    fn those_are_waited_for_who_usually_take_a_moment() {
        let (leases, [_, one, other]) = three(A_MOMENT);
        let now = Instant::now();
        assert!(leases.work_is_short());
        assert!(!Leases::default().work_is_short(), "nothing is known of it");
        assert!(leases.expects_somebody(now, now));
        assert!(!leases.expects_somebody(now, now + A_MOMENT * 2), "they take longer");
        let earlier = now.checked_sub(Duration::from_secs(1)).expect("up for a second");
        assert!(!leases.expects_somebody(earlier, now), "they began later");
        leases.finished(one);
        assert!(leases.expects_somebody(now, now));
        leases.ended(other);
        assert!(!leases.expects_somebody(now, now), "there is nobody");

        let (leases, _) = three(SHORT);
        assert!(leases.work_is_short());
        assert!(!leases.expects_somebody(now, Instant::now()), "they take long");
        let (leases, _) = three(SHORT + Duration::from_millis(1));
        assert!(!leases.work_is_short());
    }

    #[tokio::test]
    async fn nobody_waits_longer_than_until_the_others_have_finished() {
        let (leases, [_, one, other]) = three(A_MOMENT);
        leases.company().await;
        leases.finished(one);
        leases.finished(other);
        assert!(leases.company().now_or_never().is_some());
    }

    #[test]
    fn most_of_those_who_come_back_decide() {
        let leases = Leases::default();
        let ids = [(); 5].map(|()| Uuid::new_v4());
        for id in ids {
            leases.extended(id, Duration::from_secs(1));
        }
        assert_eq!(leases.most_return_to(ids.into_iter()), None);
        for (id, group) in ids.into_iter().zip([7, 8, 8, 9]) {
            leases.returns_to(id, group);
        }
        // Renewals change nothing.
        leases.extended(ids[1], Duration::from_secs(2));
        assert_eq!(leases.most_return_to(ids.into_iter()), Some((8, 2)));
        leases.ended(ids[1]);
        leases.ended(ids[2]);
        assert_eq!(leases.most_return_to(ids[..3].iter().copied()), Some((7, 1)));
    }
}
