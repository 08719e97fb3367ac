//! A fetch that waits for work, and what becomes of a lease whose caller went away.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::debug;

use crate::provider::Inner;
use crate::wake::Queue;

/// How long an instance rests whose lease was handed back: a caller that drops its fetches again and again must not keep
/// it from others by claiming it each time.
const PAUSE: Duration = Duration::from_millis(200);

/// What one look at a queue brought.
pub(crate) enum Look<T> {
    /// A lease, and what it is for.
    Granted(Granted<T>),
    /// Nothing; worth another look after this time, if known.
    Nothing(Option<Duration>),
}

/// A leased item on its way to the caller. Dropped on the way, it is handed back at once.
pub(crate) struct Granted<T> {
    item: Option<T>,
    token: String,
    queue: Queue,
    inner: Arc<Inner>,
}

impl<T> Granted<T> {
    pub(crate) fn new(inner: &Arc<Inner>, queue: Queue, token: String, item: T) -> Self {
        Self {
            item: Some(item),
            token,
            queue,
            inner: Arc::clone(inner),
        }
    }

    fn accept(mut self) -> Option<T> {
        self.item.take()
    }
}

impl<T> Drop for Granted<T> {
    fn drop(&mut self) {
        let (Some(_), Ok(runtime)) = (&self.item, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (inner, token, queue) = (Arc::clone(&self.inner), std::mem::take(&mut self.token), self.queue);
        runtime.spawn(async move {
            let result = match queue {
                Queue::Orchestrator => inner.abandon_orchestration_item(&token, None, true, Some(PAUSE)).await,
                Queue::Worker => inner.abandon_work_item(&token, None, true).await,
            };
            if let Err(error) = result {
                debug!(%error, "could not hand back the lease of a dropped fetch; it will expire");
            }
        });
    }
}

impl Inner {
    /// Looks into a queue until something is granted or, with long polling, `poll_timeout` has passed.
    pub(crate) async fn poll<T, L, F>(
        self: &Arc<Self>,
        queue: Queue,
        poll_timeout: Duration,
        look: L,
    ) -> Result<Option<T>, ProviderError>
    where
        T: Send + 'static,
        L: Fn(Arc<Self>) -> F,
        F: Future<Output = Result<Look<T>, ProviderError>> + Send + 'static,
    {
        let now = Instant::now();
        let poll_timeout = if self.long_poll { poll_timeout } else { Duration::ZERO };
        let deadline = now.checked_add(poll_timeout).unwrap_or(now + Duration::from_secs(3600));
        loop {
            // Registered before the query is sent, so that nothing enqueued meanwhile is missed.
            let mut woken = pin!(self.waker.waiter(queue));
            woken.as_mut().enable();

            let next = match detached(look(Arc::clone(self))).await? {
                Some(Look::Granted(granted)) => return Ok(granted.accept()),
                Some(Look::Nothing(next)) => next,
                None => None,
            };
            let now = Instant::now();
            if now >= deadline || self.caller.is_closed() {
                return Ok(None);
            }
            let nap = next.unwrap_or(Duration::MAX).min(self.waker.fallback());
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep_until(deadline.min(now + nap)) => {}
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }
}

/// Runs a look to its end even when the caller goes away: only then is known what was granted.
async fn detached<T, F>(look: F) -> Result<Option<T>, ProviderError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ProviderError>> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        // An answer nobody waits for is dropped, which hands its lease back.
        let _ = sender.send(look.await);
    });
    match receiver.await {
        Ok(result) => result.map(Some),
        // The task was cancelled: the runtime is shutting down.
        Err(_) => Ok(None),
    }
}
