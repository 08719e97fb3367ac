//! A lease on its way to its caller, and what becomes of it when the caller went away.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;
use uuid::Uuid;

use crate::error::Failure;
use crate::inner::Inner;
use crate::token;
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
    /// Whether it had a place in the queue before, and gets it back.
    had_place: bool,
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
            had_place: true,
            inner: Arc::clone(inner),
        }
    }

    /// It was put into the queue by the call that leased it, and had no place there.
    pub(crate) fn without_place(mut self) -> Self {
        self.had_place = false;
        self
    }

    /// `returns_to`: the group of fetches its caller comes back to, if it does.
    pub(crate) fn accept(mut self, returns_to: Option<u64>) -> Option<T> {
        if let Some(group) = returns_to {
            self.inner.leases.returns_to(self.lease, group);
        }
        self.item.take()
    }

    /// The instance it is about.
    pub(crate) fn instance(&self) -> Option<&str> {
        token::instance(&self.token)
    }

    /// Nobody went away, it is only one too many: whoever asks next can have it.
    pub(crate) fn hand_back(mut self) {
        self.pause = None;
    }

    /// In a task, if there is a runtime for it.
    fn abandon(&mut self) {
        let (Some(_), Ok(runtime)) = (self.item.take(), Handle::try_current()) else {
            return;
        };
        let (inner, token) = (Arc::clone(&self.inner), std::mem::take(&mut self.token));
        let (queue, pause, had_place) = (self.queue, self.pause, self.had_place);
        // What rests cannot be had at once anyway.
        let on_its_way = pause.is_none().then(|| OnItsWay::new(&inner, queue));
        runtime.spawn(async move {
            let keeps_place = had_place && pause.is_none();
            let result = abandon(&inner, queue, &token, pause, keeps_place).await;
            drop(on_its_way);
            if let Err(error) = result {
                debug!(%error, "could not hand back the lease of a dropped fetch; it will expire");
            }
        });
    }
}

impl<T> Drop for Granted<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// What is on its way back to the queues.
#[derive(Default)]
pub(crate) struct GoingBack {
    turns: AtomicUsize,
    activities: AtomicUsize,
    changed: Notify,
}

impl GoingBack {
    /// Whether there is any.
    pub(crate) fn is_some(&self, queue: Queue) -> bool {
        self.count(queue).load(Ordering::Acquire) > 0
    }

    /// Something has arrived, or is on its way back or kept that was on its way to this process before.
    pub(crate) fn has_changed(&self) {
        self.changed.notify_waiters();
    }

    /// Tries until there is a result, each time after something has changed; for the last time then.
    pub(crate) async fn until<T>(&self, end: Instant, attempt: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = attempt() {
                return Some(result);
            }
            if tokio::time::timeout_at(end, changed).await.is_err() {
                return attempt();
            }
        }
    }

    fn count(&self, queue: Queue) -> &AtomicUsize {
        match queue {
            Queue::Orchestrator => &self.turns,
            Queue::Worker => &self.activities,
        }
    }
}

struct OnItsWay(Arc<Inner>, Queue);

impl OnItsWay {
    fn new(inner: &Arc<Inner>, queue: Queue) -> Self {
        inner.going_back.count(queue).fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner), queue)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.going_back.count(self.1).fetch_sub(1, Ordering::AcqRel);
        self.0.going_back.has_changed();
    }
}

/// Ends a lease that nobody has used.
async fn abandon(
    inner: &Arc<Inner>,
    queue: Queue,
    token: &str,
    pause: Option<Duration>,
    keeps_place: bool,
) -> Result<(), Failure> {
    match queue {
        Queue::Orchestrator => inner.abandon_orchestration_item(token, None, true, pause).await,
        Queue::Worker => inner.abandon_work_item(token, None, true, keeps_place).await,
    }
}

/// Gives back what a call may have leased whose answer was lost: it may not even have committed yet.
pub(crate) fn give_back_lost(inner: &Arc<Inner>, queue: Queue, token: String) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let inner = Arc::clone(inner);
    runtime.spawn(async move {
        for pause_ms in [0, 10, 50, 200, 1000] {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            match abandon(&inner, queue, &token, None, false).await {
                Ok(()) => return,
                Err(error) => debug!(%error, "nothing to hand back after an answer was lost, so far"),
            }
        }
    });
}
