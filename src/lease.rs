//! When the leases this process holds have certainly ended, by its own monotonic clock.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// How long to go on for a lease that another provider object was granted.
const UNKNOWN_LEASE: Duration = Duration::from_secs(5);
/// Entries beyond this are swept of leases that ended long ago (tasks that died with their token).
const SWEEP_ABOVE: usize = 1024;

/// Leases by their id.
#[derive(Default)]
pub(crate) struct Leases {
    ends: Mutex<HashMap<Uuid, Instant>>,
}

impl Leases {
    /// A lease was granted or extended by `duration`, and the answer has just arrived: the server counted
    /// from an earlier moment, so it certainly ends by now plus `duration`.
    pub(crate) fn extended(&self, lease: Uuid, duration: Duration) {
        let now = Instant::now();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() > SWEEP_ABOVE {
            ends.retain(|_, end| *end > now);
        }
        ends.insert(lease, now.checked_add(duration).unwrap_or(now + UNKNOWN_LEASE));
    }

    /// A lease was given back.
    pub(crate) fn ended(&self, lease: Uuid) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease);
    }

    /// Whether a lease was granted to this process and not given back by it.
    pub(crate) fn holds(&self, lease: Uuid) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.contains_key(&lease)
    }

    /// A function that tells when the lease has certainly ended. It follows renewals.
    pub(crate) fn end_of(&self, lease: Uuid) -> impl Fn() -> Instant + '_ {
        let unknown = Instant::now() + UNKNOWN_LEASE;
        move || {
            let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            ends.get(&lease).copied().unwrap_or(unknown)
        }
    }
}
