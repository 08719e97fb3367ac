//! A lease on its way to its caller, and what becomes of it when the caller went away.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::debug;
use uuid::Uuid;

use crate::inner::Inner;
use crate::wake::Queue;

/// How long an instance rests whose caller went away: one that drops its fetches again and again must not keep it from
/// others by claiming it each time.
const PAUSE: Duration = Duration::from_millis(200);

/// A leased item on its way to the caller. Dropped on the way, it is handed back at once.
pub(crate) struct Granted<T> {
    item: Option<T>,
    lease: Uuid,
    token: String,
    queue: Queue,
    pause: Option<Duration>,
    inner: Arc<Inner>,
}

impl<T> Granted<T> {
    pub(crate) fn new(inner: &Arc<Inner>, queue: Queue, lease: Uuid, token: String, item: T) -> Self {
        Self {
            item: Some(item),
            lease,
            token,
            queue,
            pause: Some(PAUSE),
            inner: Arc::clone(inner),
        }
    }

    /// `returns_to`: the group of fetches its caller comes back to, if it does.
    pub(crate) fn accept(mut self, returns_to: Option<u64>) -> Option<T> {
        if let Some(group) = returns_to {
            self.inner.leases.returns_to(self.lease, group);
        }
        self.item.take()
    }

    /// Nobody went away, it is only one too many: whoever asks next can have it.
    pub(crate) fn hand_back(mut self) {
        self.pause = None;
    }

    /// The same, and waits until whoever asks next can have it.
    pub(crate) async fn handed_back(mut self) {
        self.pause = None;
        if let Some(abandoning) = self.abandon() {
            let _ = abandoning.await;
        }
    }

    /// In a task, if there is a runtime for it: whoever wants it done may go away.
    fn abandon(&mut self) -> Option<JoinHandle<()>> {
        let runtime = Handle::try_current().ok()?;
        self.item.take()?;
        let (inner, token) = (Arc::clone(&self.inner), std::mem::take(&mut self.token));
        let (queue, pause) = (self.queue, self.pause);
        Some(runtime.spawn(async move {
            let result = match queue {
                Queue::Orchestrator => inner.abandon_orchestration_item(&token, None, true, pause).await,
                Queue::Worker => inner.abandon_work_item(&token, None, true, pause.is_none()).await,
            };
            if let Err(error) = result {
                debug!(%error, "could not hand back the lease of a dropped fetch; it will expire");
            }
        }))
    }
}

impl<T> Drop for Granted<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}
