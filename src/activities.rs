//! The worker queue: `sql/activities`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::WorkItem;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::activity_ack::{ActivityAck, ActivityAcks, done, some_rest};
use crate::activity_handover::{ActivityHandover, Coming};
use crate::batch;
use crate::call::{Answer, LeaseCall, Parameters};
use crate::encode;
use crate::error::{CallError, Failure};
use crate::follow::Follow;
use crate::handover::{To, during, may_have_spoilt};
use crate::inner::Inner;
use crate::kept::RETURNING;
use crate::messages::enqueue_error;
use crate::pace::Step;
use crate::rests::REST;
use crate::token::ActivityToken;
use crate::turn_handover::TurnHandover;
use crate::wake::Queue;
use crate::work_item::{Activities, completion};

const ENQUEUE: &str = "enqueue_for_worker";
const ENQUEUE_MANY: &str = "enqueue_for_workers";
const ACK: &str = "ack_work_item";
const ACK_MANY: &str = "ack_work_items";

impl Inner {
    /// Calls a function whose first parameters say which leased activity it is about.
    async fn call_on_activity(
        &self,
        operation: &'static str,
        token: &ActivityToken,
        parameters: Parameters<'_>,
        lease: LeaseCall<'_>,
    ) -> Answer<Vec<Row>> {
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![
            &token.instance_id,
            &token.execution_id,
            &token.activity_id,
            &token.lease,
        ];
        all.extend_from_slice(parameters);
        self.caller.call_within_lease(operation, &all, lease, None).await
    }

    pub(crate) async fn ack_work_item(self: &Arc<Self>, token: &str, result: Option<&WorkItem>) -> Result<(), Failure> {
        let ack = Arc::new(ActivityAck {
            token: activity_token(ACK, token)?,
            completion: result.map(|item| completion(ACK, item)).transpose()?,
        });
        let lease = ack.token.lease;
        self.leases.finished(lease);
        let answer = match self.activity_acks.attempt(self, Arc::clone(&ack)).await {
            Ok(done) => Answer {
                result: ack.held(done),
                repeated: false,
            },
            Err(failed) => {
                let turns = TurnHandover::none(self);
                let parameters = ack.parameters(&turns, &None, &0);
                let mut answer = self
                    .caller
                    .call_within_lease(ACK, &parameters, self.activity_lease(&ack), failed)
                    .await;
                // Expired, and still there: no earlier attempt has ended it.
                answer.repeated &= !answer.result.as_ref().is_err_and(CallError::is_lease_lost);
                self.activities_ended(std::slice::from_ref(&ack), true, None);
                answer.and_then(|rows| ack.held(done(&rows)?.pop().ok_or(CallError::NoAnswer)?))
            }
        };
        self.lease_ended(ACK, lease, answer, true)
    }

    /// Looks for what those who end these activities will ask for next, if less than `enough` for each of them is at hand: for as much as makes
    /// `most` for each.
    fn look_for_next(self: &Arc<Self>, acks: &[Arc<ActivityAck>], enough: usize, most: usize) {
        let leases = acks.iter().map(|ack| ack.token.lease);
        if let Some((group, returning)) = self.leases.most_return_to(leases) {
            self.activities
                .look_next(self, group, returning * enough, returning * most);
        }
    }

    /// How long an instance rests that has other activities. They probably end soon, and then one turn does for all; but only somebody
    /// who waits for turns here can be counted on to look then.
    fn rest(&self, instances: &[&str]) -> Duration {
        let is_worth_it = self.leases.work_is_short()
            && self.turns.has_waiters()
            && self.rests.are_worth_it(instances.iter().copied(), Instant::now());
        if is_worth_it { REST } else { Duration::ZERO }
    }

    /// Activities of these instances were acked. `some_rest`: which of the instances is not known.
    fn rested(&self, instances: &[&str], some_rest: bool) {
        let now = Instant::now();
        for instance in instances {
            if some_rest {
                self.rests.begins(instance, now);
            } else {
                self.rests.ends(instance);
            }
        }
        if some_rest {
            self.turns.due_by(now + REST);
        }
    }

    /// Activities may have completed. `look`: somebody has to look for the turns that this makes due.
    fn activities_ended(self: &Arc<Self>, acks: &[Arc<ActivityAck>], look: bool, behind: Option<u64>) {
        if acks.iter().any(|ack| ack.completion.is_some()) {
            self.made_due(Queue::Orchestrator, look, behind);
        }
    }

