//! What those who end something ask for next, looked for while they end it.
//!
//! A worker that has acked an activity fetches the next one. When nobody of its process waits for any, there are probably some, and
//! they are looked for beside the call that acks: they are there before they are asked for, and the ack itself is as short as it can be,
//! as are its locks. Where activities are short, twice as many are looked for, so that every other ack needs no look.
//!
//! Only for those who wait for work when they fetch, because others may not come back; and not once a fetch that waited
//! was dropped, until there is another: that is how a runtime begins to shut down. Should it end all the same before something can
//! be handed back (two for each worker at most), that can be had when its lease ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::granted::Granted;
use crate::inner::Inner;
use crate::look::send_look;
use crate::poll::{Line, Request};

/// The longest time for which something is kept for somebody who has only to come back.
const KEPT: Duration = Duration::from_millis(50);

/// How long something is kept for somebody who has only to come back: then others can have it. Whoever gets it has most of the lease.
pub(crate) fn kept_for<R: Request>(request: &R) -> Duration {
    KEPT.min(request.lock_timeout() / 4)
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

/// Gives others what nobody has come back for. When its task is cancelled, nobody of this runtime will.
pub(crate) struct Keeper<R: Request> {
    pub(crate) inner: Arc<Inner>,
    pub(crate) request: R,
    /// When what it keeps landed.
    pub(crate) since: Instant,
}

impl<R: Request> Keeper<R> {
    pub(crate) fn spawn(self) {
        tokio::spawn(async move {
            tokio::time::sleep_until(self.since + kept_for(&self.request)).await;
            drop(self);
        });
    }
}

impl<R: Request> Drop for Keeper<R> {
    fn drop(&mut self) {
        let left = match R::line(&self.inner).lock().get_mut(&self.request) {
            Some(group) => group.take_kept_before(self.since),
            None => return,
        };
        left.into_iter().for_each(Granted::hand_back);
    }
}
