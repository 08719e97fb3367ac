//! Sessions: `sql/sessions`.

use std::time::{Duration, Instant};

use tracing::debug;

use crate::call::{Parameters, jittered};
use crate::encode;
use crate::error::Failure;
use crate::inner::Inner;
use crate::telemetry::metrics;

/// How long a renewal goes on trying, at most, and how often.
const MAX_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

impl Inner {
    pub(crate) async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, Failure> {
        const OPERATION: &str = "renew_session_lock";
        if owner_ids.is_empty() {
            return Ok(0);
        }
        for owner_id in owner_ids {
            encode::key(OPERATION, "session owner", owner_id)?;
        }
        let parameters: Parameters<'_> = &[
            &owner_ids,
            &encode::milliseconds(extend_for),
            &encode::milliseconds(idle_timeout),
        ];
        // The runtime does not try again before most of the sessions have passed to nobody.
        let patience = Instant::now() + MAX_PATIENCE.min(extend_for / 4);
        loop {
            match self.one_row(OPERATION, parameters).await {
                Ok(row) => return self.count(OPERATION, &row),
                Err(failure) if failure.error.is_retryable() && Instant::now() < patience => {
                    debug!(error = %failure.error, "{OPERATION} failed; trying again");
                    metrics::retry(OPERATION, failure.class.as_str());
                    tokio::time::sleep(jittered(PAUSE)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// A session is an orphan when its lock has expired and nothing waits for it; that it was idle is implied.
    pub(crate) async fn cleanup_orphaned_sessions(&self) -> Result<usize, Failure> {
        const OPERATION: &str = "cleanup_orphaned_sessions";
        let row = self.one_row(OPERATION, &[]).await?;
        self.count(OPERATION, &row)
    }

    fn count(&self, operation: &str, row: &tokio_postgres::Row) -> Result<usize, Failure> {
        let count: i64 = row.try_get(0).map_err(|error| self.decoding(operation, error))?;
        Ok(encode::from_id(count) as usize)
    }
}
