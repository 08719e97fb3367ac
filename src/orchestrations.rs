//! Orchestration turns: `sql/orchestrations`.

use std::sync::Arc;
use std::time::Duration;

use duroxide::Event;
use duroxide::providers::{DispatcherCapabilityFilter, ExecutionMetadata, ScheduledActivityIdentifier, WorkItem};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::warn;

use crate::activity_handover::ActivityHandover;
use crate::batch;
use crate::call::{Answer, Connection, LeaseCall};
use crate::encode;
use crate::error::{CallError, Failure};
use crate::follow::Follow;
use crate::granted::Granted;
use crate::handover::during;
use crate::inner::Inner;
use crate::look::Found;
use crate::poll::{self, Fetch, Line};
use crate::token::TurnToken;
use crate::turn::{Fetched, Turn};
use crate::turn_ack::{Columns, TurnAck, TurnAnswer};
use crate::turn_acks::TurnAcks;
use crate::wake::Queue;

/// When to look again for an instance whose history could not be had.
const UNAVAILABLE: Duration = Duration::from_millis(500);

/// The version range of a filter; none if it allows nothing. Only the first range counts: the framework
/// has defined no more yet, and its validations insist.
fn version_range(filter: Option<&DispatcherCapabilityFilter>) -> Option<(i64, i64)> {
    match filter {
        None => Some((0, i64::MAX)),
        Some(filter) => filter
            .supported_duroxide_versions
            .first()
            .map(|range| (encode::version(&range.min), encode::version(&range.max))),
    }
}

/// What a dispatcher asks for, in the terms of the function.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TurnRequest {
    lock_timeout: Duration,
    pub(crate) min_version: i64,
    pub(crate) max_version: i64,
}

impl poll::Request for TurnRequest {
    type Item = Turn;
    const QUEUE: Queue = Queue::Orchestrator;

    fn look(
        self,
        inner: Arc<Inner>,
        wanted: usize,
        behind: Option<Connection>,
    ) -> BoxFuture<'static, Result<Found<Turn>, Failure>> {
        async move { inner.look_for_turns(self, wanted, behind).await }.boxed()
    }

    fn lock_timeout(&self) -> Duration {
        self.lock_timeout
    }

    fn line(inner: &Inner) -> &Line<Self> {
        &inner.turns
    }
}

