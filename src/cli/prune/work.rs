//! Deleting batch by batch: the transaction of each, progress, and what gets in the way.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_postgres::{IsolationLevel, Row};

use super::signals::{INTERRUPTED, listen};
use crate::call::Parameters;
use crate::cli::arguments::Prune;
use crate::cli::connection::{Connection, query_unnamed};
use crate::cli::output::{Failure, LOCKED, Outcome, say};
use crate::cli::table_lock::TableLock;
use crate::deploy::{self, CATALOGS_ONLY};
use crate::error::{NO_ROOM, TREE_CHANGED, is_retryable_state};

/// A batch waits for turns under way, but not for somebody who sleeps in a transaction.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '2s'";
/// What finds the next batch begins where the last one ended, in the order of an index, whatever the statistics say.
/// Times are read back as they were written, whatever the database's settings are.
const BY_INDEX: &str = "set local datestyle = 'ISO, YMD'; set local timezone = 'UTC'; \
                        set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off; \
                        set local enable_hashjoin = off; set local enable_mergejoin = off; set local jit = off";
const ATTEMPTS: u32 = 10;
/// Of a batch that can be divided: the rest of it need not wait.
const FEW_ATTEMPTS: u32 = 2;
const PAUSE: Duration = Duration::from_millis(200);
/// Of more instances that were passed by, the rest is only counted.
const MOST_LISTED: usize = 100;
/// Somebody who has locks on so many, one after the other, has them on very many: each would take its time.
const MOST_IN_A_ROW: usize = 5;
const RUN_AGAIN: &str = "; run it again to go on";
/// A connection, progress, pauses and interruptions.
pub(super) struct Work {
    client: ClientWrapper,
    /// Quoted.
    pub(super) schema: String,
    /// How many a batch may take.
    pub(super) size: i64,
    progress: ProgressBar,
    what: &'static str,
    dry_run: bool,
    done: i64,
    interrupted: watch::Receiver<bool>,
    signals: tokio::task::JoinHandle<()>,
    passed_by: Vec<PassedBy>,
    /// How many of the last were locked.
    in_a_row: usize,
}

/// An instance that stays, and why.
struct PassedBy {
    instance: String,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody has locks on it.
    Locked,
    /// The lock table has no room for it and all below it.
    TooLarge { members: i64 },
}

/// What became of a batch. Unless it is done, nothing was.
pub(super) enum Batch {
    Done(Option<Row>),
    /// The lock table has no room for it.
    NoRoom,
    /// Somebody has locks that it needs, and keeps them.
    InTheWay,
}

