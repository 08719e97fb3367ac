//! Sessions: `sql/sessions`.

use std::time::Duration;

use crate::encode;
use crate::error::Failure;
use crate::inner::Inner;

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
        let row = self
            .one_row(
                OPERATION,
                &[
                    &owner_ids,
                    &encode::milliseconds(extend_for),
                    &encode::milliseconds(idle_timeout),
                ],
            )
            .await?;
        self.count(OPERATION, &row)
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