impl Inner {
    pub(crate) async fn fetch_orchestration_item(
        self: &Arc<Self>,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<Turn>, Failure> {
        let Some((min_version, max_version)) = version_range(filter) else {
            self.wait_in_vain(poll_timeout).await;
            return Ok(None);
        };
        let request = TurnRequest {
            lock_timeout,
            min_version,
            max_version,
        };
        match self.fetch(&request, poll_timeout).await? {
            Fetch::Item(turn) => Ok(Some(turn)),
            Fetch::Nothing | Fetch::AskAnew => Ok(None),
        }
    }

    async fn look_for_turns(
        self: &Arc<Self>,
        request: TurnRequest,
        wanted: usize,
        behind: Option<Connection>,
    ) -> Result<Found<Turn>, Failure> {
        const OPERATION: &str = "fetch_orchestration_item";
        let node = self.cache.is_enabled().then_some(self.node);
        let rows = self
            .call_with_care(
                OPERATION,
                &[
                    &encode::milliseconds(request.lock_timeout),
                    &request.min_version,
                    &request.max_version,
                    &i32::try_from(wanted).unwrap_or(i32::MAX),
                    &node,
                ],
                behind,
            )
            .await?;
        let mut found = Found::nothing();
        let mut is_unavailable = false;
        for row in rows {
            match self
                .decode_turn(&row)
                .await
                .map_err(|error| self.decoding(OPERATION, error))?
            {
                Fetched::Turn { lease, turn } => {
                    self.leases.extended(lease, request.lock_timeout);
                    let token = turn.1.clone();
                    found
                        .granted
                        .push(Granted::new(self, Queue::Orchestrator, lease, token, *turn));
                }
                // By being dropped it is handed back, and the attempt does not count.
                Fetched::Unavailable { lease, token } => {
                    drop(Granted::new(self, Queue::Orchestrator, lease, token, ()));
                    is_unavailable = true;
                }
                Fetched::Dropped { instance_id, count } => warn!(
                    instance = instance_id,
                    count, "dropped queue messages for an instance that was never started"
                ),
                Fetched::Nothing { next } => found.next = next,
            }
        }
        if is_unavailable {
            found.next = Some(found.next.map_or(UNAVAILABLE, |next| next.min(UNAVAILABLE)));
        }
        Ok(found)
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn ack_orchestration_item(
        self: &Arc<Self>,
        token: &str,
        execution_id: u64,
        history_delta: Vec<Event>,
        worker_items: Vec<WorkItem>,
        orchestrator_items: &[WorkItem],
        metadata: &ExecutionMetadata,
        cancelled_activities: &[ScheduledActivityIdentifier],
    ) -> Result<(), Failure> {
        const OPERATION: &str = "ack_orchestration_item";
        let mut ack = TurnAck::encode(
            OPERATION,
            turn_token(OPERATION, token)?,
            execution_id,
            &history_delta,
            worker_items,
            orchestrator_items,
            metadata,
            cancelled_activities,
        )?;
        let (announced, ending) = if ack.ends_orchestration() {
            (None, self.announce_end(&mut ack, history_delta))
        } else {
            (self.announce_turn(&mut ack, history_delta), None)
        };
        let ack = Arc::new(ack);
        let lease = ack.token.lease;
        let answer = match self.turn_acks.attempt(self, Arc::clone(&ack)).await {
            Ok(answer) => Answer {
                result: answer.held(&ack),
                repeated: false,
            },
            Err(failed) => {
                // Nobody waits for a repetition: it hands nothing over, and gives back what the first attempt did.
                let lease_ms = vec![None; ack.worker_items.len()];
                let answer = self
                    .caller
                    .call_within_lease(
                        OPERATION,
                        &Columns::new(&ack, &lease_ms).parameters(),
                        self.turn_lease(&ack),
                        failed,
                    )
                    .await
                    .and_then(|rows| TurnAnswer::decode(&rows));
                let activities = (!ack.worker_items.is_empty()).then_some(true);
                self.turns_ended(answer.result.as_deref(), activities, None);
                answer.and_then(|mut answers| answers.pop().ok_or(CallError::NoAnswer)?.held(&ack))
            }
        };
        let answer = self.lease_ended(OPERATION, lease, answer, ack.events.ids.is_empty())?;
        if let Some(announced) = announced {
            announced.confirm();
        }
        if ack.ends_orchestration() {
            let ended = ending.zip(answer).and_then(|(ending, answer)| ending.came_true(answer));
            self.polled.has_ended(&ack.token.instance_id, ended);
        }
        Ok(())
    }

    /// Turns may have left or sent something. `activities`: if there are any, whether somebody has to look for them.
    fn turns_ended(
        self: &Arc<Self>,
        answers: Result<&[TurnAnswer], &CallError>,
        activities: Option<bool>,
        behind: Option<u64>,
    ) {
        // Whoever does not know better looks once too often.
        if answers.map_or(true, |answers| {
            answers
                .iter()
                .any(|answer| answer.due_ms.is_some() || answer.done.is_none())
        }) {
            self.enqueued(Queue::Orchestrator, behind);
        }
        if let Some(look) = activities {
            self.made_due(Queue::Worker, look, behind);
        }
    }

    /// What the ends of turns fill at once: later is not worth a look behind them.
    fn follow_turns(self: &Arc<Self>, acks: &[Arc<TurnAck>], activities: bool) -> Follow {
        let messages = acks.iter().any(|ack| ack.messages.visible_at_ms.contains(&None));
        Follow::new(
            self,
            [
                messages.then_some(Queue::Orchestrator),
                activities.then_some(Queue::Worker),
            ],
        )
    }

    fn turn_lease<'a>(&'a self, ack: &TurnAck) -> LeaseCall<'a> {
        LeaseCall {
            bytes: batch::Request::bytes(ack),
            ..self.lease_call(ack.token.lease, None)
        }
    }

