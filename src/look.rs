//! A look into a queue: on the wire, and what it brings.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use crate::call::Connection;
use crate::carried::Carried;
use crate::error::Failure;
use crate::granted::Granted;
use crate::inner::Inner;
use crate::pace::Step;
use crate::poll::Request;
use crate::reason::Reason;
use crate::telemetry::LookSpan;
use crate::waiters::Sent;

/// The most of a lease that may pass before it reaches its holder.
const STALE: Duration = Duration::from_secs(1);

/// What one look at a queue brought.
pub(crate) struct Found<T> {
    pub(crate) granted: Vec<Granted<T>>,
    /// When another look is worth it, if ever. Only counts when less was granted than asked for.
    pub(crate) next: Option<Duration>,
    /// Those who got nothing must ask differently.
    pub(crate) ask_anew: bool,
}

impl<T> Found<T> {
    /// Nothing, and no word of when there will be something: there may be more at once.
    pub(crate) fn nothing() -> Self {
        Self {
            granted: Vec::new(),
            next: Some(Duration::ZERO),
            ask_anew: false,
        }
    }
}

/// A look on the wire. It lands also when its task is cancelled because the runtime shuts down.
pub(crate) struct Look<R: Request> {
    pub(crate) inner: Arc<Inner>,
    pub(crate) request: R,
    /// When it was sent.
    pub(crate) since: Instant,
    span: LookSpan,
    pub(crate) sent: Sent,
    found: Option<Result<Found<R::Item>, Failure>>,
}

impl<R: Request> Look<R> {
    pub(crate) fn new(inner: &Arc<Inner>, request: &R, mut sent: Sent) -> Self {
        let callers = std::mem::take(&mut sent.spans);
        Self {
            inner: Arc::clone(inner),
            request: request.clone(),
            since: Instant::now(),
            span: LookSpan::begin(R::QUEUE, sent.reason, sent.wanted(), &callers),
            sent,
            found: None,
        }
    }

    /// Whether too much of a lease has passed for it to be of use: granted by a durable call, it counts from before the commit, which
    /// may take its time.
    pub(crate) fn is_stale(&self) -> bool {
        self.since.elapsed() > STALE.min(self.request.lock_timeout() / 4)
    }

    pub(crate) fn land(mut self, found: Result<Found<R::Item>, Failure>) {
        self.found = Some(found);
        drop(self);
    }
}

impl<R: Request> Drop for Look<R> {
    fn drop(&mut self) {
        let found = self.found.take();
        self.span.end(found.as_ref().map(|found| match found {
            Ok(found) => Ok(found.granted.len()),
            Err(failure) => Err(failure.class),
        }));
        let found = found.unwrap_or_else(|| Err(Failure::retryable("fetch", "the runtime is shutting down")));
        R::line(&self.inner).landed(&self.inner, &self.request, &self.sent, found);
    }
}

/// A look goes on to its end even if all callers go away: only then is known what was granted. Not to be called under the
/// lock: it may be dropped at once.
pub(crate) fn make_look<R: Request>(
    inner: &Arc<Inner>,
    request: &R,
    sent: Sent,
    behind: Option<Connection>,
) -> Carried<()> {
    let wanted = sent.wanted();
    let look = Look::new(inner, request, sent);
    let looking = async move {
        let request = look.request.clone();
        let found = request.look(Arc::clone(&look.inner), wanted, behind);
        let inner = Arc::clone(&look.inner);
        // Nobody waits for what is looked for ahead, so nobody waits for its end either.
        let _until_answered = (look.sent.reason != Reason::Next).then(|| inner.pace.sent(R::QUEUE, Step::Fetch));
        let found = found.instrument(look.span.span()).await;
        look.land(found);
    };
    Carried::new(looking.boxed())
}

/// Looks in a task of its own.
pub(crate) fn send_look<R: Request>(inner: &Arc<Inner>, request: &R, sent: Option<Sent>, behind: Option<Connection>) {
    drop(sent.map(|sent| make_look(inner, request, sent, behind)));
}
