//! The only place that checks out a connection, prepares a statement, retries and traces.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::{Instrument, debug, warn};
use uuid::Uuid;

use crate::connect::{NoConnection, Pool};
pub(crate) use crate::connection::Connection;
use crate::error::CallError;
use crate::follow::Follow;
use crate::lease::Leases;
use crate::signatures;
use crate::telemetry::{Call, Connections, metrics};

pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// How long one attempt of a lease call may take before another connection is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// With less than this left of a lease, nothing is gained by another attempt.
const LAST_ATTEMPT: Duration = Duration::from_secs(2);
/// A line slower than this cannot serve large payloads.
const SLOW_LINE_BYTES_PER_SECOND: usize = 256 * 1024;
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// Calls functions of one schema.
#[derive(Clone)]
pub(crate) struct Caller {
    pool: Pool,
    /// Whether statements have no name: behind a pooler the next one may run elsewhere.
    unnamed: bool,
    /// Whether calls, without names, wait for locks only briefly.
    #[cfg(feature = "cli")]
    limited: bool,
    schema: Arc<str>,
    /// Ordinary calls take one of these first; what the pool has beyond them is for lease calls. Closed with the provider.
    ordinary: Arc<Semaphore>,
    /// Then there are no connections for lease calls either.
    closed: Arc<AtomicBool>,
}

/// Which lease a call is about.
pub(crate) struct LeaseCall<'a> {
    pub(crate) leases: &'a Leases,
    pub(crate) id: Uuid,
    /// By how much the call extends it; none if it ends it.
    pub(crate) extended_by: Option<Duration>,
    /// How much the call carries, roughly.
    pub(crate) bytes: usize,
}

impl LeaseCall<'_> {
    /// Half of what is left of the lease, so that there is time for another attempt on another connection, and
    /// whatever a slow line needs to carry the call.
    fn attempt_timeout(&self, left: Duration) -> Duration {
        let transfer = Duration::from_secs((self.bytes / SLOW_LINE_BYTES_PER_SECOND) as u64);
        if left < LAST_ATTEMPT {
            ATTEMPT_TIMEOUT + transfer
        } else {
            ATTEMPT_TIMEOUT.min(left / 2) + transfer
        }
    }
}

/// The answer to a call, and whether an earlier attempt of it may already have committed.
pub(crate) struct Answer<T> {
    pub(crate) result: Result<T, CallError>,
    pub(crate) repeated: bool,
}

impl<T> Answer<T> {
    pub(crate) fn and_then<U>(self, decode: impl FnOnce(T) -> Result<U, CallError>) -> Answer<U> {
        Answer {
            result: self.result.and_then(decode),
            repeated: self.repeated,
        }
    }
}

impl Caller {
    /// `unnamed`: no named prepared statements. `quoted_schema` must be a quoted identifier.
    pub(crate) fn new(pool: Pool, unnamed: bool, quoted_schema: &str) -> Self {
        let size = pool.size();
        let reserved = (size / 4).max(1);
        Self {
            ordinary: Arc::new(Semaphore::new(size.saturating_sub(reserved).max(1))),
            pool,
            unnamed,
            #[cfg(feature = "cli")]
            limited: false,
            schema: quoted_schema.into(),
            closed: Arc::default(),
        }
    }

    /// The same, with calls that wait for locks only briefly, or not. Each is a transaction then, of three round trips.
    #[cfg(feature = "cli")]
    pub(crate) fn limited(mut self, limited: bool) -> Self {
        self.limited = limited;
        self
    }

    pub(crate) fn close(&self) {
        self.close_to_new_work();
        self.closed.store(true, Ordering::Relaxed);
        self.pool.close();
    }

    /// From here on leases can be ended, and nothing else.
    pub(crate) fn close_to_new_work(&self) {
        self.ordinary.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.ordinary.is_closed()
    }