    /// One attempt for many turns.
    pub(crate) fn send_turn_acks(
        self: Arc<Self>,
        acks: Vec<Arc<TurnAck>>,
    ) -> BoxFuture<'static, Vec<Result<TurnAnswer, CallError>>> {
        async move {
            let leases = acks.iter().map(|ack| self.turn_lease(ack));
            let sent_to = acks.iter().flat_map(|ack| &ack.messages.instance_ids);
            self.turns.hand_back_of(sent_to.map(String::as_str));
            let cancelled = acks.iter().flat_map(|ack| &ack.cancelled.instance_ids);
            self.activities.hand_back_of(cancelled.map(String::as_str));
            let handover = ActivityHandover::of_turns(&self, &acks);
            let follow = self.follow_turns(&acks, handover.leaves_some());
            let lease_ms = handover.lease_ms();
            let sent = match acks.as_slice() {
                // Alone it is cheaper.
                [ack] => {
                    let columns = Columns::new(ack, lease_ms);
                    let parameters = columns.parameters();
                    let call = self
                        .caller
                        .call_within_leases("ack_orchestration_item", &parameters, leases, &follow);
                    during(handover.handovers(), call).await
                }
                _ => {
                    let columns = TurnAcks::new(&acks, lease_ms);
                    let parameters = columns.parameters();
                    let call = self
                        .caller
                        .call_within_leases("ack_orchestration_items", &parameters, leases, &follow);
                    during(handover.handovers(), call).await
                }
            };
            let answers = sent.and_then(|rows| TurnAnswer::decode(&rows));
            // Here, because a caller may have gone away.
            let activities = (!lease_ms.is_empty()).then_some(answers.is_err() || handover.leaves_some());
            if let Ok(answers) = &answers {
                handover.turns_land(&acks, answers);
            }
            self.turns_ended(answers.as_deref(), activities, Some(follow.id()));
            batch::answers(answers, acks.len())
        }
        .boxed()
    }

    /// `pause`: how long the instance rests unless another message comes for it.
    pub(crate) async fn abandon_orchestration_item(
        self: &Arc<Self>,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
        pause: Option<Duration>,
    ) -> Result<(), Failure> {
        const OPERATION: &str = "abandon_orchestration_item";
        let token = turn_token(OPERATION, token)?;
        let answer = self
            .caller
            .call_within_lease(
                OPERATION,
                &[
                    &token.instance_id,
                    &token.lease,
                    &delay.map(encode::milliseconds),
                    &ignore_attempt,
                    &pause.map(encode::milliseconds),
                ],
                self.lease_call(token.lease, None),
                None,
            )
            .await;
        self.lease_ended(OPERATION, token.lease, answer, true)?;
        self.enqueued(Queue::Orchestrator, None);
        Ok(())
    }

    pub(crate) async fn renew_orchestration_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), Failure> {
        const OPERATION: &str = "renew_orchestration_item_lock";
        let token = turn_token(OPERATION, token)?;
        let answer = self
            .caller
            .call_within_lease(
                OPERATION,
                &[&token.instance_id, &token.lease, &encode::milliseconds(extend_for)],
                self.lease_call(token.lease, Some(extend_for)),
                None,
            )
            .await;
        answer.result.map_err(|error| error.to_failure(OPERATION))?;
        self.leases.extended(token.lease, extend_for);
        Ok(())
    }
}

fn turn_token(operation: &str, token: &str) -> Result<TurnToken, Failure> {
    TurnToken::parse(token)
        .ok_or_else(|| Failure::permanent(operation, "Invalid lock token: not a token of an orchestration turn"))
}
