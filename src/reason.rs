//! Why somebody looks into a queue.

/// Why those who wait look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A fetch arrived.
    Asked,
    /// This process put something into the queue, or gave something back.
    Enqueued,
    /// This process is about to: the look goes out right behind the call that does.
    Behind,
    /// This process is about to, and that call brings it as well: no look goes out at all.
    Handed,
    /// Another process said so.
    Notified,
    /// It is the time the database gave: of a timer, a delayed message or the end of a lease.
    Due,
    /// Nothing was heard for a while.
    Fallback,
    /// The look before brought something: there may be more.
    More,
    /// Some are ending what they have, and will ask for the next.
    Next,
    /// The look before failed.
    Failed,
    /// Notifications may have been missed, or are no longer to be had.
    Listener,
    /// The provider was closed.
    Closed,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Enqueued => "enqueued",
            Self::Behind => "behind",
            Self::Handed => "handed",
            Self::Notified => "notified",
            Self::Due => "due",
            Self::Fallback => "fallback",
            Self::More => "more",
            Self::Next => "next",
            Self::Failed => "failed",
            Self::Listener => "listener",
            Self::Closed => "closed",
        }
    }
}