    fn activity_lease<'a>(&'a self, ack: &ActivityAck) -> LeaseCall<'a> {
        LeaseCall {
            bytes: batch::Request::bytes(ack),
            ..self.lease_call(ack.token.lease, None)
        }
    }

    /// One attempt for many activities.
    pub(crate) fn send_activity_acks(
        self: Arc<Self>,
        acks: Vec<Arc<ActivityAck>>,
    ) -> BoxFuture<'static, Vec<Result<bool, CallError>>> {
        async move {
            let columns = ActivityAcks::new(&acks);
            let completed = acks.iter().filter_map(|ack| ack.completion.as_ref());
            let instances: Vec<_> = completed.map(|(instance_id, _)| instance_id.as_str()).collect();
            self.turns.hand_back_of(instances.iter().copied());
            let mut turns = TurnHandover::new(&self, To::WhoeverWaits, instances.iter().copied());
            let rest = self.rest(&instances);
            let rest_ms = encode::milliseconds(rest);
            let call = async |turns: &TurnHandover, follow: &Follow| {
                let leases = acks.iter().map(|ack| self.activity_lease(ack));
                let lease = turns.lease();
                let (function, parameters) = match acks.as_slice() {
                    // Alone it is cheaper.
                    [ack] => (ACK, ack.parameters(turns, &lease, &rest_ms)),
                    _ => (ACK_MANY, columns.parameters(turns, &rest_ms)),
                };
                let call = self.caller.call_within_leases(function, &parameters, leases, follow);
                during(turns.handover(), call).await
            };
            // What is found beside an ack that takes its time would be back in the queue when it is answered.
            if self.pace.took(Queue::Worker, Step::Ack) < RETURNING / 2 {
                self.look_for_next(&acks, 1, if self.leases.work_is_short() { 2 } else { 1 });
            }
            let mut follow = turns.follow();
            let mut sent = call(&turns, &follow).await;
            if turns.handover().is_some() && may_have_spoilt(ACK, &sent) {
                turns = turns.without_turns();
                follow = turns.follow();
                sent = call(&turns, &follow).await;
            }
            // Here, because a caller may have gone away.
            let look = turns.land(&sent).await;
            if sent.is_ok() && self.leases.work_is_short() {
                // While they work: then there is nothing to look for while they ack.
                let most = match (self.leases.work_takes_a_moment(), self.waker.has_company()) {
                    // All of it is soon done, and few large looks cost less than many small ones.
                    (true, _) => 6,
                    // Others want their share.
                    (false, true) => 2,
                    (false, false) => 3,
                };
                self.look_for_next(&acks, 2, most);
            }
            if let Ok(rows) = &sent {
                if !rest.is_zero() {
                    self.rested(&instances, some_rest(rows));
                }
                self.activities_ended(&acks, look, Some(follow.id()));
            }
            batch::answers(sent.and_then(|rows| columns.done(&rows)), acks.len())
        }
        .boxed()
    }

    pub(crate) async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), Failure> {
        const OPERATION: &str = "renew_work_item_lock";
        let token = activity_token(OPERATION, token)?;
        let answer = self
            .call_on_activity(
                OPERATION,
                &token,
                &[&encode::milliseconds(extend_for)],
                self.lease_call(token.lease, Some(extend_for)),
            )
            .await;
        answer.result.map_err(|error| error.to_failure(OPERATION))?;
        self.leases.extended(token.lease, extend_for);
        Ok(())
    }

    /// `place_ms`: nobody has begun it, and it has its place in the queue again, that of what has been due since then.
    pub(crate) async fn abandon_work_item(
        self: &Arc<Self>,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
        place_ms: Option<i64>,
    ) -> Result<(), Failure> {
        const OPERATION: &str = "abandon_work_item";
        let token = activity_token(OPERATION, token)?;
        let answer = self
            .call_on_activity(
                OPERATION,
                &token,
                &[&delay.map(encode::milliseconds), &ignore_attempt, &place_ms],
                self.lease_call(token.lease, None),
            )
            .await;
        self.lease_ended(OPERATION, token.lease, answer, true)?;
        self.enqueued(Queue::Worker, None);
        Ok(())
    }

    pub(crate) async fn enqueue_for_worker(self: &Arc<Self>, item: WorkItem) -> Result<(), Failure> {
        let mut columns = Activities::default();
        columns.push(ENQUEUE, &item)?;
        let activity = NewActivity {
            columns,
            item,
            lease: Uuid::new_v4(),
        };
        let sent = self.new_activities.tell(self, Arc::new(activity)).await;
        sent.map_err(|error| enqueue_error(ENQUEUE, &error))
    }

    /// Many activities in one call.
    pub(crate) fn send_activities(
        self: Arc<Self>,
        activities: Vec<Arc<NewActivity>>,
    ) -> BoxFuture<'static, Vec<Result<(), CallError>>> {
        async move {
            let coming = activities.iter().map(|activity| activity.coming()).collect();
            let handover = ActivityHandover::new(&self, To::WhoeverAsksNext, coming);
            let leaves_some = handover.leaves_some();
            let follow = Follow::new(&self, [leaves_some.then_some(Queue::Worker)]);
            let call = async {
                match (activities.as_slice(), handover.lease_ms()) {
                    // Alone it is cheaper.
                    ([activity], [lease_ms]) => self.send_activity(activity, *lease_ms, &follow).await,
                    (_, lease_ms) => self.send_activity_columns(&activities, lease_ms, &follow).await,
                }
            };
            let sent = during(handover.handovers(), call).await;
            let look = leaves_some || sent.is_err();
            let answers = match sent {
                Ok(rows) => {
                    handover.land(rows, |_| None);
                    Ok(vec![(); activities.len()])
                }
                Err(error) => {
                    if error.is_ambiguous() {
                        handover.lose();
                    }
                    Err(error)
                }
            };
            if answers.is_ok() {
                self.activities
                    .filled(|request| activities.iter().filter(|one| one.coming().fits(request)).count());
            }
            // Here, because a caller may have gone away; and also when it is not known whether they arrived.
            self.made_due(Queue::Worker, look, Some(follow.id()));
            batch::answers(answers, activities.len())
        }
        .boxed()
    }

    /// The id of its row, if it is leased, by its lease.
    async fn send_activity(
        &self,
        activity: &NewActivity,
        lease_ms: Option<i64>,
        follow: &Follow,
    ) -> Result<HashMap<Uuid, i64>, CallError> {
        let columns = &activity.columns;
        let lease = lease_ms.map(|_| activity.lease);
        let parameters: Parameters<'_> = &[
            &columns.instance_ids[0],
            &columns.execution_ids[0],
            &columns.activity_ids[0],
            &columns.tags[0],
            &columns.sessions[0],
            &columns.items[0],
            &lease,
            &lease_ms,
        ];
        let rows = self.caller.call_followed(ENQUEUE, parameters, Some(follow)).await?;
        let id = rows.first().ok_or(CallError::NoAnswer)?.try_get(0)?;
        Ok(lease.map(|lease| (lease, id)).into_iter().collect())
    }

    /// The ids of the rows of those that are leased, by their leases.
    async fn send_activity_columns(
        &self,
        activities: &[Arc<NewActivity>],
        lease_ms: &[Option<i64>],
        follow: &Follow,
    ) -> Result<HashMap<Uuid, i64>, CallError> {
        let texts = |column: fn(&Activities) -> &Vec<String>| -> Vec<&str> {
            let columns = activities.iter().flat_map(|one| column(&one.columns));
            columns.map(String::as_str).collect()
        };
        let ids = |column: fn(&Activities) -> &Vec<i64>| -> Vec<i64> {
            activities
                .iter()
                .flat_map(|one| column(&one.columns))
                .copied()
                .collect()
        };
        let (mut leases, mut lease_ms) = (Vec::new(), lease_ms);
        if lease_ms.iter().any(Option::is_some) {
            leases.extend(activities.iter().map(|one| one.lease));
        } else {
            lease_ms = &[];
        }
        let rows = self
            .caller
            .call_followed(
                ENQUEUE_MANY,
                &[
                    &texts(|one| &one.instance_ids),
                    &ids(|one| &one.execution_ids),
                    &ids(|one| &one.activity_ids),
                    &texts(|one| &one.tags),
                    &texts(|one| &one.sessions),
                    &texts(|one| &one.items),
                    &leases,
                    &lease_ms,
                ],
                Some(follow),
            )
            .await?;
        let row = rows.first().ok_or(CallError::NoAnswer)?;
        Ok(crate::turn_ack::handed(row)?.collect())
    }
}

/// One activity for the queue.
pub(crate) struct NewActivity {
    columns: Activities,
    item: WorkItem,
    /// Should it be handed over.
    lease: Uuid,
}

impl NewActivity {
    fn coming(&self) -> Coming<'_> {
        Coming {
            columns: &self.columns,
            place: 0,
            item: &self.item,
            lease: self.lease,
        }
    }
}

impl batch::Request for NewActivity {
    fn bytes(&self) -> usize {
        self.columns.items.iter().map(String::len).sum()
    }
}

fn activity_token(operation: &str, token: &str) -> Result<ActivityToken, Failure> {
    ActivityToken::parse(token)
        .ok_or_else(|| Failure::permanent(operation, "Invalid lock token: not a token of an activity"))
}
