//! Wake-ups: what makes waiting fetches look again (see `poll.rs`), and how other processes are told.
//!
//! A fetch is woken by an enqueue of this process, by a NOTIFY of another one, by the time the database gave for the
//! next due row, or by a fallback poll. NOTIFY is sent off the data transaction, on the listener's own connection,
//! and coalesced.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::call::jittered;
use crate::connect::Connector;
use crate::inner::Inner;
use crate::reason::Reason;
use crate::schema_name::quote_identifier;
use crate::telemetry::metrics;

/// Fallback poll while notifications arrive: covers a process that died between its commit and its NOTIFY. Short after
/// other processes were heard of, then longer and longer.
const POLL_WITH_LISTENER: Duration = Duration::from_secs(5);
const IDLE_POLL_WITH_LISTENER: Duration = Duration::from_secs(60);
/// Fallback poll while they do not.
const POLL_WITHOUT_LISTENER: Duration = Duration::from_millis(500);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const MAX_RECONNECT: Duration = Duration::from_secs(10);

/// The two queues somebody can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Orchestrator,
    Worker,
}

impl Queue {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Orchestrator => "orchestrator",
            Self::Worker => "worker",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Orchestrator => 1,
            Self::Worker => 2,
        }
    }
}

/// How soon other processes are to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Nobody here takes it.
    Now,
    /// Somebody here will take it, if others are not quicker.
    Soon,
    /// It is leased. Should this process die, others must know when to look.
    Leased,
}

impl Haste {
    const ALL: [Self; 3] = [Self::Now, Self::Soon, Self::Leased];

    /// At most one NOTIFY in this time that is no more urgent.
    fn interval(self) -> Duration {
        match self {
            Self::Now => Duration::from_millis(10),
            Self::Soon => Duration::from_millis(50),
            Self::Leased => Duration::from_secs(1),
        }
    }
}

#[derive(Default)]
struct Shared {
    /// Whose fetches are woken.
    inner: OnceLock<Weak<Inner>>,
    listening: AtomicBool,
    /// When another process was last heard of.
    heard_at: Mutex<Option<Instant>>,
    /// Queues that other processes are still to be told about, by haste.
    unsent: [AtomicU8; Haste::ALL.len()],
    send: Notify,
}

impl Shared {
    /// Can be dropped and called again at any point.
    async fn something_to_send(&self, last: Option<Instant>) {
        loop {
            let is_unsent = |haste: &Haste| self.unsent[*haste as usize].load(Ordering::Acquire) != 0;
            let due = match (Haste::ALL.into_iter().find(is_unsent), last) {
                (None, _) => {
                    self.send.notified().await;
                    continue;
                }
                (Some(_), None) => return,
                (Some(haste), Some(last)) => last + haste.interval(),
            };
            // Something more urgent may come meanwhile.
            if tokio::time::timeout_at(due, self.send.notified()).await.is_err() {
                return;
            }
        }
    }

    fn take_unsent(&self) -> u8 {
        let take = |bits: &AtomicU8| bits.swap(0, Ordering::AcqRel);
        self.unsent.iter().map(take).fold(0, |all, bits| all | bits)
    }

    fn heard(&self) -> MutexGuard<'_, Option<Instant>> {
        self.heard_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, bits: u8, reason: Reason) {
        if let Some(inner) = self.inner.get().and_then(Weak::upgrade) {
            for queue in [Queue::Orchestrator, Queue::Worker] {
                if bits & queue.bit() != 0 {
                    inner.woken(queue, reason, None);
                }
            }
        }
    }
}

/// Wakes waiting fetches of this process, and tells other processes.
pub(crate) struct Waker {
    shared: Arc<Shared>,
    listener: Option<(String, Arc<Connector>)>,
    task: OnceLock<JoinHandle<()>>,
}

impl Waker {
    /// `channel`: the NOTIFY channel of the schema. `connector`: none if there is no way to LISTEN; then the
    /// fallback poll must do, and other processes are not told.
    pub(crate) fn new(channel: String, connector: Option<Arc<Connector>>) -> Self {
        Self {
            shared: Arc::default(),
            listener: connector.map(|connector| (channel, connector)),
            task: OnceLock::new(),
        }
    }

    /// Begins to listen, for the fetches of `inner`.
    pub(crate) fn start(&self, inner: &Arc<Inner>) {
        let _ = self.shared.inner.set(Arc::downgrade(inner));
        if let Some((channel, connector)) = self.listener.clone() {
            self.task
                .get_or_init(|| tokio::spawn(run(Arc::clone(&self.shared), channel, connector)));
        }
    }

    /// Something was put into a queue: tells other processes.
    pub(crate) fn tell_others(&self, queue: Queue, haste: Haste) {
        if self.listener.is_some() && self.shared.unsent[haste as usize].fetch_or(queue.bit(), Ordering::AcqRel) == 0 {
            self.shared.send.notify_one();
        }
    }

