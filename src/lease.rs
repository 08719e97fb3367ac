//! The leases this process holds: when each has certainly ended, by its own monotonic clock, and who will ask for more after it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// How long to go on for a lease that another provider object was granted.
const UNKNOWN_LEASE: Duration = Duration::from_secs(5);
/// Entries beyond this are swept of leases that ended long ago (tasks that died with their token).
const SWEEP_ABOVE: usize = 1024;

/// Leases by their id.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<Uuid, Held>>,
}

struct Held {
    end: Instant,
    /// The group of fetches its holder comes back to, if it does.
    returns_to: Option<u64>,
}

impl Leases {
    /// A lease was granted or extended by `duration`, and the answer has just arrived: the server counted
    /// from an earlier moment, so it certainly ends by now plus `duration`.
    pub(crate) fn extended(&self, lease: Uuid, duration: Duration) {
        let now = Instant::now();
        let end = now.checked_add(duration).unwrap_or(now + UNKNOWN_LEASE);
        let mut held = self.lock();
        if held.len() > SWEEP_ABOVE {
            held.retain(|_, held| held.end > now);
        }
        let new = Held { end, returns_to: None };
        held.entry(lease).or_insert(new).end = end;
    }

    /// Whoever holds this lease asks the same of this group again as soon as it has ended it.
    pub(crate) fn returns_to(&self, lease: Uuid, group: u64) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.returns_to = Some(group);
        }
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Held>> {
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
    use super::*;

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
