//! A lease on its way to its caller, and what becomes of it when the caller went away.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
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
        let on_its_way = OnItsWay::new(&inner, queue);
        runtime.spawn(async move {
            let result = match queue {
                Queue::Orchestrator => inner.abandon_orchestration_item(&token, None, true, pause).await,
                Queue::Worker => {
                    let keeps_place = had_place && pause.is_none();
                    inner.abandon_work_item(&token, None, true, keeps_place).await
                }
            };
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

/// What is on its way back to a queue.
#[derive(Default)]
pub(crate) struct GoingBack {
    count: AtomicUsize,
    arrived: Notify,
}

impl GoingBack {
    /// Whether there is any.
    pub(crate) fn is_some(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Waits until all of it has arrived, but not for a server that does not answer.
    pub(crate) async fn arrives(&self) {
        let arrives = async {
            loop {
                let mut arrived = pin!(self.arrived.notified());
                arrived.as_mut().enable();
                if !self.is_some() {
                    return;
                }
                arrived.await;
            }
        };
        let _ = tokio::time::timeout(PAUSE, arrives).await;
    }
}

struct OnItsWay(Arc<Inner>, Queue);

impl OnItsWay {
    fn new(inner: &Arc<Inner>, queue: Queue) -> Self {
        inner.going_back(queue).count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner), queue)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let going_back = self.0.going_back(self.1);
        going_back.count.fetch_sub(1, Ordering::AcqRel);
        going_back.arrived.notify_waiters();
    }
}

/// Gives back what a call may have leased whose answer was lost: it may not even have committed yet.
pub(crate) fn give_back_lost(inner: &Arc<Inner>, queue: Queue, lease: Uuid, lock_timeout: Duration, token: String) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let inner = Arc::clone(inner);
    runtime.spawn(async move {
        for pause_ms in [0, 10, 50, 200, 1000] {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            inner.leases.extended(lease, lock_timeout);
            let result = match queue {
                Queue::Orchestrator => inner.abandon_orchestration_item(&token, None, true, None).await,
                Queue::Worker => inner.abandon_work_item(&token, None, true, false).await,
            };
            match result {
                Ok(()) => return,
                Err(error) => debug!(%error, "nothing to hand back after an answer was lost, so far"),
            }
        }
        inner.leases.ended(lease);
    });
}
