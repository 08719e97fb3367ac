//! Wake-ups: what makes waiting fetches look again (see `poll.rs`), and how other processes are told.
//!
//! A fetch is woken by an enqueue of this process, by a NOTIFY of another one, by the time the database gave for the
//! next due row, or by a fallback poll. NOTIFY is sent off the data transaction, on the listener's own connection,
//! and coalesced.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::words::{Haste, Words};

/// Fallback poll while notifications arrive: covers a process that died between its commit and its NOTIFY. Short after
/// other processes were heard of, then longer and longer.
const POLL_WITH_LISTENER: Duration = Duration::from_secs(5);
const IDLE_POLL_WITH_LISTENER: Duration = Duration::from_secs(60);
/// Fallback poll while they do not.
const POLL_WITHOUT_LISTENER: Duration = Duration::from_millis(500);
/// A connection that takes longer to send a NOTIFY is lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const MAX_RECONNECT: Duration = Duration::from_secs(10);

/// The two queues somebody can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Orchestrator,
    Worker,
}

impl Queue {
    pub(crate) const ALL: [Self; 2] = [Self::Orchestrator, Self::Worker];

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

#[derive(Default)]
struct Shared {
    /// Whose fetches are woken.
    inner: OnceLock<Weak<Inner>>,
    listening: AtomicBool,
    /// When another process was last heard of.
    heard_at: Mutex<Option<Instant>>,
    words: Words,
    /// Nobody wants to listen any more.
    stopped: AtomicBool,
    ends: Notify,
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Option<Instant>> {
        self.heard_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, bits: u8, reason: Reason) {
        if let Some(inner) = self.inner.get().and_then(Weak::upgrade) {
            for queue in Queue::ALL {
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
        if self.listener.is_some() {
            self.shared.words.add(queue, haste);
        }
    }

    /// This process takes nothing any more: others are told at once of what is left.
    pub(crate) fn hurry(&self) {
        self.shared.words.hurry();
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

    /// Others still hear of what they were to be told, if this can be said at once.
    pub(crate) fn stop(&self) {
        if let Some(task) = self.task.get() {
            self.shared.stopped.store(true, Ordering::SeqCst);
            if self.shared.listening.load(Ordering::SeqCst) {
                self.shared.ends.notify_one();
            } else {
                task.abort();
            }
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
        let result = listen(&shared, &channel, &connector, &mut backoff).await;
        let listened = shared.listening.swap(false, Ordering::SeqCst);
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        metrics::listener(if listened { "lost" } else { "failed" });
        match result {
            Ok(()) => debug!("the connection for LISTEN ended; connecting again"),
            Err(error) => warn!(
                error = crate::error::describe_call(&*error),
                "cannot LISTEN for wake-ups; polling instead"
            ),
        }
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
    let (client, connection) = connector.connect(Some(sender)).await?;
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

    loop {
        let mut is_end = false;
        tokio::select! {
            notification = notifications.recv() => match notification {
                // Waiters of this process were woken when the row was enqueued.
                Some(notification) if notification.process_id() == own_process => continue,
                Some(notification) => {
                    *shared.heard() = Some(Instant::now());
                    shared.wake(notification.payload().parse().unwrap_or(u8::MAX), Reason::Notified);
                    continue;
                }
                None => return Ok(()),
            },
            () = shared.ends.notified() => is_end = true,
            () = shared.words.due() => {}
        }
        let queues = shared.words.take(is_end);
        if !queues.is_empty() {
            let bits = queues.iter().fold(0, |bits, queue| bits | queue.bit()).to_string();
            let sent = tokio::time::timeout(SEND_TIMEOUT, client.query(&notify, &[&channel, &bits])).await;
            if let Err(error) = sent.map_err(Box::from).and_then(|sent| sent.map_err(Box::from)) {
                for queue in queues {
                    shared.words.add(queue, Haste::Now);
                }
                // It may wait for an answer for ever.
                connection.abort();
                return Err(error);
            }
        }
        if is_end {
            return Ok(());
        }
    }
}
