//! Work that goes from whoever makes it straight to those who wait for it.
//!
//! What a call puts into a queue often meets idle dispatchers in its own process. Then the same call leases it for them, and they
//! have it when it has committed: nobody has to look for it, and no other process is woken for nothing. What is in the queue
//! already comes first: only those are served who have looked and found nothing. An enqueue also serves those who have yet to ask, if they
//! usually do so at once (see `habit.rs`).

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::Row;
use tracing::debug;

use crate::error::CallError;
use crate::granted::Granted;
use crate::inner::Inner;
use crate::kept::may_keep;
use crate::look::{Found, Look, send_look};
use crate::poll::{Line, Request};
use crate::telemetry::metrics;
use crate::waiters::{SLOW_LOOK, Sent};

/// Whom something can be handed over to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To {
    WhoeverWaits,
    /// And to those who usually ask for it as soon as it is there.
    WhoeverAsksNext,
}

/// Items under way to some who wait for the same thing. Dropped, those look for themselves.
pub(crate) struct Handover<R: Request> {
    look: Look<R>,
    /// The positions of the items.
    pub(crate) items: Vec<usize>,
}

impl<R: Request> Handover<R> {
    pub(crate) fn request(&self) -> &R {
        &self.look.request
    }

    /// Whether too much of the leases has passed.
    pub(crate) fn is_stale(&self) -> bool {
        self.look.is_stale()
    }

    /// The call has brought these.
    pub(crate) fn land(self, granted: Vec<Granted<R::Item>>) {
        self.look.land(Ok(Found {
            granted,
            ..Found::nothing()
        }));
    }
}

/// Whether the server refused a call perhaps only because of something unreadable that it was to bring to somebody, or because somebody else has
/// just made an instance that was to be born leased: nothing was done, and it is worth another attempt without.
pub(crate) fn may_have_spoilt(operation: &'static str, answer: &Result<Vec<Row>, CallError>) -> bool {
    match answer {
        Err(error) if error.may_be_unreadable() && !error.is_ambiguous() => {
            debug!(%error, "{operation} failed; trying again without handing over");
            metrics::retry(operation, "handover");
            true
        }
        _ => false,
    }
}

/// Carries out the call that hands over. Should it take its time, nobody waits for what others can bring.
pub(crate) async fn during<R: Request, T>(
    handovers: impl IntoIterator<Item = &Handover<R>>,
    call: impl Future<Output = T>,
) -> T {
    let mut handovers = handovers.into_iter().peekable();
    if handovers.peek().is_none() {
        return call.await;
    }
    let mut call = pin!(call);
    if let Ok(result) = tokio::time::timeout(SLOW_LOOK, &mut call).await {
        return result;
    }
    for Handover { look, .. } in handovers {
        R::line(&look.inner).let_go(&look.inner, &look.request, &look.sent);
    }
    call.await
}

impl<R: Request> Line<R> {
    /// So many items are about to be put into the queue: who gets which of them. `fits`: whether a request is met by the item at
    /// this position.
    pub(crate) fn hand_over(
        &self,
        inner: &Arc<Inner>,
        items: usize,
        to: To,
        mut fits: impl FnMut(&R, usize) -> bool,
    ) -> Vec<Handover<R>> {
        let now = Instant::now();
        let mut open: Vec<usize> = (0..items).collect();
        let mut handed = Vec::new();
        {
            let mut groups = self.lock();
            let mut take = |request: &R, most: usize| -> Vec<usize> {
                let mut left = most;
                let is_wanted = |item: &mut usize| {
                    let is_wanted = left > 0 && fits(request, *item);
                    left -= usize::from(is_wanted);
                    is_wanted
                };
                open.extract_if(.., is_wanted).collect()
            };
            let mut taken = HashMap::new();
            for (request, group) in groups.iter_mut() {
                let items = take(request, group.unserved(now));
                if !items.is_empty() {
                    taken.insert(request.clone(), (items, 0));
                }
            }
            if matches!(to, To::WhoeverAsksNext) && !inner.is_leaving() && may_keep() {
                for (request, group) in groups.iter() {
                    // Whoever waits comes before those who have yet to ask, also if its look is on the wire.
                    let others_wait =
                        (groups.iter()).any(|(other, group)| other != request && !group.waiters.is_empty());
                    let most = if others_wait { 0 } else { group.expected(now) };
                    let items = take(request, most);
                    if !items.is_empty() {
                        let (all, ahead) = taken.entry(request.clone()).or_default();
                        *ahead += items.len();
                        all.extend(items);
                    }
                }
            }
            for (request, (items, ahead)) in taken {
                if let Some(group) = groups.get_mut(&request) {
                    handed.push((request, group.hand_over(items.len(), ahead), items));
                }
            }
        }
        if matches!(to, To::WhoeverAsksNext) {
            let is_ahead = handed.iter().any(|(_, sent, _)| sent.ahead > 0);
            inner.pace.hands_over(R::QUEUE, is_ahead);
        }
        // After the lock: whoever subscribes to spans is told.
        handed
            .into_iter()
            .map(|(request, sent, items)| Handover {
                look: Look::new(inner, &request, sent),
                items,
            })
            .collect()
    }

    /// Those whom this is for no longer wait for it alone.
    fn let_go(&self, inner: &Arc<Inner>, request: &R, sent: &Sent) {
        let look = self.lock().get_mut(request).and_then(|group| {
            group.release(sent.id);
            group.due_look(Instant::now())
        });
        send_look(inner, request, look, None);
    }
}
