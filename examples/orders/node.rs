//! A worker node. In production this is a process; here it is a tokio runtime with a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide_postgres::PostgresProvider;
use tokio::runtime::Handle;

use crate::Result;
use crate::order::{self, Desk};
use crate::outside::Outside;

/// How long a node owns what it fetched, unless it renews. Short, so that a dead node's work is soon taken over;
/// the defaults are 5 s for a turn and 30 s for an activity.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// A running node. Dropping it is a crash; see [`stop`](Self::stop) for the civilised way.
pub(crate) struct Node {
    pub(crate) number: usize,
    /// All the node's tasks live in here. First, so that it is dropped first.
    _machine: Machine,
    duroxide: Arc<Runtime>,
    provider: PostgresProvider,
}

impl Node {
    pub(crate) async fn start(number: usize, url: &str, schema: &str, outside: &Arc<Outside>) -> Result<Self> {
        let machine = Machine::new(&format!("node-{number}"))?;
        let builder = PostgresProvider::builder(url).schema(schema).pool_size(8);
        let desk = Desk {
            outside: Arc::clone(outside),
            node: number,
        };
        // Spawned, so that the connections belong to the node's tokio runtime too, and die with it.
        let started = machine.handle.spawn(async move {
            let provider = builder.connect().await?;
            let duroxide = Runtime::start_with_options(
                Arc::new(provider.clone()),
                order::activities(&desk),
                order::orchestrations(&desk.outside),
                options(number),
            )
            .await;
            Ok::<_, duroxide_postgres::Error>((provider, duroxide))
        });
        let (provider, duroxide) = started.await??;
        Ok(Self {
            number,
            _machine: machine,
            duroxide,
            provider,
        })
    }

    /// Lets work under way finish, hands back the rest, and says goodbye to the server.
    pub(crate) async fn stop(self) {
        Arc::clone(&self.duroxide).shutdown(None).await;
        self.provider.close();
    }
}

/// A tokio runtime with one thread that can be pulled out of the wall.
struct Machine {
    handle: Handle,
    /// There until the drop.
    tokio: Option<tokio::runtime::Runtime>,
}

impl Machine {
    fn new(name: &str) -> std::io::Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: tokio.handle().clone(),
            tokio: Some(tokio),
        })
    }
}

impl Drop for Machine {
    /// As in a crash, nothing is finished or handed back: tasks stop wherever they are waiting, connections break,
    /// and leases stay in the database until they run out.
    fn drop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            tokio.shutdown_background();
        }
    }
}

fn options(number: usize) -> RuntimeOptions {
    RuntimeOptions {
        orchestration_concurrency: 4,
        worker_concurrency: 4,
        orchestrator_lock_timeout: LEASE,
        worker_lock_timeout: LEASE,
        worker_node_id: Some(format!("node-{number}")),
        ..RuntimeOptions::default()
    }
}
