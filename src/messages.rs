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
use crate::work_item::Messages;

const OPERATION: &str = "enqueue_for_orchestrator";

impl Inner {
    pub(crate) async fn enqueue_for_orchestrator(
        self: &Arc<Self>,
        item: &WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), Failure> {
        let mut messages = Messages::default();
        messages.push(OPERATION, item)?;
        if delay.is_some() {
            // The caller's delay decides, also for a timer.
            messages.visible_at_ms = vec![None];
        }
        let message = Message {
            columns: messages,
            delay_ms: delay.map(encode::milliseconds),
        };
        let sent = self.messages.tell(self, Arc::new(message)).await;
        sent.map_err(|error| enqueue_error(OPERATION, &error))
    }

    /// Many messages in one call.
    pub(crate) fn send_messages(
        self: Arc<Self>,
        messages: Vec<Arc<Message>>,
    ) -> BoxFuture<'static, Vec<Result<(), CallError>>> {
        async move {
            let instances = messages.iter().flat_map(|message| &message.columns.instance_ids);
            self.turns.hand_back_of(instances.map(String::as_str));
            let at_once = messages.iter().filter(|message| message.is_due_at_once());
            let instance_ids = at_once.flat_map(|message| &message.columns.instance_ids);
            let mut turns = TurnHandover::new(&self, To::WhoeverAsksNext, instance_ids.map(String::as_str));
            let mut follow = turns.follow();
            let mut sent = self.send_message_columns(&messages, &turns, &follow).await;
            if turns.handover().is_some() && may_have_spoilt(OPERATION, &sent) {
                turns = turns.without_turns();
                follow = turns.follow();
                sent = self.send_message_columns(&messages, &turns, &follow).await;
            }
            // Here, because a caller may have gone away; and also when it is not known whether they arrived.
            let look = turns.land(&sent).await;
            if sent.is_ok() {
                let due = messages.iter().filter(|message| message.is_due_at_once()).count();
                self.turns.filled(|_| due);
            }
            self.made_due(Queue::Orchestrator, look, Some(follow.id()));
            batch::answers(sent.map(|_| vec![(); messages.len()]), messages.len())
        }
        .boxed()
    }

    async fn send_message_columns(
        &self,
        messages: &[Arc<Message>],
        turns: &TurnHandover,
        follow: &Follow,
    ) -> Result<Vec<Row>, CallError> {
        let column = |text: fn(&Messages) -> &Vec<String>| -> Vec<&str> {
            messages
                .iter()
                .flat_map(|message| text(&message.columns))
                .map(String::as_str)
                .collect()
        };
        let kinds: Vec<i8> = messages
            .iter()
            .flat_map(|message| &message.columns.kinds)
            .copied()
            .collect();
        let visible_at_ms: Vec<Option<i64>> = messages
            .iter()
            .flat_map(|message| &message.columns.visible_at_ms)
            .copied()
            .collect();
        let delays_ms: Vec<Option<i64>> = messages.iter().map(|message| message.delay_ms).collect();
        let instance_ids = column(|columns| &columns.instance_ids);
        let items = column(|columns| &columns.items);
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&instance_ids, &kinds, &items, &visible_at_ms, &delays_ms];
        parameters.extend(turns.parameters());
        let call = self.caller.call_followed(OPERATION, &parameters, Some(follow));
        during(turns.handover(), call).await
    }
}

/// One message for an orchestration.
pub(crate) struct Message {
    columns: Messages,
    delay_ms: Option<i64>,
}

impl Message {
    fn is_due_at_once(&self) -> bool {
        self.delay_ms.is_none() && self.columns.visible_at_ms.contains(&None)
    }
}

impl batch::Request for Message {
    fn bytes(&self) -> usize {
        self.columns.items.iter().map(String::len).sum()
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
