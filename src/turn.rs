//! A claimed turn, as `fetch_orchestration_item` returns it.

use std::collections::HashMap;
use std::time::Duration;

use duroxide::providers::{KvEntry, OrchestrationItem, WorkItem};
use duroxide::{Event, EventKind};
use tokio_postgres::Row;
use tracing::warn;
use uuid::Uuid;

use crate::encode;
use crate::history::{Occasion, Tail};
use crate::inner::Inner;
use crate::token::TurnToken;

const FIRST_EXECUTION: i64 = duroxide::INITIAL_EXECUTION_ID as i64;

/// What the provider hands to the runtime: the item, its lock token and the attempt.
pub(crate) type Turn = (OrchestrationItem, String, u32);

/// One row of `fetch_orchestration_item`.
pub(crate) enum Fetched {
    Turn {
        lease: Uuid,
        turn: Box<Turn>,
    },
    /// Leased, but its history could not be had right now.
    Unavailable {
        lease: Uuid,
        token: String,
    },
    Dropped {
        instance_id: String,
        count: i32,
    },
    Nothing {
        next: Option<Duration>,
    },
}

impl Inner {
    pub(crate) async fn decode_turn(&self, row: &Row) -> Result<Fetched, tokio_postgres::Error> {
        let Some(instance_id) = row.try_get::<_, Option<String>>("instance_id")? else {
            let next_ms: Option<i64> = row.try_get("next_ms")?;
            return Ok(Fetched::Nothing {
                next: next_ms.map(|ms| Duration::from_millis(encode::from_id(ms))),
            });
        };
        let Some(lease) = row.try_get("lease")? else {
            return Ok(Fetched::Dropped {
                instance_id,
                count: row.try_get("dropped")?,
            });
        };
        let load_error = row.try_get("load_error")?;
        self.decode_claimed(row, instance_id, lease, load_error).await
    }

    /// A row of a claimed turn.
    pub(crate) async fn decode_claimed(
        &self,
        row: &Row,
        instance_id: String,
        lease: Uuid,
        load_error: Option<String>,
    ) -> Result<Fetched, tokio_postgres::Error> {
        let token = TurnToken {
            lease,
            instance_id: instance_id.clone(),
        };

        let mut history_error = load_error;
        let messages = texts(row, "messages")?
            .iter()
            .filter_map(|text| match serde_json::from_str::<WorkItem>(text) {
                Ok(item) => Some(item),
                Err(error) => {
                    // Delivering the rest would consume this one unread: the turn must not run.
                    history_error
                        .get_or_insert_with(|| format!("a message cannot be read: {}", encode::unreadable(&error)));
                    None
                }
            })
            .collect::<Vec<_>>();
        let execution_id = row
            .try_get::<_, Option<i64>>("execution_id")?
            .unwrap_or(FIRST_EXECUTION);
        let history = match &history_error {
            Some(_) => Vec::new(),
            None => {
                let tail = Tail::decode(row, execution_id)?;
                match self.whole_history(&instance_id, None, tail, Occasion::Turn).await {
                    Ok(history) => history,
                    // Trouble that passes is not the instance's fault.
                    Err(failure) if failure.error.is_retryable() => {
                        return Ok(Fetched::Unavailable {
                            lease,
                            token: token.to_string(),
                        });
                    }
                    Err(failure) => {
                        history_error = Some(failure.error.message);
                        Vec::new()
                    }
                }
            }
        };
        if let Some(error) = &history_error {
            warn!(instance = instance_id, error, "an orchestration cannot be loaded");
        }

        let (name, version) = match (
            row.try_get("orchestration_name")?,
            row.try_get("orchestration_version")?,
        ) {
            (Some(name), Some(version)) => (name, version),
            _ => name_and_version(&history, &messages),
        };
        let attempt_count: i32 = row.try_get("attempt_count")?;
        let item = OrchestrationItem {
            instance: instance_id,
            orchestration_name: name,
            execution_id: encode::from_id(execution_id),
            version,
            kv_snapshot: if history_error.is_none() {
                kv_snapshot(row)?
            } else {
                HashMap::new()
            },
            history,
            messages,
            history_error,
        };
        Ok(Fetched::Turn {
            lease,
            turn: Box::new((
                item,
                token.to_string(),
                u32::try_from(attempt_count).unwrap_or(u32::MAX),
            )),
        })
    }
}

fn texts(row: &Row, column: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    Ok(row.try_get::<_, Option<Vec<String>>>(column)?.unwrap_or_default())
}

fn kv_snapshot(row: &Row) -> Result<HashMap<String, KvEntry>, tokio_postgres::Error> {
    let updated_at_ms = row
        .try_get::<_, Option<Vec<i64>>>("kv_updated_at_ms")?
        .unwrap_or_default();
    Ok(texts(row, "kv_keys")?
        .into_iter()
        .zip(texts(row, "kv_values")?)
        .zip(updated_at_ms)
        .map(|((key, value), updated_at_ms)| {
            let entry = KvEntry {
                value: encode::from_text(value),
                last_updated_at_ms: encode::from_id(updated_at_ms),
            };
            (key, entry)
        })
        .collect())
}

/// For an instance that has no metadata (yet): from its history, else from the message that starts it.
fn name_and_version(history: &[Event], messages: &[WorkItem]) -> (String, String) {
    const UNKNOWN: &str = "unknown";
    let started = history.iter().find_map(|event| match &event.kind {
        EventKind::OrchestrationStarted { name, version, .. } => Some((name.clone(), version.clone())),
        _ => None,
    });
    let starting = || {
        messages.iter().find_map(|item| match item {
            WorkItem::StartOrchestration {
                orchestration, version, ..
            }
            | WorkItem::ContinueAsNew {
                orchestration, version, ..
            } => Some((
                orchestration.clone(),
                version.clone().unwrap_or_else(|| UNKNOWN.to_string()),
            )),
            _ => None,
        })
    };
    started
        .or_else(starting)
        .unwrap_or_else(|| (UNKNOWN.to_string(), UNKNOWN.to_string()))
}
