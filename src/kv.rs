//! The key-value store of an instance: `sql/kv`.

use std::collections::HashMap;

use duroxide::{Event, EventKind};

use crate::encode;
use crate::error::Failure;
use crate::inner::Inner;

/// What a turn changes, column by column: a clear first, then the last change of each key after it.
#[derive(Default)]
pub(crate) struct KvChanges {
    pub(crate) clears: bool,
    pub(crate) keys: Vec<String>,
    pub(crate) values: Vec<Option<String>>,
    pub(crate) updated_at_ms: Vec<Option<i64>>,
}

impl KvChanges {
    pub(crate) fn encode(operation: &str, events: &[Event]) -> Result<Self, Failure> {
        let mut clears = false;
        let mut changes: HashMap<&str, Option<(&str, u64)>> = HashMap::new();
        for event in events {
            match &event.kind {
                EventKind::KeyValueSet {
                    key,
                    value,
                    last_updated_at_ms,
                } => {
                    changes.insert(key, Some((value, *last_updated_at_ms)));
                }
                EventKind::KeyValueCleared { key } => {
                    changes.insert(key, None);
                }
                EventKind::KeyValuesCleared => {
                    clears = true;
                    changes.clear();
                }
                _ => {}
            }
        }
        let mut encoded = Self {
            clears,
            ..Self::default()
        };
        for (key, change) in changes {
            encoded.keys.push(encode::key(operation, "KV key", key)?.to_string());
            encoded
                .values
                .push(change.map(|(value, _)| encode::text(value).into_owned()));
            encoded.updated_at_ms.push(change.map(|(_, at)| encode::epoch_ms(at)));
        }
        Ok(encoded)
    }
}

impl Inner {
    pub(crate) async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, Failure> {
        const OPERATION: &str = "get_kv_value";
        let key = encode::key(OPERATION, "KV key", key)?;
        let value: Option<String> = self.value(OPERATION, instance, &[&key]).await?;
        Ok(value.map(encode::from_text))
    }

    pub(crate) async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, Failure> {
        const OPERATION: &str = "get_kv_all_values";
        let rows = self.rows(OPERATION, instance, &[]).await?;
        rows.iter()
            .map(|row| Ok((row.try_get("key")?, encode::from_text(row.try_get("value")?))))
            .collect::<Result<_, _>>()
            .map_err(|error| self.decoding(OPERATION, error))
    }
}
