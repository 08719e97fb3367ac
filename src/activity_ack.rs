//! The end of an activity, as `ack_work_item` takes it, or many in one call, column by column, as `ack_work_items` does.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::batch;
use crate::error::CallError;
use crate::token::ActivityToken;
use crate::turn_handover::TurnHandover;

/// The end of an activity.
pub(crate) struct ActivityAck {
    pub(crate) token: ActivityToken,
    /// Where its completion goes, and its text.
    pub(crate) completion: Option<(String, String)>,
}

impl ActivityAck {
    /// In the order of the parameters of the function for one.
    pub(crate) fn parameters<'a>(
        &'a self,
        turns: &'a TurnHandover,
        lease: &'a Option<Uuid>,
        rest_ms: &'a i64,
    ) -> Vec<&'a (dyn ToSql + Sync)> {
        let token = &self.token;
        let (instance_id, text): (&(dyn ToSql + Sync), &(dyn ToSql + Sync)) = match &self.completion {
            Some((instance_id, text)) => (instance_id, text),
            None => (&None::<&str>, &None::<&str>),
        };
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
            &token.instance_id,
            &token.execution_id,
            &token.activity_id,
            &token.id,
            &token.lease,
            instance_id,
            text,
            lease,
        ];
        parameters.extend(turns.terms());
        parameters.push(rest_ms);
        parameters
    }

    pub(crate) fn held(&self, done: bool) -> Result<(), CallError> {
        if done {
            return Ok(());
        }
        Err(CallError::LeaseLost(format!(
            "activity {} of instance {:?} was cancelled, or its lock has expired or is held by somebody else",
            self.token.activity_id, self.token.instance_id
        )))
    }
}

impl batch::Request for ActivityAck {
    fn key(&self) -> Option<String> {
        Some(self.token.lease.to_string())
    }

    fn bytes(&self) -> usize {
        self.completion.as_ref().map_or(0, |(_, text)| text.len())
    }
}

/// Many ends, column by column, in the order of their rows: the function locks them in it.
#[derive(Default)]
pub(crate) struct ActivityAcks<'a> {
    /// Which of them each is.
    positions: Vec<usize>,
    instance_ids: Vec<&'a str>,
    execution_ids: Vec<i64>,
    activity_ids: Vec<i64>,
    ids: Vec<i64>,
    leases: Vec<Uuid>,
    completion_instance_ids: Vec<Option<&'a str>>,
    completions: Vec<Option<&'a str>>,
}

impl<'a> ActivityAcks<'a> {
    pub(crate) fn new(acks: &'a [Arc<ActivityAck>]) -> Self {
        let mut columns = Self {
            positions: (0..acks.len()).collect(),
            ..Self::default()
        };
        columns
            .positions
            .sort_by(|one, other| acks[*one].token.row().cmp(&acks[*other].token.row()));
        for position in &columns.positions {
            let ack = &acks[*position];
            columns.instance_ids.push(&ack.token.instance_id);
            columns.execution_ids.push(ack.token.execution_id);
            columns.activity_ids.push(ack.token.activity_id);
            columns.ids.push(ack.token.id);
            columns.leases.push(ack.token.lease);
            let completion = ack.completion.as_ref().map(|(instance, text)| (&**instance, &**text));
            let (instance_id, text) = completion.unzip();
            columns.completion_instance_ids.push(instance_id);
            columns.completions.push(text);
        }
        columns
    }

    pub(crate) fn parameters<'b>(&'b self, turns: &'b TurnHandover, rest_ms: &'b i64) -> Vec<&'b (dyn ToSql + Sync)> {
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![
            &self.instance_ids,
            &self.execution_ids,
            &self.activity_ids,
            &self.ids,
            &self.leases,
            &self.completion_instance_ids,
            &self.completions,
        ];
        parameters.extend(turns.parameters());
        parameters.push(rest_ms);
        parameters
    }

    /// For each activity, whether its end was accepted.
    pub(crate) fn done(&self, rows: &[Row]) -> Result<Vec<bool>, CallError> {
        let mut in_order = vec![false; self.positions.len()];
        for (position, done) in self.positions.iter().zip(done(rows)?) {
            in_order[*position] = done;
        }
        Ok(in_order)
    }
}

/// For each activity of a call, in its order, whether its end was accepted.
pub(crate) fn done(rows: &[Row]) -> Result<Vec<bool>, CallError> {
    match rows.first() {
        Some(row) => Ok(row.try_get("done")?),
        None => Ok(Vec::new()),
    }
}

/// Whether there are instances that rest until more of their activities have ended.
pub(crate) fn some_rest(rows: &[Row]) -> bool {
    let resting: Option<Option<i32>> = rows.first().and_then(|row| row.try_get("resting").ok());
    resting.flatten().is_some_and(|resting| resting > 0)
}
