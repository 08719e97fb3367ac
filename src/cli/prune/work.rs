//! Deleting batch by batch: the transaction of each, progress, and what gets in the way.

use std::io::{self, Write};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_postgres::Row;

use crate::call::Parameters;
use crate::cli::arguments::Prune;
use crate::cli::connection::{Connection, query_unnamed};
use crate::cli::output::Failure;
use crate::deploy;

/// A batch waits for turns under way, but not for somebody who sleeps in a transaction.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '5s'";
/// What finds the next batch begins where the last one ended, in the order of an index, whatever the statistics say.
const BY_INDEX: &str = "set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off; \
                        set local jit = off";
/// Out of shared memory, or of another: what a batch needs grows with its size.
const NO_ROOM: &str = "53200";
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);
/// The exit code of what was interrupted, by custom.
const INTERRUPTED: u8 = 130;

/// A connection, progress, pauses and interruptions.
pub(super) struct Work {
    client: ClientWrapper,
    /// How many a batch may take.
    pub(super) size: i64,
    progress: ProgressBar,
    what: &'static str,
    done: i64,
    interrupted: tokio::task::JoinHandle<()>,
}

impl Work {
    pub(super) async fn begin(
        connection: &Connection,
        total: i64,
        what: &'static str,
        batch: &Prune,
    ) -> Result<Self, Failure> {
        let client = connection.session().await?;
        let progress = ProgressBar::new(total.unsigned_abs());
        let template = "{bar:40} {pos}/{len} {msg} {elapsed} (about {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            progress.set_style(style);
        }
        let mut work = Self {
            client,
            size: 0,
            progress,
            what,
            done: 0,
            // From now on an interrupt does not end the process: the batch under way is finished first.
            interrupted: tokio::spawn(async {
                let _ = tokio::signal::ctrl_c().await;
            }),
        };
        work.resize(i64::from(batch.batch_size));
        Ok(work)
    }

    fn resize(&mut self, size: i64) {
        self.size = size;
        self.progress.set_message(format!("{}, {size} at a time", self.what));
    }

    /// From now on fewer at a time.
    pub(super) fn shrink(&mut self, size: i64) {
        self.resize(size.clamp(1, self.size));
        let said = format!(
            "the server's lock table has no room for such a batch (53200): going on with {} {} at a time. \
             max_locks_per_transaction says how large it is",
            self.size, self.what
        );
        // Nothing can be done about a stderr that cannot be written to.
        self.progress.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "{said}");
        });
    }

    /// What the next batches are.
    pub(super) async fn find(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let found = self.transaction(BY_INDEX, sql, parameters).await;
        found.map_err(|error| self.failed(error))
    }

    /// One statement, with settings that end with it: through a pooler, the next may be on another connection.
    async fn transaction(
        &mut self,
        settings: &str,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let transaction = self.client.transaction().await?;
        transaction.batch_execute(settings).await?;
        let rows = query_unnamed(&*transaction, sql, parameters).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// One batch, in a transaction; again if somebody was in the way. None if the lock table has no room for it, which is
    /// final where the batch is `divisible`: nothing was done.
    pub(super) async fn batch(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
        divisible: bool,
    ) -> Result<Option<Row>, Failure> {
        for attempt in 1.. {
            match self.transaction(LOCK_TIMEOUT, sql, parameters).await {
                Ok(rows) => return Ok(rows.into_iter().next()),
                Err(error) => {
                    let code = error.code().map_or("", |code| code.code());
                    if code == NO_ROOM && (divisible || attempt == ATTEMPTS) {
                        return Ok(None);
                    }
                    let passes = matches!(code, "55P03" | "40P01" | "40001" | "DX006" | NO_ROOM);
                    if !passes || attempt == ATTEMPTS {
                        return Err(self.failed(error));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Err(Failure::new("no attempt was made"))
    }

    /// So many are done. Fails if it was interrupted.
    pub(super) fn done(&mut self, done: i64) -> Result<(), Failure> {
        self.done = done;
        self.progress.set_position(done.unsigned_abs());
        if self.interrupted.is_finished() {
            return Err(self.stopped("interrupted", INTERRUPTED));
        }
        Ok(())
    }

    pub(super) fn failed(&self, error: tokio_postgres::Error) -> Failure {
        let failure = Failure::from(deploy::database(error));
        self.stopped(&failure.to_string(), failure.code)
    }

    pub(super) fn stopped(&self, why: &str, code: u8) -> Failure {
        self.progress.finish_and_clear();
        Failure::with_code(
            format!(
                "{why}. {} {} were deleted before that; run it again to go on",
                self.done, self.what
            ),
            code,
        )
    }

    pub(super) fn finish(&self) {
        self.progress.finish_and_clear();
        self.interrupted.abort();
    }
}
