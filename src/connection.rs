//! A connection on its way from the pool and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;

use crate::connect::Pooled;

/// A connection of the pool, and the calls on it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Checkout>);

/// It goes back to the pool only when it was left in a known state: a caller that is dropped, or gave up waiting, must
/// not leave the next one queueing behind its statement.
struct Checkout {
    object: Option<Pooled>,
    /// Calls that have not ended, or ended badly.
    open: AtomicUsize,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(crate) fn new(object: Pooled, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self(Arc::new(Checkout {
            object: Some(object),
            open: AtomicUsize::new(0),
            _permit: permit,
        }))
    }

    pub(crate) fn client(&self) -> &Pooled {
        // Taken only in `drop`.
        self.0.object.as_ref().unwrap_or_else(|| unreachable!())
    }

    pub(crate) fn call_begins(&self) {
        self.0.open.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn call_ended(&self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let (Some(object), 1..) = (self.object.take(), *self.open.get_mut()) {
            drop(object.take());
        }
    }
}
