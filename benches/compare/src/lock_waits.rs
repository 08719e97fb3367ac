//! Who waits for locks: looked for again and again, on a connection of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use crate::server;

const INTERVAL: Duration = Duration::from_millis(10);

/// What was seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// How many sessions waited, on average.
    pub waiting: f64,
    /// The longest that one of them had waited.
    pub longest_ms: f64,
    /// How many sessions of the other process waited, on average.
    pub other_waiting: f64,
}

pub struct LockWaits {
    enough: Arc<AtomicBool>,
    task: JoinHandle<Result<Seen>>,
}

impl LockWaits {
    pub async fn watch(url: &str) -> Result<Self> {
        let client = server::connect(url).await?;
        // Sessions of the command have the provider's name, and no other way to be told from those of nodes.
        let sql = "
            select count(*) filter (where not pruning) as waiting,
                   count(*) filter (where pruning) as other_waiting,
                   coalesce(max(waited_ms) filter (where not pruning), 0)::float8 as longest_ms
              from (select a.query like '%.delete\\_instance\\_bulk(%' as pruning,
                           (select 1000 * extract(epoch from clock_timestamp() - min(l.waitstart))
                              from pg_locks as l where l.pid = a.pid and not l.granted) as waited_ms
                      from pg_stat_activity as a
                     where a.datname = current_database() and a.wait_event_type = 'Lock') as compare_probe";
        let statement = client.prepare(sql).await?;
        let enough = Arc::new(AtomicBool::new(false));
        let ended = enough.clone();
        let task = tokio::spawn(async move {
            let (mut seen, mut looks) = (Seen::default(), 0.0);
            while !ended.load(Ordering::Relaxed) {
                let row = client.query_one(&statement, &[]).await?;
                looks += 1.0;
                seen.waiting += row.get::<_, i64>(0) as f64;
                seen.other_waiting += row.get::<_, i64>(1) as f64;
                seen.longest_ms = seen.longest_ms.max(row.get(2));
                tokio::time::sleep(INTERVAL).await;
            }
            seen.waiting /= looks;
            seen.other_waiting /= looks;
            Ok(seen)
        });
        Ok(Self { enough, task })
    }

    pub async fn end(self) -> Result<Seen> {
        self.enough.store(true, Ordering::Relaxed);
        self.task.await.context("nobody looked for lock waits")?
    }
}
