//! Looking for activities, as `fetch_work_item` does it: many in one call.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use duroxide::providers::{SessionFetchConfig, TagFilter, WorkItem};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_postgres::Row;
use tracing::error;
use uuid::Uuid;

use crate::ahead::{self, Ahead};
use crate::call::Connection;
use crate::encode;
use crate::error::Failure;
use crate::granted::Granted;
use crate::history::Tail;
use crate::inner::Inner;
use crate::look::Found;
use crate::poll::{self, Fetch, Line};
use crate::token::ActivityToken;
use crate::wake::Queue;

/// Those beyond begin with the first session again.
const MAX_SESSION_OWNERS: usize = 1000;

/// What `fetch_work_item` returns.
pub(crate) type Activity = (WorkItem, String, u32);

/// An activity, and what came along of the history of its instance.
pub(crate) struct Claimed {
    activity: Activity,
    ahead: Option<(String, Tail)>,
}

impl Claimed {
    pub(crate) fn new(activity: Activity, ahead: Option<(String, Tail)>) -> Self {
        Self { activity, ahead }
    }
}

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
    type Item = Claimed;
    const QUEUE: Queue = Queue::Worker;

    fn look(
        self,
        inner: Arc<Inner>,
        wanted: usize,
        behind: Option<Connection>,
    ) -> BoxFuture<'static, Result<Found<Claimed>, Failure>> {
        async move { inner.look_for_activities(&self, wanted, behind).await }.boxed()
    }

    fn lock_timeout(&self) -> Duration {
        self.lock_timeout
    }

    /// Where there are sessions, every fetch decides whether its worker can take one more.
    fn is_repeated(&self, inner: &Inner) -> bool {
        self.sessions == Sessions::IfAny || !inner.has_sessions(&self.tags)
    }

    fn line(inner: &Inner) -> &Line<Self> {
        &inner.activities
    }
}

impl ActivityRequest {
    /// Whether activities with this routing key are among what it asks for.
    pub(crate) fn takes(&self, tag: &String) -> bool {
        self.tags.as_ref().is_none_or(|tags| tags.contains(tag))
    }

