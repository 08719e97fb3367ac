//! The worker queue: `sql/activities`.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use duroxide::providers::{ProviderError, SessionFetchConfig, TagFilter, WorkItem};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::call::{Answer, LeaseCall, Parameters};
use crate::encode;
use crate::orchestrations::enqueue_error;
use crate::poll::{Granted, Look};
use crate::provider::Inner;
use crate::token::ActivityToken;
use crate::wake::Queue;
use crate::work_item::{Activities, completion};

/// What `fetch_work_item` returns.
pub(crate) type Activity = (WorkItem, String, u32);

/// What a worker asks for, in the terms of the function.
#[derive(Clone)]
struct Request {
    lock_timeout: Duration,
    /// Routing keys; none for any tag.
    tags: Option<Vec<String>>,
    owner_id: Option<String>,
    session_lock_timeout_ms: i64,
}

impl Request {
    fn new(
        lock_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Self, ProviderError> {
        const OPERATION: &str = "fetch_work_item";
        let mut tags = match tag_filter {
            TagFilter::Any => None,
            TagFilter::None => Some(Vec::new()),
            TagFilter::DefaultOnly => Some(vec![None]),
            TagFilter::Tags(tags) => Some(tags.iter().map(Some).collect()),
            TagFilter::DefaultAnd(tags) => Some(tags.iter().map(Some).chain([None]).collect::<Vec<_>>()),
        }
        .map(|tags| {
            tags.into_iter()
                .map(|tag| encode::routing_key(OPERATION, "tag", tag.map(String::as_str)))
                .collect::<Result<Vec<_>, _>>()
        })
        .transpose()?;
        if let Some(tags) = &mut tags {
            tags.sort_unstable();
        }
        Ok(Self {
            lock_timeout,
            tags,
            owner_id: session
                .map(|session| encode::key(OPERATION, "session owner", &session.owner_id).map(str::to_string))
                .transpose()?,
            session_lock_timeout_ms: session.map_or(0, |session| encode::milliseconds(session.lock_timeout)),
        })
    }
}

impl Inner {
    pub(crate) async fn fetch_work_item(
        self: &Arc<Self>,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<Activity>, ProviderError> {
        let request = Request::new(lock_timeout, session, tag_filter)?;
        self.poll(Queue::Worker, poll_timeout, |inner| {
            let request = request.clone();
            async move { inner.look_for_activity(&request).await }
        })
        .await
    }

    async fn look_for_activity(self: &Arc<Self>, request: &Request) -> Result<Look<Activity>, ProviderError> {
        const OPERATION: &str = "fetch_work_item";
        if request.tags.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Look::Nothing(None));
        }
        let (cursor_tags, cursors) = self.session_cursors();
        let rows = self
            .caller
            .call(
                OPERATION,
                &[
                    &encode::milliseconds(request.lock_timeout),
                    &request.tags,
                    &request.owner_id,
                    &request.session_lock_timeout_ms,
                    &cursor_tags,
                    &cursors,
                    &1_i32,
                ],
            )
            .await
            .map_err(|error| error.to_provider_error(OPERATION))?;
        let Some(row) = rows.first() else {
            return Ok(Look::Nothing(None));
        };
        self.remember_session_cursors(row)
            .map_err(|error| self.decoding(OPERATION, error))?;
        let fetched = Fetched::decode(row).map_err(|error| self.decoding(OPERATION, error))?;
        let (token, attempt_count, item) = match fetched {
            Fetched::Nothing { next } => return Ok(Look::Nothing(next)),
            Fetched::Activity {
                token,
                attempt_count,
                item,
            } => (token, attempt_count, item),
        };
        self.leases.extended(token.lease, request.lock_timeout);
        // Unreadable, it keeps its lease: others come first, and it is reported again when that ends.
        let item = (*item).map_err(|error| {
            ProviderError::permanent(
                OPERATION,
                format!(
                    "activity {} of instance {:?} (row {}) cannot be read: {error}",
                    token.activity_id, token.instance_id, token.id
                ),
            )
        })?;
        let token = token.to_string();
        Ok(Look::Granted(Granted::new(
            self,
            Queue::Worker,
            token.clone(),
            (item, token, attempt_count),
        )))
    }

    fn session_cursors(&self) -> (Vec<String>, Vec<String>) {
        let cursors = self.session_cursors.lock().unwrap_or_else(PoisonError::into_inner);
        cursors
            .iter()
            .map(|(tag, session)| (tag.clone(), session.clone()))
            .unzip()
    }

