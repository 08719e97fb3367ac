//! Looks right behind a call that fills a queue: they go out on its connection while it is on the wire, so the server takes
//! them up as soon as it has committed. Whoever waits for what the call brings has it a round trip earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::Connection;
use crate::inner::Inner;
use crate::wake::Queue;

/// What a call is about to fill.
pub(crate) struct Follow {
    inner: Arc<Inner>,
    queues: Vec<Queue>,
    /// Tells the calls of this process apart.
    id: u64,
}

impl Follow {
    pub(crate) fn new(inner: &Arc<Inner>, queues: impl IntoIterator<Item = Option<Queue>>) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            inner: Arc::clone(inner),
            queues: queues.into_iter().flatten().collect(),
            id: LAST_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The call was sent on this connection.
    pub(crate) fn sent(&self, connection: &Connection) {
        for queue in &self.queues {
            match queue {
                Queue::Orchestrator => self.inner.turns.look_behind(&self.inner, connection, self.id),
                Queue::Worker => self.inner.activities.look_behind(&self.inner, connection, self.id),
            }
        }
    }
}
