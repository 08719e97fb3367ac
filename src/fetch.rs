//! A fetch: its place among those who wait, and how long it stays there.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::carried::Carried;
use crate::error::Failure;
use crate::inner::Inner;
use crate::kept::RETURNING;
use crate::pace::Step;
use crate::poll::Request;
use crate::waiters::{Answer, Fetch, IN_HAND};

/// Longer than any look is on the wire.
const UNTIL_ANSWERED: Duration = Duration::from_secs(3600);

/// A place among those who wait.
pub(crate) struct Registered<'a, R: Request> {
    pub(crate) place: Place<'a, R>,
    pub(crate) group: u64,
    pub(crate) answer: oneshot::Receiver<Answer<R::Item>>,
    pub(crate) sooner: Arc<Notify>,
}

/// Given up when the caller goes away: nothing of it, its span included, stays behind.
pub(crate) struct Place<'a, R: Request> {
    pub(crate) inner: &'a Inner,
    pub(crate) request: &'a R,
    pub(crate) id: u64,
    pub(crate) patient: bool,
}

impl<R: Request> Drop for Place<'_, R> {
    fn drop(&mut self) {
        let line = R::line(self.inner);
        if self.patient {
            line.has_left(Instant::now());
        }
        // Dropped after the lock: whoever subscribes to spans is told.
        let waiter = (line.lock().get_mut(self.request)).and_then(|group| group.leave(self.id));
        if waiter.is_some_and(|waiter| !waiter.impatient) {
            self.inner.set_leaving(true);
        }
    }
}

async fn look_lands(look: &mut Option<Carried<()>>) {
    match look {
        Some(look) => drop(look.await),
        None => std::future::pending().await,
    }
}

impl Inner {
    /// How long a fetch waits for work.
    fn waits(&self, poll_timeout: Duration) -> Duration {
        if self.long_poll { poll_timeout } else { Duration::ZERO }
    }

    /// For a fetch that nothing will ever fit: its caller counts on being held up.
    pub(crate) async fn wait_in_vain(&self, poll_timeout: Duration) {
        tokio::time::sleep(self.waits(poll_timeout)).await;
    }

    /// Fetches one item, waiting for it as long as `poll_timeout` says.
    pub(crate) async fn fetch<R: Request>(
        self: &Arc<Self>,
        request: &R,
        poll_timeout: Duration,
    ) -> Result<Fetch<R::Item>, Failure> {
        self.polled.is_dispatcher();
        let poll_timeout = self.waits(poll_timeout);
        let now = Instant::now();
        let impatient = poll_timeout.is_zero();
        // Who does not wait is answered by the look that is sent for it, as a rule.
        let timeout = if impatient { UNTIL_ANSWERED } else { poll_timeout };
        let mut deadline = now.checked_add(timeout).unwrap_or(now + UNTIL_ANSWERED);
        // Who waits no longer than that would not see what goes back meanwhile.
        let sees_all = poll_timeout <= RETURNING;
        let end = now + if impatient { IN_HAND } else { RETURNING };
        let register = || R::line(self).register(self, request, now, impatient, sees_all && Instant::now() < end);
        let registered = self.going_back.until(end, register).await;
        let Some(Registered {
            place,
            group,
            mut answer,
            sooner,
        }) = registered
        else {
            return Ok(Fetch::Nothing);
        };
        let returns_to = (!impatient && request.is_repeated(self)).then_some(group);
        if !impatient {
            self.set_leaving(false);
        }
        if let Ok(kept) = answer.try_recv() {
            return Fetch::of(Ok(kept), returns_to);
        }
        // Those whom one answer set free act in step: whoever is ready shares the look.
        tokio::task::yield_now().await;
        let mut answer = pin!(answer);
        let callers = R::line(self).waiters(request);
        // Not longer than until it is answered: a look may be sent for it meanwhile.
        tokio::select! {
            biased;
            answer = &mut answer => return Fetch::of(answer, returns_to),
            () = self.pace.keep(R::QUEUE, Step::Fetch, callers, &self.leases) => {}
        }
        let mut carried = None;
        let mut arrived = true;
        loop {
            // Registered before the time is read, so that no change of it is missed.
            let mut moved = pin!(sooner.notified());
            moved.as_mut().enable();
            let (next, look) = R::line(self).look_if_due(self, request, place.id, std::mem::take(&mut arrived));
            // One that is still on the wire goes on by itself.
            carried = look.or(carried);
            tokio::select! {
                biased;
                answer = &mut answer => return Fetch::of(answer, returns_to),
                () = look_lands(&mut carried) => {}
                () = moved => {}
                () = tokio::time::sleep_until(deadline.min(next)) => {}
            }
            if Instant::now() >= deadline {
                if R::line(self).withdraw(request, place.id) {
                    return Ok(Fetch::Nothing);
                }
                deadline += UNTIL_ANSWERED;
            }
        }
    }
}
