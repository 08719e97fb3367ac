//! What those who end something ask for next, looked for while they end it.
//!
//! A worker that has acked an activity fetches the next one. When nobody of its process waits for any, there are probably some, and
//! they are looked for beside the call that acks: they are there before they are asked for, and the ack itself is as short as it can be,
//! as are its locks. Where activities are short, twice as many are looked for, so that every other ack needs no look.
//!
//! Only for those who wait for work when they fetch, because others may not come back; and not once a fetch that waited
//! was dropped, until there is another: that is how a runtime begins to shut down. Should it end all the same before something can
//! be handed back (two for each worker at most), that can be had when its lease ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::granted::Granted;
use crate::habit::EXPECTED;
use crate::inner::Inner;
use crate::look::send_look;
use crate::poll::{Line, Request};
use crate::reason::Reason;

/// The longest time for which something is kept for somebody who has only to come back.
const RETURNING: Duration = Duration::from_millis(50);

/// How long somebody goes on to see to it after there was something.
const ATTENDED: Duration = Duration::from_millis(100);

/// How long what was looked for, or handed over, for that reason waits for somebody who has yet to ask for it: then others can have it.
/// Whoever gets it has most of the lease.
pub(crate) fn kept_for<R: Request>(request: &R, reason: Reason) -> Duration {
    let time = match reason {
        Reason::Next => RETURNING,
        _ => EXPECTED,
    };
    time.min(request.lock_timeout() / 4)
}

/// What is there for those who have yet to ask for it.
pub(crate) struct Kept<T> {
    /// Each until then.
    items: VecDeque<(Granted<T>, Instant)>,
    /// Whether somebody sees to what is overdue, and until when also if there is nothing.
    attended_until: Option<Instant>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            attended_until: None,
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

    /// Whether somebody new has to see to what is overdue.
    pub(crate) fn keep(&mut self, granted: impl IntoIterator<Item = Granted<T>>, until: Instant) -> bool {
        self.items.extend(granted.into_iter().map(|granted| (granted, until)));
        self.attended_until.replace(until + ATTENDED).is_none()
    }

    /// The first of all.
    pub(crate) fn take(&mut self) -> Option<Granted<T>> {
        self.items.pop_front().map(|(granted, _)| granted)
    }

    /// What has waited long enough.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<Granted<T>> {
        let is_overdue = |(_, until): &(Granted<T>, Instant)| *until <= now;
        if !self.items.iter().any(is_overdue) {
            return Vec::new();
        }
        let overdue: VecDeque<_>;
        (overdue, self.items) = std::mem::take(&mut self.items).into_iter().partition(is_overdue);
        overdue.into_iter().map(|(granted, _)| granted).collect()
    }

    /// Whether somebody still has to see to it, because there is something, or was lately.
    fn is_attended(&mut self, now: Instant) -> bool {
        self.attended_until.take_if(|until| *until <= now);
        self.attended_until.is_some()
    }
}

impl<R: Request> Line<R> {
    /// So many are about to come back to this group: looks for what they will ask for, if nobody does so already. `ahead`: how many items
    /// at most.
    pub(crate) fn look_next(&self, inner: &Arc<Inner>, group: u64, returning: usize, ahead: usize) {
        if inner.is_leaving() {
            return;
        }
        let now = Instant::now();
        let look = (self.lock().iter_mut())
            .find(|(_, known)| known.id == group)
            .and_then(|(request, group)| Some((request.clone(), group.look_next(now, returning, ahead)?)));
        // After the lock: whoever subscribes to spans is told.
        if let Some((request, sent)) = look {
            send_look(inner, &request, Some(sent), None);
        }
    }
}

/// Gives others what nobody has come back for. A group that keeps something has one, and for a while after: a task for each item would cost more
/// than what is spared. When it is cancelled, nobody of this runtime will come back.
pub(crate) struct Keeper<R: Request> {
    inner: Arc<Inner>,
    request: R,
    attends: bool,
}

impl<R: Request> Keeper<R> {
    pub(crate) fn new(inner: &Arc<Inner>, request: &R) -> Self {
        Self {
            inner: Arc::clone(inner),
            request: request.clone(),
            attends: true,
        }
    }

    pub(crate) fn spawn(mut self) {
        tokio::spawn(async move {
            while self.attends {
                tokio::time::sleep(EXPECTED).await;
                self.hand_back(Instant::now());
            }
        });
    }

    fn hand_back(&mut self, now: Instant) {
        let overdue = match R::line(&self.inner).lock().get_mut(&self.request) {
            Some(group) => {
                let overdue = group.take_overdue(now);
                self.attends = group.kept.is_attended(now);
                overdue
            }
            None => {
                self.attends = false;
                return;
            }
        };
        overdue.into_iter().for_each(Granted::hand_back);
    }
}

impl<R: Request> Drop for Keeper<R> {
    fn drop(&mut self) {
        if !self.attends {
            return;
        }
        let left = match R::line(&self.inner).lock().get_mut(&self.request) {
            Some(group) => group.take_kept(),
            None => return,
        };
        left.into_iter().for_each(Granted::hand_back);
    }
}