    /// Calls a function once, on an ordinary connection.
    pub(crate) async fn call(&self, function: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, CallError> {
        self.call_followed(function, parameters, None).await
    }

    /// As [`call`](Self::call), with looks right behind it.
    pub(crate) async fn call_followed(
        &self,
        function: &'static str,
        parameters: Parameters<'_>,
        follow: Option<&Follow>,
    ) -> Result<Vec<Row>, CallError> {
        let call = Call::begin(function);
        let result = async {
            let connection = self.ordinary_connection(&call).await?;
            self.attempt(&call, &connection, parameters, &AtomicBool::default(), follow)
                .await
        }
        .instrument(call.span())
        .await;
        call.end(&result);
        result
    }

    /// Calls a function once, on a connection that has another call on the wire.
    pub(crate) async fn call_behind(
        &self,
        connection: &Connection,
        function: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, CallError> {
        let call = Call::begin(function);
        let result = self
            .attempt(&call, connection, parameters, &AtomicBool::default(), None)
            .instrument(call.span())
            .await;
        call.end(&result);
        result
    }

    async fn ordinary_connection(&self, call: &Call) -> Result<Connection, CallError> {
        let _waiting = call.waits_for(Connections::Ordinary);
        let waited = async { self.connection(Some(self.permit().await?), self.pool.wait()).await };
        let connection = waited.await;
        if let Err(CallError::NoConnection(error)) = &connection
            && error.is_busy()
        {
            metrics::pool_timeout(Connections::Ordinary);
        }
        connection
    }

    /// `wait`: how long to wait for a connection that others use.
    async fn connection(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        wait: Option<Duration>,
    ) -> Result<Connection, CallError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(CallError::Closed);
        }
        Ok(Connection::new(self.pool.get(wait).await?, permit))
    }

