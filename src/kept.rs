//! What is there for those who have yet to ask for it, and goes back to the queue if they do not.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use crate::granted::Granted;
use crate::inner::Inner;
use crate::poll::Request;
use crate::reason::Reason;

/// How long something waits for somebody who has only to come back.
pub(crate) const RETURNING: Duration = Duration::from_millis(50);
/// How long something waits for somebody who only usually asks for it (`habit.rs`).
pub(crate) const EXPECTED: Duration = Duration::from_millis(5);
/// How long a keeper stays after there was something.
const ATTENDED: Duration = Duration::from_millis(100);
/// Numbers of keepers. One may outlive its group, and must not be taken for that of the next.
static KEEPERS: AtomicU64 = AtomicU64::new(1);
/// A keeper that has not looked for so long may be of a runtime that does nothing at the moment.
const ABSENT: Duration = Duration::from_millis(50);

/// All that a group keeps. What goes back does so under the lock of the group: whoever has seen that it is no longer here can wait for it
/// (`GoingBack`).
pub(crate) struct Kept<T> {
    items: VecDeque<Item<T>>,
    /// Whether there is a keeper, and until when also if there is nothing to keep.
    attended_until: Option<Instant>,
    /// The number of the keeper, and when it looked last, or was appointed.
    keeper: u64,
    looked_at: Option<Instant>,
}

/// How much went back that was for those who come back, and for those who were expected to ask.
#[derive(Default)]
pub(crate) struct WentBack {
    pub(crate) for_returning: usize,
    pub(crate) for_expected: usize,
}

struct Item<T> {
    granted: Granted<T>,
    /// Why it is here.
    reason: Reason,
    /// When others should have it.
    until: Instant,
    /// When too much of its lease has passed for it to be of use.
    useless_at: Instant,
    /// Where it landed.
    runtime: Option<Handle>,
}

impl<T> Item<T> {
    fn hand_back(self) {
        // Where a program closes its provider there may be no runtime.
        let elsewhere = self.runtime.filter(|_| Handle::try_current().is_err());
        let _there = elsewhere.as_ref().map(Handle::enter);
        self.granted.hand_back();
    }
}

/// Whether something can be kept for those who have yet to ask: what nobody asks for is handed back by a task, and where there is one thread it may
/// never run, as in a program that does nothing but enqueue.
pub(crate) fn may_keep() -> bool {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread)
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            attended_until: None,
            keeper: 0,
            looked_at: None,
        }
    }
}

impl<T> Kept<T> {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// `lock_timeout`: how long they are leased. The number of a new keeper, if somebody new has to see to what is overdue.
    pub(crate) fn keep(
        &mut self,
        granted: impl IntoIterator<Item = Granted<T>>,
        reason: Reason,
        lock_timeout: Duration,
    ) -> Option<u64> {
        let now = Instant::now();
        let time = match reason {
            Reason::Next => RETURNING,
            _ => EXPECTED,
        };
        // Whoever gets it has most of the lease.
        let useless_at = now + lock_timeout / 4;
        let until = useless_at.min(now + time);
        self.items.extend(granted.into_iter().map(|granted| Item {
            granted,
            reason,
            until,
            useless_at,
            runtime: Handle::try_current().ok(),
        }));
        let is_attended = self.attended_until.replace(until + ATTENDED).is_some();
        if is_attended && self.looked_at.is_some_and(|looked_at| now < looked_at + ABSENT) {
            return None;
        }
        self.keeper = KEEPERS.fetch_add(1, Ordering::Relaxed);
        self.looked_at = Some(now);
        Some(self.keeper)
    }

    pub(crate) fn take(&mut self) -> Option<Granted<T>> {
        self.items.pop_front().map(|item| item.granted)
    }

    pub(crate) fn hand_back_useless(&mut self, now: Instant) -> WentBack {
        self.hand_back_if(|item| item.useless_at <= now)
    }

    pub(crate) fn hand_back_overdue(&mut self, now: Instant) -> WentBack {
        self.hand_back_if(|item| item.until <= now)
    }

    /// What is about one of these instances: something has happened to them since.
    pub(crate) fn hand_back_of(&mut self, instances: &HashSet<&str>) {
        self.hand_back_if(|item| {
            item.granted
                .instance()
                .is_some_and(|instance| instances.contains(instance))
        });
    }

    pub(crate) fn hand_back_all(&mut self) -> WentBack {
        self.hand_back_if(|_| true)
    }

    fn hand_back_if(&mut self, mut goes_back: impl FnMut(&Item<T>) -> bool) -> WentBack {
        let mut went_back = WentBack::default();
        for _ in 0..self.items.len() {
            match self.items.pop_front() {
                Some(item) if goes_back(&item) => {
                    match item.reason {
                        Reason::Next => went_back.for_returning += 1,
                        _ => went_back.for_expected += 1,
                    }
                    item.hand_back();
                }
                item => self.items.extend(item),
            }
        }
        went_back
    }

    /// Nobody sees to it any more. The runtime of its keeper ends, but others may go on.
    fn is_deserted(&mut self) {
        self.attended_until = None;
        for item in std::mem::take(&mut self.items) {
            let runtime = item.runtime.clone();
            let _there = runtime.as_ref().map(Handle::enter);
            item.granted.hand_back();
        }
    }

    /// A keeper has looked. Whether it still has to, because there is something, or was lately.
    fn is_attended(&mut self, now: Instant) -> bool {
        self.looked_at = Some(now);
        self.attended_until.take_if(|until| *until <= now);
        self.attended_until.is_some()
    }
}

/// Gives others what nobody has asked for. A group that keeps something has one, and for a while after: a task for each item would cost more
/// than what is spared. When it is cancelled, nobody of its runtime will ask.
pub(crate) struct Keeper<R: Request> {
    inner: Weak<Inner>,
    request: R,
    number: u64,
    attends: bool,
}

impl<R: Request> Keeper<R> {
    pub(crate) fn new(inner: &Arc<Inner>, request: &R, number: u64) -> Self {
        Self {
            inner: Arc::downgrade(inner),
            request: request.clone(),
            number,
            attends: true,
        }
    }

    pub(crate) fn spawn(mut self) {
        tokio::spawn(async move {
            while self.attends {
                tokio::time::sleep(EXPECTED).await;
                self.attends = self.hand_back(Instant::now());
            }
        });
    }

    /// Whether there may be more.
    fn hand_back(&self, now: Instant) -> bool {
        let Some(inner) = self.inner.upgrade() else {
            return false;
        };
        match R::line(&inner).lock().get_mut(&self.request) {
            Some(group) if group.kept.keeper == self.number => {
                group.hand_back_overdue(now);
                group.kept.is_attended(now)
            }
            // Another was appointed while it was away.
            _ => false,
        }
    }
}

impl<R: Request> Drop for Keeper<R> {
    fn drop(&mut self) {
        if self.attends
            && let Some(inner) = self.inner.upgrade()
            && let Some(group) = R::line(&inner).lock().get_mut(&self.request)
            && group.kept.keeper == self.number
        {
            group.kept.is_deserted();
        }
    }
}
