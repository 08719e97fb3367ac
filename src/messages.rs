//! Messages for orchestrations: many in one call.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::WorkItem;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::batch;
use crate::encode;
use crate::error::{CallError, Failure};
use crate::follow::Follow;
use crate::handover::{To, during, may_have_spoilt};
use crate::inner::Inner;
use crate::turn_handover::TurnHandover;
use crate::wake::Queue;
use crate::work_item::Message;

const OPERATION: &str = "enqueue_for_orchestrator";
const MANY: &str = "enqueue_for_orchestrators";

impl Inner {
    pub(crate) async fn enqueue_for_orchestrator(
        self: &Arc<Self>,
        item: &WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), Failure> {
        let mut message = Message::encode(OPERATION, item)?;
        if delay.is_some() {
            // The caller's delay decides, also for a timer.
            message.visible_at_ms = None;
        }
        let outgoing = Outgoing {
            message,
            delay_ms: delay.map(encode::milliseconds),
        };
        let sent = self.messages.tell(self, Arc::new(outgoing)).await;
        sent.map_err(|error| enqueue_error(OPERATION, &error))
    }

    /// Many messages in one call.
    pub(crate) fn send_messages(
        self: Arc<Self>,
        outgoing: Vec<Arc<Outgoing>>,
    ) -> BoxFuture<'static, Vec<Result<(), CallError>>> {
        async move {
            self.turns.hand_back_of(outgoing.iter().map(|one| one.instance_id()));
            let at_once: Vec<_> = outgoing.iter().filter(|one| one.is_due_at_once()).collect();
            let instance_ids = at_once.iter().map(|one| one.instance_id());
            let mut turns = TurnHandover::new(&self, To::WhoeverAsksNext, instance_ids);
            let mut follow = turns.follow();
            let mut sent = self.send_outgoing(&outgoing, &turns, &follow).await;
            if turns.handover().is_some() && may_have_spoilt(OPERATION, &sent) {
                turns = turns.without_turns();
                follow = turns.follow();
                sent = self.send_outgoing(&outgoing, &turns, &follow).await;
            }
            // Here, because a caller may have gone away; and also when it is not known whether they arrived.
            let look = turns.land(&sent).await;
            if sent.is_ok() {
                self.turns.filled(|_| at_once.len());
            }
            self.made_due(Queue::Orchestrator, look, Some(follow.id()));
            batch::answers(sent.map(|_| vec![(); outgoing.len()]), outgoing.len())
        }
        .boxed()
    }

    async fn send_outgoing(
        &self,
        outgoing: &[Arc<Outgoing>],
        turns: &TurnHandover,
        follow: &Follow,
    ) -> Result<Vec<Row>, CallError> {
        // Alone it is cheaper.
        if let [one] = outgoing {
            let (message, lease) = (&one.message, turns.lease());
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
                &message.instance_id,
                &message.kind,
                &message.item,
                &message.visible_at_ms,
                &one.delay_ms,
                &lease,
            ];
            parameters.extend(turns.terms());
            let call = self.caller.call_followed(OPERATION, &parameters, Some(follow));
            return during(turns.handover(), call).await;
        }
        let instance_ids: Vec<_> = outgoing.iter().map(|one| one.instance_id()).collect();
        let kinds: Vec<_> = outgoing.iter().map(|one| one.message.kind).collect();
        let items: Vec<_> = outgoing.iter().map(|one| one.message.item.as_str()).collect();
        let visible_at_ms: Vec<_> = outgoing.iter().map(|one| one.message.visible_at_ms).collect();
        let delays_ms: Vec<_> = outgoing.iter().map(|one| one.delay_ms).collect();
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&instance_ids, &kinds, &items, &visible_at_ms, &delays_ms];
        parameters.extend(turns.parameters());
        let call = self.caller.call_followed(MANY, &parameters, Some(follow));
        during(turns.handover(), call).await
    }
}

/// A message on its way.
pub(crate) struct Outgoing {
    message: Message,
    delay_ms: Option<i64>,
}

impl Outgoing {
    fn instance_id(&self) -> &str {
        &self.message.instance_id
    }

    fn is_due_at_once(&self) -> bool {
        self.delay_ms.is_none() && self.message.visible_at_ms.is_none()
    }
}

impl batch::Request for Outgoing {
    fn bytes(&self) -> usize {
        self.message.item.len()
    }
}

/// An enqueue is not repeated inside the provider: with its outcome unknown, that could deliver it twice.
pub(crate) fn enqueue_error(operation: &str, error: &CallError) -> Failure {
    let mut failure = error.to_failure(operation);
    if error.is_ambiguous() {
        failure
            .error
            .message
            .push_str("; the item may or may not have been enqueued");
    }
    failure
}