    /// Waits for an ordinary connection no longer than the pool would let it.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        let waiting = Arc::clone(&self.ordinary).acquire_owned();
        let permit = match self.pool.wait() {
            Some(limit) => tokio::time::timeout(limit, waiting)
                .await
                .map_err(|_| CallError::NoConnection(self.pool.busy(Some(limit))))?,
            None => waiting.await,
        };
        permit.map_err(|_| CallError::Closed)
    }

    /// Calls a function that ends or extends a lease: on reserved connections, again and again while trouble
    /// with the server lasts, until the lease has certainly ended.
    ///
    /// The runtime takes any error of a renewal as "cancelled", and fails the instance after a few failed acks,
    /// so an error must not reach it earlier.
    ///
    /// `failed`: what became of a first attempt that was made together with others.
    pub(crate) async fn call_within_lease(
        &self,
        function: &'static str,
        parameters: Parameters<'_>,
        lease: LeaseCall<'_>,
        mut failed: Option<CallError>,
    ) -> Answer<Vec<Row>> {
        let call = Call::begin(function);
        let end = lease.leases.end_of(lease.id);
        let mut repeated = false;
        let result = async {
            let mut backoff = FIRST_BACKOFF;
            if let Some(CallError::InCompany(ambiguous)) = failed {
                // Perhaps because of another: worth another attempt at once.
                repeated = ambiguous;
                failed = None;
                metrics::retry(function, "company");
            }
            loop {
                let result = match failed.take() {
                    Some(error) => Err(error),
                    None => {
                        let timeout = lease.attempt_timeout(time_left(&end));
                        self.attempt_within(&call, timeout, parameters, None).await
                    }
                };
                if let Err(error) = &result
                    && error.is_ambiguous()
                {
                    repeated = true;
                    if let Some(duration) = lease.extended_by
                        && duration > time_left(&end)
                    {
                        // It may have been extended: then it ends that much later.
                        lease.leases.extended(lease.id, duration);
                    }
                }
                let left = time_left(&end);
                match result {
                    Err(error) if error.is_retryable() && !left.is_zero() => {
                        if backoff == FIRST_BACKOFF {
                            warn!(%error, "{function} failed while its lease holds; retrying until it succeeds or ends");
                        } else {
                            debug!(%error, "{function} failed again");
                        }
                        metrics::retry(function, error.class().as_str());
                        tokio::time::sleep(jittered(backoff).min(left)).await;
                        backoff = (backoff * 2).min(MAX_BACKOFF);
                    }
                    result => return result,
                }
            }
        }
        .instrument(call.span())
        .await;
        call.end(&result);
        Answer { result, repeated }
    }

    /// One attempt of a call that is about many leases at once, on a reserved connection, with looks right behind it.
    pub(crate) async fn call_within_leases<'a>(
        &self,
        function: &'static str,
        parameters: Parameters<'_>,
        leases: impl Iterator<Item = LeaseCall<'a>>,
        follow: &Follow,
    ) -> Result<Vec<Row>, CallError> {
        let mut bytes = 0;
        let mut shortest = ATTEMPT_TIMEOUT;
        for lease in leases {
            bytes += lease.bytes;
            shortest =
                shortest.min(LeaseCall { bytes, ..lease }.attempt_timeout(time_left(lease.leases.end_of(lease.id))));
        }
        let call = Call::begin(function);
        let result = self
            .attempt_within(&call, shortest, parameters, Some(follow))
            .instrument(call.span())
            .await;
        call.end(&result);
        result
    }

    /// One attempt on a reserved connection, given up after a time.
    async fn attempt_within(
        &self,
        call: &Call,
        timeout: Duration,
        parameters: Parameters<'_>,
        follow: Option<&Follow>,
    ) -> Result<Vec<Row>, CallError> {
        let (connected, sent) = (AtomicBool::new(false), AtomicBool::new(false));
        let attempt = async {
            let waiting = call.waits_for(Connections::Reserved);
            let connection = self.connection(None, None).await?;
            drop(waiting);
            connected.store(true, Ordering::Relaxed);
            self.attempt(call, &connection, parameters, &sent, follow).await
        };
        match tokio::time::timeout(timeout, attempt).await {
            Ok(result) => result,
            Err(_) => {
                // Perhaps the server is gone and nobody said so. Then the connections that have been idle since
                // are dead too.
                self.pool.drop_idle(timeout);
                if sent.into_inner() {
                    return Err(CallError::TimedOut);
                }
                if !connected.into_inner() {
                    metrics::pool_timeout(Connections::Reserved);
                }
                Err(CallError::NoConnection(NoConnection::TimedOut(timeout)))
            }
        }
    }

    /// `sent` tells, also when this is dropped, whether the call was sent.
    async fn attempt(
        &self,
        call: &Call,
        connection: &Connection,
        parameters: Parameters<'_>,
        sent: &AtomicBool,
        follow: Option<&Follow>,
    ) -> Result<Vec<Row>, CallError> {
        let function = call.function;
        call.attempted();
        connection.call_begins();
        let mut result = self.execute(connection, function, parameters, sent, follow).await;
        if result.as_ref().is_err_and(CallError::is_stale_statement) {
            // The functions were deployed anew since this connection prepared its statement.
            debug!("{function} was deployed anew; preparing it again");
            call.attempted();
            metrics::retry(function, "stale_statement");
            connection.client().statement_cache.clear();
            result = self.execute(connection, function, parameters, sent, None).await;
        }
        if !result.as_ref().is_err_and(CallError::spoils_connection) {
            connection.call_ended();
        }
        result
    }

    async fn execute(
        &self,
        connection: &Connection,
        function: &'static str,
        parameters: Parameters<'_>,
        sent: &AtomicBool,
        follow: Option<&Follow>,
    ) -> Result<Vec<Row>, CallError> {
        let text = self.statement(function, parameters.len());
        let client = connection.client();
        if self.unnamed {
            let types = signatures::parameter_types(function).ok_or(CallError::NoAnswer)?;
            let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
            sent.store(true, Ordering::Relaxed);
            #[cfg(feature = "cli")]
            if self.limited {
                return Ok(crate::limited::query(client, &text, &typed).await?);
            }
            return followed(client.query_typed(&text, &typed), connection, follow).await;
        }
        let statement = client.prepare_cached(&text).await.map_err(CallError::unprepared)?;
        sent.store(true, Ordering::Relaxed);
        followed(client.query(&statement, parameters), connection, follow).await
    }

    fn statement(&self, function: &'static str, parameters: usize) -> String {
        let mut statement = format!("select * from {}.{function}(", self.schema);
        for position in 1..=parameters {
            if position > 1 {
                statement.push_str(", ");
            }
            statement.push('$');
            statement.push_str(&position.to_string());
        }
        statement.push(')');
        statement
    }
}

/// Waits for the answer of a call, with looks right behind it.
async fn followed(
    answer: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
    connection: &Connection,
    follow: Option<&Follow>,
) -> Result<Vec<Row>, CallError> {
    let mut answer = pin!(answer);
    if let Some(follow) = follow {
        // Asked for once, it is on the wire: only now can anything be behind it.
        if let Poll::Ready(rows) = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
            return Ok(rows?);
        }
        follow.sent(connection);
    }
    Ok(answer.await?)
}

fn time_left(lease_ends: impl Fn() -> Instant) -> Duration {
    lease_ends().saturating_duration_since(Instant::now())
}

/// Between half and the whole of a duration, so that many waiters do not act in step.
pub(crate) fn jittered(duration: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() as u32;
    duration.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}
