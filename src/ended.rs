//! Ends that somebody of the same process waits for.
//!
//! Whoever reads a history to learn of its end (`polled.rs`) is told by the ack of the last turn: this process has all events, and the database
//! says, in the transaction that adds the last ones, whether they are indeed all there is. So a read that began before that transaction
//! needs no call of its own.

use std::sync::Arc;
use std::time::Instant;

use duroxide::Event;

use crate::cache::Known;
use crate::inner::Inner;
use crate::instances::CustomStatus;
use crate::turn_ack::{TurnAck, TurnAnswer};

/// What will be known when the ack of a last turn has succeeded.
pub(crate) struct Ending {
    /// The history before it; none if there is none.
    known: Option<Known>,
    events: Vec<Event>,
    sent_at: Instant,
}

/// A history that has come to its end.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) history: Arc<Vec<Event>>,
    /// None if it has to be asked for.
    pub(crate) status: Option<Option<CustomStatus>>,
    /// From when on it is true at the earliest.
    pub(crate) since: Instant,
}

impl Inner {
    /// Before the ack of a last turn is sent. Nothing of it stays in memory; `events`: its own.
    pub(crate) fn announce_end(&self, ack: &mut TurnAck, events: Vec<Event>) -> Option<Ending> {
        let instance_id = &ack.token.instance_id;
        let known = self.cache.forget(instance_id);
        if !self.polled.is_awaited(instance_id) {
            return None;
        }
        let known = match ack.first_event_id()? {
            1 => None,
            first => {
                let precedes =
                    |known: &Known| (known.execution_id, known.last_event_id + 1) == (ack.execution_id, first);
                Some(known.filter(precedes)?)
            }
        };
        // One after the other, as the runtime numbers them.
        if !ack.events.ids.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
            return None;
        }
        ack.tells_end = true;
        Some(Ending {
            known,
            events,
            sent_at: Instant::now(),
        })
    }
}

impl Ending {
    /// The ack has succeeded. None if what this process has is not, or not all of, what the database has.
    pub(crate) fn came_true(self, answer: TurnAnswer) -> Option<Ended> {
        let epoch = answer.history_epoch?;
        let history = match self.known {
            None => self.events,
            Some(known) if known.epoch == epoch => {
                let mut history = Arc::unwrap_or_clone(known.events);
                history.extend(self.events);
                history
            }
            Some(_) => return None,
        };
        Some(Ended {
            history: Arc::new(history),
            status: answer.status,
            since: self.sent_at,
        })
    }
}