    /// How long a waiter may sleep without being woken.
    pub(crate) fn fallback(&self) -> Duration {
        if !self.shared.listening.load(Ordering::Acquire) {
            return jittered(POLL_WITHOUT_LISTENER);
        }
        let silence = self.shared.heard().map_or(Duration::MAX, |at| at.elapsed());
        jittered(silence.clamp(POLL_WITH_LISTENER, IDLE_POLL_WITH_LISTENER))
    }

    /// Whether other processes were heard of lately.
    pub(crate) fn has_company(&self) -> bool {
        self.shared.heard().is_some_and(|at| at.elapsed() < POLL_WITH_LISTENER)
    }

    pub(crate) fn stop(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Keeps the listener connected, and sends what is unsent.
async fn run(shared: Arc<Shared>, channel: String, connector: Arc<Connector>) {
    let mut backoff = FIRST_RECONNECT;
    loop {
        match listen(&shared, &channel, &connector, &mut backoff).await {
            Ok(()) => debug!("the connection for LISTEN ended; connecting again"),
            Err(error) => warn!(
                error = crate::error::describe_call(&*error),
                "cannot LISTEN for wake-ups; polling instead"
            ),
        }
        let listened = shared.listening.swap(false, Ordering::AcqRel);
        metrics::listener(if listened { "lost" } else { "failed" });
        // Whoever sleeps at the pace of a listener must know that there is none.
        shared.wake(u8::MAX, Reason::Listener);
        tokio::time::sleep(jittered(backoff)).await;
        backoff = (backoff * 2).min(MAX_RECONNECT);
    }
}

async fn listen(
    shared: &Shared,
    channel: &str,
    connector: &Connector,
    backoff: &mut Duration,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let (client, _task) = connector.connect(Some(sender)).await?;
    // A NOTIFY is not data either.
    client
        .batch_execute(&format!(
            "set synchronous_commit = off; listen {}",
            quote_identifier(channel)
        ))
        .await?;
    let notify = client.prepare("select pg_notify($1, $2)").await?;
    let own_process: i32 = client.query_one("select pg_backend_pid()", &[]).await?.try_get(0)?;
    *backoff = FIRST_RECONNECT;
    shared.listening.store(true, Ordering::Release);
    metrics::listener("connected");
    // What was sent while nobody listened is lost: everybody looks once.
    shared.wake(u8::MAX, Reason::Listener);

    let mut last_sent = None;
    loop {
        tokio::select! {
            notification = notifications.recv() => match notification {
                // Waiters of this process were woken when the row was enqueued.
                Some(notification) if notification.process_id() == own_process => {}
                Some(notification) => {
                    *shared.heard() = Some(Instant::now());
                    shared.wake(notification.payload().parse().unwrap_or(u8::MAX), Reason::Notified);
                }
                None => return Ok(()),
            },
            () = shared.something_to_send(last_sent) => {
                let bits = shared.take_unsent();
                if let Err(error) = client.query(&notify, &[&channel, &bits.to_string()]).await {
                    shared.unsent[Haste::Now as usize].fetch_or(bits, Ordering::AcqRel);
                    return Err(error.into());
                }
                last_sent = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn tell(shared: &Shared, queue: Queue, haste: Haste) {
        shared.unsent[haste as usize].fetch_or(queue.bit(), Ordering::AcqRel);
        shared.send.notify_one();
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_word_is_sent_at_once_and_the_next_as_soon_as_it_is_urgent() {
        for haste in Haste::ALL {
            let shared = Shared::default();
            let last = Instant::now();
            assert!(shared.something_to_send(Some(last)).now_or_never().is_none());
            tell(&shared, Queue::Worker, haste);
            assert!(shared.something_to_send(None).now_or_never().is_some(), "{haste:?}");
            let long_ago = last.checked_sub(haste.interval()).expect("up for a second");
            shared.something_to_send(Some(long_ago)).await;
            assert_eq!(Instant::now(), last, "{haste:?}");
            shared.something_to_send(Some(last)).await;
            assert_eq!(Instant::now(), last + haste.interval(), "{haste:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_urgent_takes_along_what_is_not() {
        let shared = Shared::default();
        let last = Instant::now();
        tell(&shared, Queue::Orchestrator, Haste::Soon);
        let mut waiting = pin!(shared.something_to_send(Some(last)));
        assert!((&mut waiting).now_or_never().is_none());
        tell(&shared, Queue::Worker, Haste::Now);
        waiting.await;
        assert_eq!(Instant::now(), last + Haste::Now.interval());
        assert_eq!(shared.take_unsent(), Queue::Orchestrator.bit() | Queue::Worker.bit());
        assert_eq!(shared.take_unsent(), 0);
    }
}
