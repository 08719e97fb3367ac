//! Activities that go from the turn that schedules them straight to workers who wait (see `handover.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use crate::activity_fetch::{ActivityRequest, Claimed};
use crate::encode;
use crate::granted::Granted;
use crate::handover::Handover;
use crate::history::Tail;
use crate::inner::Inner;
use crate::poll::Request;
use crate::token::ActivityToken;
use crate::turn_ack::{TurnAck, TurnAnswer};
use crate::wake::Queue;

/// What the ends of some turns hand over.
pub(crate) struct ActivityHandover {
    inner: Arc<Inner>,
    /// For each activity of all turns, one after the other: its turn, and its place there.
    places: Vec<(usize, usize)>,
    /// How long it is leased, if it is.
    lease_ms: Vec<Option<i64>>,
    handed: Vec<Handover<ActivityRequest>>,
}

impl ActivityHandover {
    pub(crate) fn new(inner: &Arc<Inner>, acks: &[Arc<TurnAck>]) -> Self {
        let places: Vec<_> = (acks.iter().enumerate())
            .flat_map(|(turn, ack)| (0..ack.worker_items.len()).map(move |place| (turn, place)))
            .collect();
        let mut lease_ms = vec![None; places.len()];
        let mut handed = Vec::new();
        if !places.is_empty() {
            handed = inner.activities.hand_over(inner, places.len(), |request, position| {
                let (turn, place) = places[position];
                let (activities, cancelled) = (&acks[turn].activities, &acks[turn].cancelled);
                // What is cancelled in the same breath must not begin.
                activities.sessions[place].is_empty()
                    && cancelled.activity_ids.is_empty()
                    && request.takes(&activities.tags[place])
            });
        }
        for handover in &handed {
            for position in &handover.items {
                lease_ms[*position] = Some(encode::milliseconds(handover.request().lock_timeout()));
            }
        }
        Self {
            inner: Arc::clone(inner),
            places,
            lease_ms,
            handed,
        }
    }

    pub(crate) fn lease_ms(&self) -> &[Option<i64>] {
        &self.lease_ms
    }

    /// Whether there are activities for others.
    pub(crate) fn leaves_some(&self) -> bool {
        self.lease_ms.contains(&None)
    }

    pub(crate) fn handovers(&self) -> &[Handover<ActivityRequest>] {
        &self.handed
    }

    /// The call has been answered.
    pub(crate) fn land(self, acks: &[Arc<TurnAck>], answers: &[TurnAnswer]) {
        let rows: HashMap<_, _> = answers
            .iter()
            .flat_map(|answer| answer.handed.iter().copied())
            .collect();
        for handover in self.handed {
            let lock_timeout = handover.request().lock_timeout();
            let granted = handover.items.iter().filter_map(|position| {
                let (turn, place) = self.places[*position];
                let (ack, answer) = (&acks[turn], answers.get(turn)?);
                let token = ActivityToken {
                    lease: ack.activity_leases[place],
                    execution_id: ack.activities.execution_ids[place],
                    activity_id: ack.activities.activity_ids[place],
                    id: *rows.get(&ack.activity_leases[place])?,
                    instance_id: ack.activities.instance_ids[place].clone(),
                };
                self.inner.leases.extended(token.lease, lock_timeout);
                let tail = answer
                    .history_epoch
                    .zip(ack.last_event_id())
                    .map(|(epoch, last_event_id)| Tail {
                        epoch: Some(epoch),
                        execution_id: ack.execution_id,
                        cached_event_id: last_event_id,
                        events: Vec::new(),
                    });
                let (item, lease, token) = (ack.worker_items[place].clone(), token.lease, token.to_string());
                let ahead = tail
                    .filter(|_| ack.activities.instance_ids[place] == ack.token.instance_id)
                    .map(|tail| (ack.token.instance_id.clone(), tail));
                let claimed = Claimed::new((item, token.clone(), 1), ahead);
                Some(Granted::new(&self.inner, Queue::Worker, lease, token, claimed))
            });
            let mut granted: Vec<_> = granted.collect();
            if handover.is_stale() {
                granted.drain(..).for_each(Granted::hand_back);
            }
            handover.land(granted);
        }
    }
}
