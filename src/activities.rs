//! The worker queue: `sql/activities`.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use duroxide::providers::{ProviderError, SessionFetchConfig, TagFilter, WorkItem};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::error;
use uuid::Uuid;

use crate::batch::{self, Batched};
use crate::call::{Answer, LeaseCall, Parameters};
use crate::encode;
use crate::error::CallError;
use crate::orchestrations::enqueue_error;
use crate::poll::{self, Fetch, Found, Granted, Line};
use crate::provider::Inner;
use crate::token::ActivityToken;
use crate::wake::Queue;
use crate::work_item::{Activities, completion};

/// What `fetch_work_item` returns.
pub(crate) type Activity = (WorkItem, String, u32);

/// What a worker asks for, in the terms of the function.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ActivityRequest {
    lock_timeout: Duration,
    /// Routing keys; none for any tag.
    tags: Option<Vec<String>>,
    sessions: Sessions,
}

/// Whether activities of sessions are wanted.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Sessions {
    No,
    /// As soon as there are any. Until then it does not matter for whom, and workers share their looks.
    IfAny,
    /// For this owner.
    For {
        owner_id: String,
        lock_timeout_ms: i64,
    },
}

impl poll::Request for ActivityRequest {
    type Item = Activity;

    fn look(self, inner: Arc<Inner>, wanted: usize) -> BoxFuture<'static, Result<Found<Activity>, ProviderError>> {
        async move { inner.look_for_activities(&self, wanted).await }.boxed()
    }

    fn line(inner: &Inner) -> &Line<Self> {
        &inner.activities
    }
}

