//! Activities that go from whoever schedules them straight to workers who wait, or who usually ask at once (see `handover.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use duroxide::providers::WorkItem;
use uuid::Uuid;

use crate::activity_fetch::{ActivityRequest, Claimed};
use crate::encode;
use crate::granted::{Granted, give_back_lost};
use crate::handover::{Handover, To};
use crate::history::Tail;
use crate::inner::Inner;
use crate::poll::Request;
use crate::token::ActivityToken;
use crate::turn_ack::{TurnAck, TurnAnswer};
use crate::wake::Queue;
use crate::work_item::Activities;

/// An activity that is about to be put into the queue.
#[derive(Clone, Copy)]
pub(crate) struct Coming<'a> {
    pub(crate) columns: &'a Activities,
    /// Which of them it is.
    pub(crate) place: usize,
    pub(crate) item: &'a WorkItem,
    /// Should it be handed over.
    pub(crate) lease: Uuid,
}

impl Coming<'_> {
    /// Whether it can be handed over to those who ask for this. Of sessions, each fetch decides whether it takes them.
    pub(crate) fn fits(&self, request: &ActivityRequest) -> bool {
        self.columns.sessions[self.place].is_empty() && request.takes(&self.columns.tags[self.place])
    }

    /// `id`: 0 if it is not known.
    fn token(&self, id: i64) -> ActivityToken {
        ActivityToken {
            lease: self.lease,
            execution_id: self.columns.execution_ids[self.place],
            activity_id: self.columns.activity_ids[self.place],
            id,
            instance_id: self.columns.instance_ids[self.place].clone(),
        }
    }
}

/// What a call hands over.
pub(crate) struct ActivityHandover<'a> {
    inner: Arc<Inner>,
    coming: Vec<Coming<'a>>,
    /// How long each is leased, if it is.
    lease_ms: Vec<Option<i64>>,
    handed: Vec<Handover<ActivityRequest>>,
}

impl<'a> ActivityHandover<'a> {
    pub(crate) fn new(inner: &Arc<Inner>, to: To, coming: Vec<Coming<'a>>) -> Self {
        Self::of(inner, to, coming, |_| true)
    }

    /// Of those that the ends of these turns schedule, one turn after the other.
    pub(crate) fn of_turns(inner: &Arc<Inner>, acks: &'a [Arc<TurnAck>]) -> Self {
        let of_turn = |ack: &'a Arc<TurnAck>| {
            let leased = ack.worker_items.iter().zip(&ack.activity_leases).enumerate();
            leased.map(|(place, (item, lease))| {
                let columns = &ack.activities;
                Coming {
                    columns,
                    place,
                    item,
                    lease: *lease,
                }
            })
        };
        let turns = turns_of(acks);
        // What is cancelled in the same breath must not begin.
        Self::of(
            inner,
            To::WhoeverWaits,
            acks.iter().flat_map(of_turn).collect(),
            |position| acks[turns[position]].cancelled.activity_ids.is_empty(),
        )
    }

    fn of(inner: &Arc<Inner>, to: To, coming: Vec<Coming<'a>>, may_begin: impl Fn(usize) -> bool) -> Self {
        let mut lease_ms = vec![None; coming.len()];
        let mut handed = Vec::new();
        if !coming.is_empty() {
            handed = inner
                .activities
                .hand_over(inner, coming.len(), to, |request, position| {
                    coming[position].fits(request) && may_begin(position)
                });
        }
        for handover in &handed {
            for position in &handover.items {
                lease_ms[*position] = Some(encode::milliseconds(handover.request().lock_timeout()));
            }
        }
        Self {
            inner: Arc::clone(inner),
            coming,
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

    /// Turns have ended.
    pub(crate) fn turns_land(self, acks: &[Arc<TurnAck>], answers: &[TurnAnswer]) {
        let turns = turns_of(acks);
        let rows = answers.iter().flat_map(|answer| answer.handed.iter().copied());
        let history = |position: usize| {
            let (ack, answer) = (&acks[turns[position]], answers.get(turns[position])?);
            // Of a last turn nothing stays in memory.
            ack.node?;
            let (epoch, last_event_id) = answer.history_epoch.zip(ack.last_event_id())?;
            Some((
                ack.token.instance_id.clone(),
                Tail {
                    epoch: Some(epoch),
                    execution_id: ack.execution_id,
                    cached_event_id: last_event_id,
                    events: Vec::new(),
                },
            ))
        };
        self.land(rows.collect(), history);
    }

    /// The call was answered: the rows of what is leased. `history`: what is known of an instance's, by the position of the activity.
    pub(crate) fn land(self, rows: HashMap<Uuid, i64>, history: impl Fn(usize) -> Option<(String, Tail)>) {
        for handover in self.handed {
            let lock_timeout = handover.request().lock_timeout();
            let granted = handover.items.iter().filter_map(|position| {
                let coming = &self.coming[*position];
                let token = coming.token(*rows.get(&coming.lease)?);
                self.inner.leases.extended(token.lease, lock_timeout);
                let ahead = history(*position).filter(|(instance_id, _)| *instance_id == token.instance_id);
                let (lease, token) = (token.lease, token.to_string());
                let claimed = Claimed::new((coming.item.clone(), token.clone(), 1), ahead);
                Some(Granted::new(&self.inner, Queue::Worker, lease, token, claimed))
            });
            let mut granted: Vec<_> = granted.collect();
            if handover.is_stale() {
                granted.drain(..).for_each(Granted::hand_back);
            }
            handover.land(granted);
        }
    }

    /// Nobody knows whether they are leased: whoever looks for them shall not have to wait for the leases' end.
    pub(crate) fn lose(self) {
        for handover in self.handed {
            for position in &handover.items {
                let token = self.coming[*position].token(0);
                give_back_lost(&self.inner, Queue::Worker, token.to_string());
            }
        }
    }
}

/// For each activity of all turns, one after the other: its turn.
fn turns_of(acks: &[Arc<TurnAck>]) -> Vec<usize> {
    let turns = acks.iter().enumerate();
    turns
        .flat_map(|(turn, ack)| std::iter::repeat_n(turn, ack.worker_items.len()))
        .collect()
}
