//! The ends of many turns, as `ack_orchestration_items` takes them: column by column.

use std::sync::Arc;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::turn_ack::TurnAck;

/// Many turns, column by column.
#[derive(Default)]
pub(crate) struct TurnAcks<'a> {
    instance_ids: Vec<&'a str>,
    leases: Vec<Uuid>,
    ack_ids: Vec<Uuid>,
    execution_ids: Vec<i64>,
    statuses: Vec<Option<&'a str>>,
    outputs: Vec<Option<&'a str>>,
    names: Vec<Option<&'a str>>,
    versions: Vec<Option<&'a str>>,
    parents: Vec<Option<&'a str>>,
    pinned_versions: Vec<Option<i64>>,
    sets_custom_status: Vec<bool>,
    custom_statuses: Vec<Option<&'a str>>,
    clears_kv: Vec<bool>,
    nodes: Vec<Option<Uuid>>,
    first_event_ids: Vec<Option<i64>>,
    last_event_ids: Vec<Option<i64>>,
    event_turns: Vec<i32>,
    event_ids: Vec<i64>,
    event_data: Vec<&'a str>,
    kv_turns: Vec<i32>,
    kv_keys: Vec<&'a str>,
    kv_values: Vec<Option<&'a str>>,
    kv_updated_at_ms: Vec<Option<i64>>,
    activity_turns: Vec<i32>,
    activity_instance_ids: Vec<&'a str>,
    activity_execution_ids: Vec<i64>,
    activity_ids: Vec<i64>,
    activity_tags: Vec<&'a str>,
    activity_sessions: Vec<&'a str>,
    activity_items: Vec<&'a str>,
    activity_leases: Vec<Uuid>,
    activity_lease_ms: &'a [Option<i64>],
    cancel_turns: Vec<i32>,
    cancel_instance_ids: Vec<&'a str>,
    cancel_execution_ids: Vec<i64>,
    cancel_activity_ids: Vec<i64>,
    message_turns: Vec<i32>,
    message_instance_ids: Vec<&'a str>,
    message_kinds: Vec<i8>,
    message_visible_at_ms: Vec<Option<i64>>,
    message_items: Vec<&'a str>,
    targets: Vec<&'a str>,
    tells_end: Vec<bool>,
}

impl<'a> TurnAcks<'a> {
    /// `lease_ms`: how long the lease is of each activity, of all turns, that is handed over.
    pub(crate) fn new(acks: &'a [Arc<TurnAck>], lease_ms: &'a [Option<i64>]) -> Self {
        let mut columns = Self {
            activity_lease_ms: lease_ms,
            ..Self::default()
        };
        for (turn, ack) in (1..).zip(acks) {
            columns.push(turn, ack);
        }
        columns.targets.sort_unstable();
        columns.targets.dedup();
        columns
    }

    fn push(&mut self, turn: i32, ack: &'a TurnAck) {
        fn add<'a>(turn: i32, turns: &mut Vec<i32>, column: &mut Vec<&'a str>, values: &'a [String]) {
            turns.extend(values.iter().map(|_| turn));
            column.extend(values.iter().map(String::as_str));
        }
        self.instance_ids.push(&ack.token.instance_id);
        self.leases.push(ack.token.lease);
        self.ack_ids.push(ack.id);
        self.execution_ids.push(ack.execution_id);
        self.statuses.push(ack.status.as_deref());
        self.outputs.push(ack.output.as_deref());
        self.names.push(ack.name.as_deref());
        self.versions.push(ack.version.as_deref());
        self.parents.push(ack.parent.as_deref());
        self.pinned_versions.push(ack.pinned_version);
        self.sets_custom_status.push(ack.custom_status.is_some());
        self.custom_statuses
            .push(ack.custom_status.as_ref().and_then(Option::as_deref));
        self.clears_kv.push(ack.kv.clears);
        self.nodes.push(ack.node);
        self.first_event_ids.push(ack.first_event_id());
        self.last_event_ids.push(ack.last_event_id());

        add(
            turn,
            &mut self.event_turns,
            &mut self.event_data,
            ack.events.data.as_slice(),
        );
        self.event_ids.extend(&ack.events.ids);

        add(turn, &mut self.kv_turns, &mut self.kv_keys, &ack.kv.keys);
        self.kv_values.extend(ack.kv.values.iter().map(Option::as_deref));
        self.kv_updated_at_ms.extend(&ack.kv.updated_at_ms);

        let activities = &ack.activities;
        add(
            turn,
            &mut self.activity_turns,
            &mut self.activity_items,
            &activities.items,
        );
        self.activity_instance_ids
            .extend(activities.instance_ids.iter().map(String::as_str));
        self.activity_execution_ids.extend(&activities.execution_ids);
        self.activity_ids.extend(&activities.activity_ids);
        self.activity_tags.extend(activities.tags.iter().map(String::as_str));
        self.activity_sessions
            .extend(activities.sessions.iter().map(String::as_str));
        self.activity_leases.extend(&ack.activity_leases);

        let cancelled = &ack.cancelled;
        add(
            turn,
            &mut self.cancel_turns,
            &mut self.cancel_instance_ids,
            &cancelled.instance_ids,
        );
        self.cancel_execution_ids.extend(&cancelled.execution_ids);
        self.cancel_activity_ids.extend(&cancelled.activity_ids);

        let messages = &ack.messages;
        add(turn, &mut self.message_turns, &mut self.message_items, &messages.items);
        self.message_instance_ids
            .extend(messages.instance_ids.iter().map(String::as_str));
        self.message_kinds.extend(&messages.kinds);
        self.message_visible_at_ms.extend(&messages.visible_at_ms);

        self.targets.extend(ack.targets());
        self.tells_end.push(ack.tells_end);
    }

    /// In the order of the function's parameters.
    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.instance_ids,
            &self.leases,
            &self.ack_ids,
            &self.execution_ids,
            &self.statuses,
            &self.outputs,
            &self.names,
            &self.versions,
            &self.parents,
            &self.pinned_versions,
            &self.sets_custom_status,
            &self.custom_statuses,
            &self.clears_kv,
            &self.nodes,
            &self.first_event_ids,
            &self.last_event_ids,
            &self.event_turns,
            &self.event_ids,
            &self.event_data,
            &self.kv_turns,
            &self.kv_keys,
            &self.kv_values,
            &self.kv_updated_at_ms,
            &self.activity_turns,
            &self.activity_instance_ids,
            &self.activity_execution_ids,
            &self.activity_ids,
            &self.activity_tags,
            &self.activity_sessions,
            &self.activity_items,
            &self.activity_leases,
            &self.activity_lease_ms,
            &self.cancel_turns,
            &self.cancel_instance_ids,
            &self.cancel_execution_ids,
            &self.cancel_activity_ids,
            &self.message_turns,
            &self.message_instance_ids,
            &self.message_kinds,
            &self.message_visible_at_ms,
            &self.message_items,
            &self.targets,
            &self.tells_end,
        ]
    }
}