impl ActivityRequest {
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
            sessions: match session {
                None => Sessions::No,
                Some(session) => Sessions::For {
                    owner_id: encode::key(OPERATION, "session owner", &session.owner_id)?.to_string(),
                    lock_timeout_ms: encode::milliseconds(session.lock_timeout),
                },
            },
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
        let own = ActivityRequest::new(lock_timeout, session, tag_filter)?;
        let started = Instant::now();
        let left = || poll_timeout.saturating_sub(started.elapsed());
        if own.tags.as_ref().is_some_and(Vec::is_empty) {
            // Nothing will ever fit, but the caller counts on being held up.
            tokio::time::sleep(if self.long_poll { poll_timeout } else { Duration::ZERO }).await;
            return Ok(None);
        }
        if session.is_some() && !self.has_sessions(&own.tags) {
            let shared = ActivityRequest {
                sessions: Sessions::IfAny,
                ..own.clone()
            };
            match self.fetch(&shared, left()).await? {
                Fetch::Item(activity) => return Ok(Some(activity)),
                Fetch::Nothing => return Ok(None),
                Fetch::AskAnew => {}
            }
        }
        match self.fetch(&own, left()).await? {
            Fetch::Item(activity) => Ok(Some(activity)),
            Fetch::Nothing | Fetch::AskAnew => Ok(None),
        }
    }

    async fn look_for_activities(
        self: &Arc<Self>,
        request: &ActivityRequest,
        wanted: usize,
    ) -> Result<Found<Activity>, ProviderError> {
        const OPERATION: &str = "fetch_work_item";
        let (owner_id, session_lock_timeout_ms) = match &request.sessions {
            Sessions::For {
                owner_id,
                lock_timeout_ms,
            } => (Some(owner_id), *lock_timeout_ms),
            Sessions::No | Sessions::IfAny => (None, 0),
        };
        let (cursor_tags, cursors) = self.session_cursors();
        let rows = self
            .call_with_care(
                OPERATION,
                &[
                    &encode::milliseconds(request.lock_timeout),
                    &request.tags,
                    &owner_id,
                    &session_lock_timeout_ms,
                    &(request.sessions == Sessions::IfAny),
                    &cursor_tags,
                    &cursors,
                    &i32::try_from(wanted).unwrap_or(i32::MAX),
                ],
            )
            .await?;
        let mut found = Found {
            granted: Vec::with_capacity(wanted),
            next: None,
            ask_anew: false,
        };
        let mut unreadable = None;
        for row in &rows {
            self.remember_session_cursors(row)
                .map_err(|error| self.decoding(OPERATION, error))?;
            let sessions: bool = row
                .try_get("sessions")
                .map_err(|error| self.decoding(OPERATION, error))?;
            self.set_has_sessions(&request.tags, sessions);
            found.ask_anew = sessions && request.sessions == Sessions::IfAny;
            let fetched = Fetched::decode(row).map_err(|error| self.decoding(OPERATION, error))?;
            let (token, attempt_count, item) = match fetched {
                Fetched::Nothing { next } => {
                    found.next = next;
                    continue;
                }
                Fetched::Activity {
                    token,
                    attempt_count,
                    item,
                } => (token, attempt_count, item),
            };
            self.leases.extended(token.lease, request.lock_timeout);
            match *item {
                Ok(item) => {
                    let token = token.to_string();
                    let activity = (item, token.clone(), attempt_count);
                    found.granted.push(Granted::new(self, Queue::Worker, token, activity));
                }
                // Unreadable, it keeps its lease: others come first, and it is reported again when that ends.
                Err(reason) => {
                    let message = format!(
                        "activity {} of instance {:?} (row {}) cannot be read: {reason}",
                        token.activity_id, token.instance_id, token.id
                    );
                    error!("{message}");
                    unreadable = Some(ProviderError::permanent(OPERATION, message));
                }
            }
        }
        match unreadable {
            Some(error) if found.granted.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// Whether there were activities of sessions when somebody last looked for these tags.
    fn has_sessions(&self, tags: &Option<Vec<String>>) -> bool {
        let seen = self.tags_with_sessions.lock().unwrap_or_else(PoisonError::into_inner);
        seen.contains(tags)
    }

    fn set_has_sessions(&self, tags: &Option<Vec<String>>, sessions: bool) {
        let mut seen = self.tags_with_sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if !sessions {
            seen.remove(tags);
        } else if !seen.contains(tags) {
            seen.insert(tags.clone());
        }
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
    ) -> Answer<Vec<Row>> {
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![
            &token.instance_id,
            &token.execution_id,
            &token.activity_id,
            &token.id,
            &token.lease,
        ];
        all.extend_from_slice(parameters);
        self.caller.call_within_lease(operation, &all, lease, None).await
    }

    pub(crate) async fn ack_work_item(
        self: &Arc<Self>,
        token: &str,
        result: Option<&WorkItem>,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "ack_work_item";
        let ack = Arc::new(ActivityAck {
            token: activity_token(OPERATION, token)?,
            completion: result.map(|item| completion(OPERATION, item)).transpose()?,
        });
        let failed = match self.activity_acks.submit(self, Arc::clone(&ack)).await {
            Batched::Answered(Ok(done)) => Ok(done),
            Batched::Answered(Err(error)) => Err(Some(error)),
            Batched::Alone => Err(None),
        };
        let lease = ack.token.lease;
        let answer = match failed {
            Ok(done) => Answer {
                result: ack.held(done),
                repeated: false,
            },
            Err(failed) => {
                let acks = [Arc::clone(&ack)];
                let columns = ActivityAcks::new(&acks);
                self.caller
                    .call_within_lease(OPERATION, &columns.parameters(), self.activity_lease(&ack), failed)
                    .await
                    .and_then(|rows| ack.held(done(&rows)?.pop().ok_or(CallError::NoAnswer)?))
            }
        };
        self.lease_ended(OPERATION, lease, answer, true)?;
        if ack.completion.is_some() {
            self.enqueued(Queue::Orchestrator);
        }
        Ok(())
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
            let leases = acks.iter().map(|ack| self.activity_lease(ack));
            let sent = self
                .caller
                .call_within_leases("ack_work_item", &columns.parameters(), leases)
                .await;
            batch::answers(sent.and_then(|rows| done(&rows)), acks.len())
        }
        .boxed()
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
        self: &Arc<Self>,
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
        self.enqueued(Queue::Worker);
        Ok(())
    }

    pub(crate) async fn enqueue_for_worker(self: &Arc<Self>, item: &WorkItem) -> Result<(), ProviderError> {
        const OPERATION: &str = "enqueue_for_worker";
        let mut activities = Activities::default();
        activities.push(OPERATION, item)?;
        let activities = Arc::new(activities);
        let sent = match self.new_activities.submit(self, Arc::clone(&activities)).await {
            Batched::Answered(Err(CallError::InCompany(false))) | Batched::Alone => {
                self.send_activity_columns(&[activities]).await.map(|_| ())
            }
            Batched::Answered(sent) => sent,
        };
        sent.map_err(|error| enqueue_error(OPERATION, &error))?;
        self.enqueued(Queue::Worker);
        Ok(())
    }

    /// Many activities in one call.
    pub(crate) fn send_activities(
        self: Arc<Self>,
        activities: Vec<Arc<Activities>>,
    ) -> BoxFuture<'static, Vec<Result<(), CallError>>> {
        async move {
            let sent = self.send_activity_columns(&activities).await;
            batch::answers(sent.map(|_| vec![(); activities.len()]), activities.len())
        }
        .boxed()
    }

    async fn send_activity_columns(&self, activities: &[Arc<Activities>]) -> Result<Vec<Row>, CallError> {
        let texts = |column: fn(&Activities) -> &Vec<String>| -> Vec<&str> {
            activities
                .iter()
                .flat_map(|one| column(one))
                .map(String::as_str)
                .collect()
        };
        let ids = |column: fn(&Activities) -> &Vec<i64>| -> Vec<i64> {
            activities.iter().flat_map(|one| column(one)).copied().collect()
        };
        self.caller
            .call(
                "enqueue_for_worker",
                &[
                    &texts(|one| &one.instance_ids),
                    &ids(|one| &one.execution_ids),
                    &ids(|one| &one.activity_ids),
                    &texts(|one| &one.tags),
                    &texts(|one| &one.sessions),
                    &texts(|one| &one.items),
                ],
            )
            .await
    }
}

impl batch::Request for Activities {
    fn bytes(&self) -> usize {
        self.items.iter().map(String::len).sum()
    }
}

/// The end of an activity.
pub(crate) struct ActivityAck {
    token: ActivityToken,
    /// Where its completion goes, and its text.
    completion: Option<(String, String)>,
}

impl ActivityAck {
    fn held(&self, done: bool) -> Result<(), CallError> {
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

/// Many ends, column by column.
#[derive(Default)]
struct ActivityAcks<'a> {
    instance_ids: Vec<&'a str>,
    execution_ids: Vec<i64>,
    activity_ids: Vec<i64>,
    ids: Vec<i64>,
    leases: Vec<Uuid>,
    completion_instance_ids: Vec<Option<&'a str>>,
    completions: Vec<Option<&'a str>>,
}

impl<'a> ActivityAcks<'a> {
    fn new(acks: &'a [Arc<ActivityAck>]) -> Self {
        let mut columns = Self::default();
        for ack in acks {
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

    fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.instance_ids,
            &self.execution_ids,
            &self.activity_ids,
            &self.ids,
            &self.leases,
            &self.completion_instance_ids,
            &self.completions,
        ]
    }
}

/// For each activity, whether its end was accepted.
fn done(rows: &[Row]) -> Result<Vec<bool>, CallError> {
    match rows.first() {
        Some(row) => Ok(row.try_get(0)?),
        None => Ok(Vec::new()),
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