    fn remember_session_cursors(&self, row: &Row) -> Result<(), tokio_postgres::Error> {
        let tags: Option<Vec<String>> = row.try_get("cursor_tags")?;
        let sessions: Option<Vec<String>> = row.try_get("cursors")?;
        if let (Some(tags), Some(sessions)) = (tags, sessions) {
            let mut cursors = self.session_cursors.lock().unwrap_or_else(PoisonError::into_inner);
            cursors.extend(tags.into_iter().zip(sessions));
        }
        Ok(())
    }

    /// Calls a function whose first parameters say which leased activity it is about.
    async fn call_on_activity(
        &self,
        operation: &str,
        token: &ActivityToken,
        parameters: Parameters<'_>,
        lease: LeaseCall<'_>,
    ) -> Answer {
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![
            &token.instance_id,
            &token.execution_id,
            &token.activity_id,
            &token.id,
            &token.lease,
        ];
        all.extend_from_slice(parameters);
        self.caller.call_within_lease(operation, &all, lease).await
    }

    pub(crate) async fn ack_work_item(&self, token: &str, result: Option<&WorkItem>) -> Result<(), ProviderError> {
        const OPERATION: &str = "ack_work_item";
        let token = activity_token(OPERATION, token)?;
        let (instance_id, item) = result.map(|item| completion(OPERATION, item)).transpose()?.unzip();
        let answer = self
            .call_on_activity(
                OPERATION,
                &token,
                &[&instance_id, &item],
                LeaseCall {
                    bytes: item.as_ref().map_or(0, String::len),
                    ..self.lease_call(token.lease, None)
                },
            )
            .await;
        self.lease_ended(OPERATION, token.lease, answer, true)?;
        if item.is_some() {
            self.waker.enqueued(Queue::Orchestrator);
        }
        Ok(())
    }

    pub(crate) async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
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
        answer.result.map_err(|error| error.to_provider_error(OPERATION))?;
        self.leases.extended(token.lease, extend_for);
        Ok(())
    }

    pub(crate) async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "abandon_work_item";
        let token = activity_token(OPERATION, token)?;
        let answer = self
            .call_on_activity(
                OPERATION,
                &token,
                &[&delay.map(encode::milliseconds), &ignore_attempt],
                self.lease_call(token.lease, None),
            )
            .await;
        self.lease_ended(OPERATION, token.lease, answer, true)?;
        self.waker.enqueued(Queue::Worker);
        Ok(())
    }

    pub(crate) async fn enqueue_for_worker(&self, item: &WorkItem) -> Result<(), ProviderError> {
        const OPERATION: &str = "enqueue_for_worker";
        let mut activities = Activities::default();
        activities.push(OPERATION, item)?;
        self.caller
            .call(
                OPERATION,
                &[
                    &activities.instance_ids,
                    &activities.execution_ids,
                    &activities.activity_ids,
                    &activities.tags,
                    &activities.sessions,
                    &activities.items,
                ],
            )
            .await
            .map_err(|error| enqueue_error(OPERATION, &error))?;
        self.waker.enqueued(Queue::Worker);
        Ok(())
    }
}

fn activity_token(operation: &str, token: &str) -> Result<ActivityToken, ProviderError> {
    ActivityToken::parse(token)
        .ok_or_else(|| ProviderError::permanent(operation, "Invalid lock token: not a token of an activity"))
}

/// One row of `fetch_work_item`.
enum Fetched {
    Activity {
        token: ActivityToken,
        attempt_count: u32,
        item: Box<Result<WorkItem, String>>,
    },
    Nothing {
        next: Option<Duration>,
    },
}

impl Fetched {
    fn decode(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let Some(lease) = row.try_get("lease")? else {
            let next_ms: Option<i64> = row.try_get("next_ms")?;
            return Ok(Self::Nothing {
                next: next_ms.map(|ms| Duration::from_millis(encode::from_id(ms))),
            });
        };
        let attempt_count: i32 = row.try_get("attempt_count")?;
        let item = match row.try_get::<_, Option<String>>("work_item")? {
            Some(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            None => Err(row.try_get::<_, Option<String>>("load_error")?.unwrap_or_default()),
        };
        Ok(Self::Activity {
            token: ActivityToken {
                lease,
                execution_id: row.try_get("execution_id")?,
                activity_id: row.try_get("activity_id")?,
                id: row.try_get("id")?,
                instance_id: row.try_get("instance_id")?,
            },
            attempt_count: u32::try_from(attempt_count).unwrap_or(u32::MAX),
            item: Box::new(item),
        })
    }
}
