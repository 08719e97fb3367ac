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
    /// The place in the queue that it had before, and gets back: when it was due, by the server's clock.
    place_ms: Option<i64>,
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
            place_ms: None,
            inner: Arc::clone(inner),
        }
    }

    /// It was in the queue, and due since then.
    pub(crate) fn due_since(mut self, place_ms: Option<i64>) -> Self {
        self.place_ms = place_ms;
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
        let (queue, pause, place_ms) = (self.queue, self.pause, self.place_ms);
        // Turns pause, activities do not.
        let can_be_had = pause.is_none() || queue == Queue::Worker;
        let on_its_way = OnItsWay::new(&inner, can_be_had.then_some(queue));
        runtime.spawn(async move {
            let place_ms = place_ms.filter(|_| pause.is_none());
            let result = abandon(&inner, queue, &token, pause, place_ms).await;
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
    /// What rests then, and cannot be had at once anyway, or may not have come at all.
    resting: AtomicUsize,
    changed: Notify,
}

impl GoingBack {
    /// Whether there is something that can be had as soon as it has arrived.
    pub(crate) fn is_some(&self, queue: Queue) -> bool {
        self.count(Some(queue)).load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_any(&self) -> bool {
        let counts = [&self.turns, &self.activities, &self.resting];
        counts.iter().any(|count| count.load(Ordering::Acquire) > 0)
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

    fn count(&self, queue: Option<Queue>) -> &AtomicUsize {
        match queue {
            Some(Queue::Orchestrator) => &self.turns,
            Some(Queue::Worker) => &self.activities,
            None => &self.resting,
        }
    }
}

/// To which queue, unless it rests there or may not have come.
struct OnItsWay(Arc<Inner>, Option<Queue>);

impl OnItsWay {
    fn new(inner: &Arc<Inner>, queue: Option<Queue>) -> Self {
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
    place_ms: Option<i64>,
) -> Result<(), Failure> {
    match queue {
        Queue::Orchestrator => inner.abandon_orchestration_item(token, None, true, pause).await,
        Queue::Worker => inner.abandon_work_item(token, None, true, place_ms).await,
    }
}

/// Gives back what a call may have leased whose answer was lost: it may not even have committed yet.
pub(crate) fn give_back_lost(inner: &Arc<Inner>, queue: Queue, token: String) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let inner = Arc::clone(inner);
    let on_its_way = OnItsWay::new(&inner, None);
    runtime.spawn(async move {
        let _until_it_is_back = on_its_way;
        for pause_ms in [0, 10, 50, 200, 1000] {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            match abandon(&inner, queue, &token, None, None).await {
                Ok(()) => return,
                Err(error) => debug!(%error, "nothing to hand back after an answer was lost, so far"),
            }
        }
    });
}
