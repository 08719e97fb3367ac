//! Deleting batch by batch: the transaction of each, progress, and what gets in the way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_postgres::Row;

use crate::call::Parameters;
use crate::cli::arguments::Prune;
use crate::cli::connection::{Connection, query_unnamed};
use crate::cli::output::{Failure, Outcome, say};
use crate::deploy;
use crate::error::{NO_ROOM, TREE_CHANGED};

/// A batch waits for turns under way, but not for somebody who sleeps in a transaction.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '2s'";
/// What finds the next batch begins where the last one ended, in the order of an index, whatever the statistics say.
/// Times are read back as they were written, whatever the database's settings are.
const BY_INDEX: &str = "set local datestyle = 'ISO, YMD'; set local timezone = 'UTC'; \
                        set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off; \
                        set local enable_hashjoin = off; set local enable_mergejoin = off; set local jit = off";
/// Somebody has a lock.
const LOCKED: &str = "55P03";
const ATTEMPTS: u32 = 10;
/// Of a batch that can be divided: the rest of it need not wait.
const FEW_ATTEMPTS: u32 = 2;
const PAUSE: Duration = Duration::from_millis(200);
/// Of more instances that were passed by, the rest is only counted.
const MOST_LISTED: usize = 100;
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
    interrupted: Arc<AtomicBool>,
    signals: tokio::task::JoinHandle<()>,
    passed_by: Vec<PassedBy>,
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
        let interrupted = Arc::new(AtomicBool::new(false));
        let mut work = Self {
            client,
            size: 0,
            signals: listen(interrupted.clone(), progress.clone())?,
            progress,
            what,
            done: 0,
            interrupted,
            passed_by: Vec::new(),
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
        self.say(&format!(
            "the server's lock table has no room for such a batch (53200): going on with {} {} at a time. \
             max_locks_per_transaction says how large it is",
            self.size, self.what
        ));
    }

    /// This one stays.
    pub(super) fn pass_by(&mut self, instance: &str, why: Why) {
        if why == Why::Locked {
            self.say(&format!("somebody has locks on instance {instance:?}: it is passed by"));
        }
        self.passed_by.push(PassedBy {
            instance: instance.to_string(),
            why,
        });
    }

    pub(super) fn was_passed_by(&self, instance: &str) -> bool {
        self.passed_by.iter().any(|passed| passed.instance == instance)
    }

    /// What was done, in words and as JSON, with what was passed by.
    pub(super) fn outcome(&self, mut text: String, mut json: Value) -> Outcome {
        json["passed_by"] = listed(&self.passed_by);
        let count = self.passed_by.len();
        if count > 0 {
            text.push_str(&format!("; {count} instances passed by"));
        }
        Outcome::new(text, json).with_problem(self.problem().map(Failure::new))
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
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(self.stopped("interrupted", INTERRUPTED));
            }
            let error = match self.transaction(LOCK_TIMEOUT, sql, parameters).await {
                Ok(rows) => return Ok(Batch::Done(rows.into_iter().next())),
                Err(error) => error,
            };
            attempts += 1;
            match error.code().map_or("", |code| code.code()) {
                NO_ROOM if divisible || attempts == ATTEMPTS => return Ok(Batch::NoRoom),
                LOCKED if attempts >= self.patience(divisible) => return Ok(Batch::InTheWay),
                LOCKED | NO_ROOM | "40P01" | "40001" | TREE_CHANGED if attempts < ATTEMPTS => {}
                _ => return Err(self.failed(error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
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
        self.progress.set_position(done.unsigned_abs());
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

/// From now on a signal does not end the process: the batch under way is finished first. The second one does.
fn listen(interrupted: Arc<AtomicBool>, progress: ProgressBar) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let mut signals = Signals::new().map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    Ok(tokio::spawn(async move {
        signals.next().await;
        interrupted.store(true, Ordering::Relaxed);
        progress.suspend(|| say("interrupted: ending the batch under way first. Once more ends it at once"));
        signals.next().await;
        // The server undoes the batch under way.
        std::process::exit(INTERRUPTED.into());
    }))
}

/// What asks a process to end.
struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
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
