//! What those who end something ask for next, looked for by the call that ends it.
//!
//! A worker that has acked an activity fetches the next one. When nobody of its process waits for any, there are probably some, and
//! the call that acks looks for them as well: they are there before they are asked for, without a round trip and a transaction of
//! their own. Only for those who wait for work when they fetch, because others may not come back; and not once a fetch that waited
//! was dropped, until there is another: that is how a runtime begins to shut down. Should it end all the same before something can
//! be handed back, that can be had when its lease ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Failure;
use crate::granted::Granted;
use crate::inner::Inner;
use crate::look::{Found, Look};
use crate::poll::{Line, Request};

/// How long something is kept for somebody who has only to come back: then others can have it.
pub(crate) const KEPT: Duration = Duration::from_millis(10);

impl<R: Request> Line<R> {
    /// So many are about to come back to this group: what they will ask for, if nobody waits for that already.
    pub(crate) fn look_next(&self, inner: &Arc<Inner>, group: u64, wanted: usize) -> Option<Look<R>> {
        if inner.is_leaving() {
            return None;
        }
        let now = Instant::now();
        let (request, sent) = {
            let mut groups = self.lock();
            let (request, group) = groups.iter_mut().find(|(_, known)| known.id == group)?;
            (request.clone(), group.look_next(now, wanted)?)
        };
        // After the lock: whoever subscribes to spans is told.
        Some(Look::new(inner, &request, sent))
    }
}

impl<R: Request> Look<R> {
    /// The call that looked for what comes next has been answered, some time after it looked.
    pub(crate) fn land_next(self, mut found: Result<Found<R::Item>, Failure>) {
        if let Ok(found) = &mut found {
            found.next = found.next.map(|next| next.saturating_sub(self.since.elapsed()));
            if self.is_stale() {
                found.granted.drain(..).for_each(Granted::hand_back);
                found.next = Some(Duration::ZERO);
            }
        }
        self.land(found);
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
            tokio::time::sleep_until(self.since + KEPT).await;
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