    fn new(
        lock_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Self, Failure> {
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
    ) -> Result<Option<Activity>, Failure> {
        let own = ActivityRequest::new(lock_timeout, session, tag_filter)?;
        let started = Instant::now();
        let left = || poll_timeout.saturating_sub(started.elapsed());
        if own.tags.as_ref().is_some_and(Vec::is_empty) {
            self.wait_in_vain(poll_timeout).await;
            return Ok(None);
        }
        if session.is_some() && !self.has_sessions(&own.tags) {
            let shared = ActivityRequest {
                sessions: Sessions::IfAny,
                ..own.clone()
            };
            match self.fetch(&shared, left()).await? {
                Fetch::Item(claimed) => return Ok(Some(self.accept(claimed))),
                Fetch::Nothing => return Ok(None),
                Fetch::AskAnew => {}
            }
        }
        match self.fetch(&own, left()).await? {
            Fetch::Item(claimed) => Ok(Some(self.accept(claimed))),
            Fetch::Nothing | Fetch::AskAnew => Ok(None),
        }
    }

    fn accept(&self, claimed: Claimed) -> Activity {
        if let Some((instance_id, tail)) = claimed.ahead {
            ahead::keep(self.node, &instance_id, Ahead::History(tail));
        }
        claimed.activity
    }

    async fn look_for_activities(
        self: &Arc<Self>,
        request: &ActivityRequest,
        wanted: usize,
        behind: Option<Connection>,
    ) -> Result<Found<Claimed>, Failure> {
        const OPERATION: &str = "fetch_work_item";
        let (owner_id, session_lock_timeout_ms) = match &request.sessions {
            Sessions::For {
                owner_id,
                lock_timeout_ms,
            } => (Some(owner_id), *lock_timeout_ms),
            Sessions::No | Sessions::IfAny => (None, 0),
        };
        let (cursor_tags, cursors) = self.session_cursors(owner_id);
        let sent = Instant::now();
        let from_ms = self.heads.begin(&request.tags, sent);
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
                    &from_ms,
                    &i32::try_from(wanted).unwrap_or(i32::MAX),
                    &self.cache.is_enabled().then_some(self.node),
                ],
                behind,
            )
            .await?;
        if let Some(owner_id) = owner_id {
            for row in &rows {
                self.remember_session_cursors(owner_id, row)
                    .map_err(|error| self.decoding(OPERATION, error))?;
            }
        }
        let found = self.found_activities(OPERATION, request, &rows)?;
        let due = rows.iter().map(|row| row.try_get::<_, Option<i64>>("due_ms"));
        let due: Vec<_> = due
            .collect::<Result<_, _>>()
            .map_err(|error| self.decoding(OPERATION, error))?;
        if let Some(due_ms) = due.into_iter().flatten().min() {
            let too_little = rows.last().map(|row| row.try_get::<_, Option<Uuid>>("lease"));
            let too_little = too_little
                .transpose()
                .map_err(|error| self.decoding(OPERATION, error))?;
            let all = from_ms.is_none() || too_little == Some(None);
            self.heads.seen(&request.tags, sent, due_ms, all);
        }
        Ok(found)
    }

    fn found_activities(
        self: &Arc<Self>,
        operation: &'static str,
        request: &ActivityRequest,
        rows: &[Row],
    ) -> Result<Found<Claimed>, Failure> {
        let mut found = Found::nothing();
        let mut unreadable = None;
        // What came along with one activity is for the others of its instance as well.
        let mut histories = HashMap::new();
        for row in rows {
            let sessions: bool = row
                .try_get("sessions")
                .map_err(|error| self.decoding(operation, error))?;
            self.set_has_sessions(&request.tags, sessions);
            found.ask_anew = sessions && request.sessions == Sessions::IfAny;
            let fetched = Fetched::decode(row).map_err(|error| self.decoding(operation, error))?;
            let (token, attempt_count, item, history, due_ms) = match fetched {
                Fetched::Nothing { next } => {
                    found.next = next;
                    continue;
                }
                Fetched::Activity {
                    token,
                    attempt_count,
                    item,
                    history,
                    due_ms,
                } => (token, attempt_count, item, history, due_ms),
            };
            self.leases.extended(token.lease, request.lock_timeout);
            if let Some(tail) = history {
                histories.insert(token.instance_id.clone(), tail);
            }
            match *item {
                Ok(item) => {
                    let (instance_id, lease, token) = (token.instance_id.clone(), token.lease, token.to_string());
                    let ahead = histories.get(&instance_id).cloned().map(|tail| (instance_id, tail));
                    let claimed = Claimed::new((item, token.clone(), attempt_count), ahead);
                    let granted = Granted::new(self, Queue::Worker, lease, token, claimed);
                    found.granted.push(granted.due_since(due_ms));
                }
                // Unreadable, it keeps its lease: others come first, and it is reported again when that ends.
                Err(reason) => {
                    let message = format!(
                        "activity {} of instance {:?} (row {}) cannot be read: {reason}",
                        token.activity_id, token.instance_id, token.id
                    );
                    error!("{message}");
                    unreadable = Some(Failure::permanent(operation, message));
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

    fn session_cursors(&self, owner_id: Option<&String>) -> (Vec<String>, Vec<String>) {
        let owners = self.session_cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let cursors = owner_id.and_then(|owner_id| owners.get(owner_id));
        cursors
            .into_iter()
            .flatten()
            .map(|(tag, at)| (tag.clone(), at.clone()))
            .unzip()
    }

    fn remember_session_cursors(&self, owner_id: &str, row: &Row) -> Result<(), tokio_postgres::Error> {
        let tags: Option<Vec<String>> = row.try_get("cursor_tags")?;
        let sessions: Option<Vec<String>> = row.try_get("cursors")?;
        if let (Some(tags), Some(sessions)) = (tags, sessions) {
            let mut owners = self.session_cursors.lock().unwrap_or_else(PoisonError::into_inner);
            if owners.len() > MAX_SESSION_OWNERS {
                owners.clear();
            }
            let cursors = owners.entry(owner_id.to_string()).or_default();
            cursors.extend(tags.into_iter().zip(sessions));
        }
        Ok(())
    }
}

/// One row of `fetch_work_item`.
enum Fetched {
    Activity {
        token: ActivityToken,
        attempt_count: u32,
        item: Box<Result<WorkItem, String>>,
        history: Option<Tail>,
        /// Since when it was due.
        due_ms: Option<i64>,
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
            Some(text) => serde_json::from_str(&text).map_err(|error| encode::unreadable(&error)),
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
            history: history_along(row)?,
            due_ms: row.try_get("due_ms")?,
        })
    }
}

/// What the row of an activity says of the history of its instance.
fn history_along(row: &Row) -> Result<Option<Tail>, tokio_postgres::Error> {
    let execution_id: Option<i64> = row.try_get("history_execution_id")?;
    execution_id
        .map(|execution_id| Tail::decode(row, execution_id))
        .transpose()
}