impl Work {
    pub(super) async fn begin(connection: &Connection, what: &'static str, batch: &Prune) -> Result<Self, Failure> {
        let client = connection.session().await?;
        let progress = ProgressBar::new(0);
        let template = "{bar:40} {pos}/{len} {msg} {elapsed} (about {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            progress.set_style(style);
        }
        let (interrupted, signals) = listen(progress.clone())?;
        let mut work = Self {
            client,
            schema: connection.schema.quoted(),
            size: 0,
            signals,
            progress,
            what,
            dry_run: batch.dry_run,
            done: 0,
            interrupted,
            passed_by: Vec::new(),
            in_a_row: 0,
        };
        work.resize(i64::from(batch.batch_size));
        Ok(work)
    }

    /// So many there are.
    pub(super) fn expect(&self, total: i64) {
        self.progress.set_length(total.unsigned_abs());
    }

    fn resize(&mut self, size: i64) {
        self.size = size;
        self.progress.set_message(format!("{}, {size} at a time", self.what));
    }

    /// From now on fewer at a time.
    pub(super) fn shrink(&mut self, size: i64) {
        self.resize(size.clamp(1, self.size));
        self.say(&format!(
            "the server's lock table has no room for such a batch (53200): going on with {} {} at a time. \
             max_locks_per_transaction says how large it is",
            self.size, self.what
        ));
    }

    /// This one stays. Fails if somebody has locks on all those before it too.
    pub(super) fn pass_by(&mut self, instance: &str, why: Why) -> Result<(), Failure> {
        if why == Why::Locked {
            self.say(&format!("somebody has locks on instance {instance:?}: it is passed by"));
            self.in_a_row += 1;
        }
        self.passed_by.push(PassedBy {
            instance: instance.to_string(),
            why,
        });
        if self.in_a_row == MOST_IN_A_ROW {
            let failure = Failure::new(format!("somebody has locks on {MOST_IN_A_ROW} instances in a row"));
            return Err(self.stopped(failure, RUN_AGAIN));
        }
        Ok(())
    }

    pub(super) fn was_passed_by(&self, instance: &str) -> bool {
        self.passed_by.iter().any(|passed| passed.instance == instance)
    }

    /// What was done, in words and as JSON, with what was passed by, and why it ended early if it did.
    pub(super) fn outcome(&self, mut text: String, mut json: Value, stopped: Option<Failure>) -> Outcome {
        json["passed_by"] = listed(&self.passed_by);
        let count = self.passed_by.len();
        if count > 0 {
            text.push_str(&format!("; {count} instances passed by"));
        }
        let problem = match (stopped, self.problem()) {
            (Some(stopped), Some(problem)) => Some(stopped.followed_by(&format!("\n{problem}"))),
            (stopped, problem) => stopped.or(problem.map(Failure::new)),
        };
        Outcome::new(text, json).with_problem(problem)
    }

    /// What those that were passed by mean to the one who asked.
    fn problem(&self) -> Option<String> {
        let is_locked = |passed: &&PassedBy| passed.why == Why::Locked;
        let and_more = |count: usize| match count {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        let mut problems = Vec::new();
        let large = self.passed_by.iter().find_map(|passed| match passed.why {
            Why::TooLarge { members } => Some((&passed.instance, members)),
            Why::Locked => None,
        });
        let locked = self.passed_by.iter().filter(is_locked).count();
        if let Some((root, members)) = large {
            problems.push(format!(
                "instance {root:?} and all below it are {members}, for which the server's lock table has no room (53200): it \
                 stays{}. Raise max_locks_per_transaction and run it again",
                and_more(self.passed_by.len() - locked)
            ));
        }
        if let Some(first) = self.passed_by.iter().find(is_locked) {
            problems.push(format!(
                "somebody had locks on instance {:?}{}: what was to go of them stays. Run it again later; doctor shows \
                 transactions that stay open",
                first.instance,
                and_more(locked)
            ));
        }
        (!problems.is_empty()).then(|| problems.join("\n"))
    }

    fn say(&self, text: &str) {
        self.progress.suspend(|| say(text));
    }

    /// How many there are.
    pub(super) async fn count(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        self.look("", sql, parameters).await
    }

    /// What the next batches are.
    pub(super) async fn find(&mut self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        self.look(BY_INDEX, sql, parameters).await
    }

    /// Reads. Nothing is under way that would have to be finished, so a signal ends it at once.
    async fn look(&mut self, settings: &str, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let mut interrupted = self.interrupted.clone();
        let mut attempts = 0;
        loop {
            let found = tokio::select! {
                biased;
                Ok(_) = interrupted.wait_for(|&interrupted| interrupted) => return Err(self.was_interrupted()),
                found = self.transaction(true, settings, sql, parameters) => found,
            };
            let error = match found {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            attempts += 1;
            if error.code().is_none_or(|code| code.code() != LOCKED) {
                return Err(self.failed(error));
            }
            if attempts == ATTEMPTS {
                return Err(match self.table_lock().await? {
                    Some(lock) => self.table_locked(&lock),
                    None => self.failed(error),
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One statement, with settings that end with it: through a pooler, the next may be on another connection.
    async fn transaction(
        &mut self,
        read_only: bool,
        settings: &str,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let transaction = self
            .client
            .build_transaction()
            // What the functions insist on, whatever the role's defaults are.
            .isolation_level(IsolationLevel::ReadCommitted)
            .read_only(read_only)
            .start()
            .await?;
        transaction
            .batch_execute(&format!("{LOCK_TIMEOUT}; {CATALOGS_ONLY}; {settings}"))
            .await?;
        let rows = query_unnamed(&*transaction, sql, parameters).await?;
        transaction.commit().await?;
        Ok(rows)
    }

    /// One batch, in a transaction; again if somebody was in the way, less often where the batch is `divisible`. Fails if it was
    /// interrupted.
    pub(super) async fn batch(
        &mut self,
        sql: &str,
        parameters: Parameters<'_>,
        divisible: bool,
    ) -> Result<Batch, Failure> {
        let mut attempts = 0;
        loop {
            if *self.interrupted.borrow() {
                return Err(self.was_interrupted());
            }
            let error = match self.transaction(false, "", sql, parameters).await {
                Ok(rows) => return Ok(Batch::Done(rows.into_iter().next())),
                Err(error) => error,
            };
            attempts += 1;
            match error.code().map_or("", |code| code.code()) {
                NO_ROOM if divisible || attempts == ATTEMPTS => return Ok(Batch::NoRoom),
                LOCKED if attempts >= self.patience(divisible) => match self.table_lock().await? {
                    None => return Ok(Batch::InTheWay),
                    Some(lock) if attempts >= ATTEMPTS => return Err(self.table_locked(&lock)),
                    // No instance in particular is to blame, and smaller batches would wait as long.
                    Some(_) => {}
                },
                LOCKED | NO_ROOM | "40P01" | "40001" | TREE_CHANGED if attempts < ATTEMPTS => {}
                _ => return Err(self.failed(error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Somebody's lock on a whole table of ours.
    async fn table_lock(&self) -> Result<Option<TableLock>, Failure> {
        let lock = TableLock::find(&self.client, &self.schema).await;
        lock.map_err(|error| self.failed(error))
    }

    /// How often somebody's locks are waited for. Who had some once has others.
    fn patience(&self, divisible: bool) -> u32 {
        let was_locked = self.passed_by.iter().any(|passed| passed.why == Why::Locked);
        match (was_locked, divisible) {
            (false, true) => FEW_ATTEMPTS,
            (false, false) => ATTEMPTS / 2,
            (true, _) => 1,
        }
    }

    /// So many are done.
    pub(super) fn done(&mut self, done: i64) {
        self.done = done;
        self.in_a_row = 0;
        self.progress.set_position(done.unsigned_abs());
    }

    fn failed(&self, error: tokio_postgres::Error) -> Failure {
        let advice = match error.code().map_or("", |code| code.code()) {
            "57014" => ". If statement_timeout ended it: use a smaller --batch-size, or raise it",
            // It would be the same.
            "0A000" | "25006" => "",
            _ if deploy::is_statement_mode(&error) => "",
            "" => RUN_AGAIN,
            state if is_retryable_state(state) => RUN_AGAIN,
            _ => "",
        };
        self.stopped(Failure::from(deploy::no_transaction(error)), advice)
    }

    fn was_interrupted(&self) -> Failure {
        self.stopped(Failure::with_code("interrupted", INTERRUPTED), RUN_AGAIN)
    }

    fn table_locked(&self, lock: &TableLock) -> Failure {
        let failure = Failure::new(format!("{}, which everything here waits for", lock.who));
        self.stopped(failure, &format!("; run it again when that has ended ({})", lock.end))
    }

    /// There is no room for the smallest batch.
    pub(super) fn full(&self) -> Failure {
        let failure = Failure::new("the server's lock table is full, or its memory (53200), for a single instance too");
        self.stopped(
            failure,
            "; run it again later, with a smaller --batch-size, or raise max_locks_per_transaction",
        )
    }

    fn stopped(&self, failure: Failure, advice: &str) -> Failure {
        if self.dry_run {
            // Nothing was to be deleted, and nothing to go on with.
            return failure.followed_by(&advice.replace(" to go on", ""));
        }
        failure.followed_by(&format!(
            ". {} {} were deleted before that{advice}",
            self.done, self.what
        ))
    }

    pub(super) fn finish(&self) {
        self.progress.finish_and_clear();
        self.signals.abort();
    }
}

fn listed(passed_by: &[PassedBy]) -> Value {
    let first = passed_by.iter().take(MOST_LISTED).map(|passed| match passed.why {
        Why::Locked => json!({ "instance": passed.instance, "reason": "locked" }),
        Why::TooLarge { members } => json!({ "instance": passed.instance, "reason": "too_large", "members": members }),
    });
    json!({ "count": passed_by.len(), "instances": first.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let passed_by = |n: usize| PassedBy {
            instance: n.to_string(),
            why: if n == 0 {
                Why::TooLarge { members: 7 }
            } else {
                Why::Locked
            },
        };
        let json = listed(&(0..MOST_LISTED + 5).map(passed_by).collect::<Vec<_>>());
        assert_eq!(json["count"], MOST_LISTED + 5);
        let instances = json["instances"].as_array().expect("a list");
        assert_eq!(instances.len(), MOST_LISTED);
        assert_eq!(
            instances[0],
            json!({ "instance": "0", "reason": "too_large", "members": 7 })
        );
        assert_eq!(instances[1], json!({ "instance": "1", "reason": "locked" }));
    }
}
