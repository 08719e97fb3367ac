//! Lock tokens: opaque to the runtime, but they carry where the locked row is, so that no index on
//! tokens is needed.

use std::fmt;

use uuid::Uuid;

/// The lease of an orchestration turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnToken {
    pub(crate) lease: Uuid,
    pub(crate) instance_id: String,
}

/// The lease of an activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActivityToken {
    pub(crate) lease: Uuid,
    pub(crate) execution_id: i64,
    pub(crate) activity_id: i64,
    pub(crate) id: i64,
    pub(crate) instance_id: String,
}

impl fmt::Display for TurnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "turn:{}:{}", self.lease.simple(), self.instance_id)
    }
}

impl TurnToken {
    pub(crate) fn parse(token: &str) -> Option<Self> {
        let (lease, instance_id) = token.strip_prefix("turn:")?.split_once(':')?;
        Some(Self {
            lease: Uuid::try_parse(lease).ok()?,
            instance_id: without_nul(instance_id)?,
        })
    }
}

impl fmt::Display for ActivityToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "activity:{}:{}:{}:{}:{}",
            self.lease.simple(),
            self.execution_id,
            self.activity_id,
            self.id,
            self.instance_id
        )
    }
}

impl ActivityToken {
    /// Where its row is, in the order in which rows are locked.
    pub(crate) fn row(&self) -> (&str, i64, i64, i64) {
        (&self.instance_id, self.execution_id, self.activity_id, self.id)
    }

    pub(crate) fn parse(token: &str) -> Option<Self> {
        let mut parts = token.strip_prefix("activity:")?.splitn(5, ':');
        Some(Self {
            lease: Uuid::try_parse(parts.next()?).ok()?,
            execution_id: parts.next()?.parse().ok()?,
            activity_id: parts.next()?.parse().ok()?,
            id: parts.next()?.parse().ok()?,
            instance_id: without_nul(parts.next()?)?,
        })
    }
}

/// The instance that a token of either kind is about.
pub(crate) fn instance(token: &str) -> Option<&str> {
    match token.split_once(':')? {
        ("turn", rest) => rest.split_once(':').map(|(_, instance_id)| instance_id),
        ("activity", rest) => rest.splitn(5, ':').nth(4),
        _ => None,
    }
}

/// PostgreSQL has no NUL in text, so a token with one is none of ours.
fn without_nul(text: &str) -> Option<String> {
    (!text.contains('\0')).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_round_trip_whatever_the_instance_is_called() {
        for instance_id in ["order-1", "", "a:b::sub::3", "activity:x", "ü\n'\"\\"] {
            let turn = TurnToken {
                lease: Uuid::new_v4(),
                instance_id: instance_id.into(),
            };
            assert_eq!(instance(&turn.to_string()), Some(instance_id));
            assert_eq!(TurnToken::parse(&turn.to_string()), Some(turn));
            let activity = ActivityToken {
                lease: Uuid::new_v4(),
                execution_id: 1,
                activity_id: i64::MAX,
                id: 7,
                instance_id: instance_id.into(),
            };
            assert_eq!(instance(&activity.to_string()), Some(instance_id));
            assert_eq!(ActivityToken::parse(&activity.to_string()), Some(activity));
        }
    }

    #[test]
    fn what_is_not_a_token_is_refused() {
        for text in [
            "",
            "turn",
            "turn:",
            "turn:x:y",
            "invalid-token",
            "activity:00000000000000000000000000000000:1:2:x:i",
            "turn:00000000000000000000000000000000:a\0b",
        ] {
            assert_eq!(TurnToken::parse(text), None, "{text}");
            assert_eq!(ActivityToken::parse(text), None, "{text}");
        }
        let turn = TurnToken {
            lease: Uuid::new_v4(),
            instance_id: "i".into(),
        };
        assert_eq!(ActivityToken::parse(&turn.to_string()), None);
    }
}
