//! What those who end something ask for next, looked for by the call that ends it.
//!
//! A worker that has acked an activity fetches the next one. When nobody of its process waits for any, there are probably some, and
//! the call that acks looks for them as well: they are there before they are asked for, without a round trip and a transaction of
//! their own. Whoever does not wait for work when it fetches may not come back, so nothing is looked for on its behalf.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Failure;
use crate::granted::Granted;
use crate::inner::Inner;
use crate::poll::{Found, Line, Look, Request};

/// How long something is kept for somebody who has only to come back: then others can have it.
const KEPT: Duration = Duration::from_millis(10);

/// A look for what some will ask for next.
pub(crate) struct NextLook<R: Request> {
    look: Look<R>,
    since: Instant,
}

impl<R: Request> NextLook<R> {
    pub(crate) fn request(&self) -> &R {
        &self.look.request
    }

    /// For how many.
    pub(crate) fn wanted(&self) -> usize {
        self.look.sent.wanted
    }

    /// The call has been answered.
    pub(crate) fn land(self, mut found: Result<Found<R::Item>, Failure>) {
        if let Ok(found) = &mut found
            && is_stale(self.since, self.look.request.lock_timeout())
        {
            found.granted.drain(..).for_each(Granted::hand_back);
            found.next = Some(Duration::ZERO);
        }
        self.look.land(found);
    }
}

/// Whether too much of a lease has passed for it to be of use: granted by a durable call, it counts from before the commit, which
/// may take its time.
pub(crate) fn is_stale(since: Instant, lease: Duration) -> bool {
    since.elapsed() > lease / 4
}

impl<R: Request> Line<R> {
    /// So many are about to come back to this group: what they will ask for, if nobody looks for it already.
    pub(crate) fn look_next(&self, inner: &Arc<Inner>, group: u64, wanted: usize) -> Option<NextLook<R>> {
        let now = Instant::now();
        let (request, sent) = {
            let mut groups = self.lock();
            let (request, group) = groups.iter_mut().find(|(_, known)| known.id == group)?;
            (request.clone(), group.look_next(now, wanted)?)
        };
        // After the lock: whoever subscribes to spans is told.
        Some(NextLook {
            look: Look::new(inner, &request, sent),
            since: now,
        })
    }

    /// What is there already for somebody who asks for this, and its group.
    pub(crate) fn take_kept(&self, request: &R) -> Option<(Granted<R::Item>, u64)> {
        let mut groups = self.lock();
        let group = groups.get_mut(request)?;
        let (granted, _) = group.kept.pop_front()?;
        Some((granted, group.id))
    }

    /// Gives others what nobody has come back for.
    pub(crate) fn hand_back_kept(&self, inner: &Arc<Inner>, request: &R) {
        let (inner, request) = (Arc::clone(inner), request.clone());
        let time = KEPT.min(request.lock_timeout() / 4);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let left = match R::line(&inner).lock().get_mut(&request) {
                Some(group) => group.take_kept_before(Instant::now() - time),
                None => return,
            };
            left.into_iter().for_each(Granted::hand_back);
        });
    }
}
