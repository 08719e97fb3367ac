//! What a measurement works with, and what has to be cleaned up after it, however it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use duroxide::OrchestrationRegistry;
use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use tokio::time::timeout;

use crate::candidates::{Candidate, Node, Store};
use crate::cli::Scale;
use crate::server::{Counters, Server};
use crate::watched::{Watch, Watched};

/// Everything around one measurement.
pub struct Context<'a> {
    pub server: &'a Server,
    pub url: &'a str,
    pub scale: &'a Scale,
    pub store: Store,
    /// Connections to the database before this measurement opened any.
    backends: i64,
    nodes: Mutex<Vec<Node>>,
    runtimes: Mutex<Vec<Arc<Runtime>>>,
    watches: Mutex<Vec<Arc<Watch>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Context<'a> {
    pub async fn new(candidate: Candidate, url: &'a str, server: &'a Server, scale: &'a Scale) -> Result<Self> {
        let backends = server.backends().await?;
        let store = Store::new(candidate, url)?;
        if let Err(error) = store.deploy().await {
            // Of what may be there already. The reason counts, not whether this succeeds.
            let _ = store.remove(server).await;
            return Err(error);
        }
        server.wait_for_backends(backends).await?;
        Ok(Self {
            server,
            url,
            scale,
            store,
            backends,
            nodes: Mutex::default(),
            runtimes: Mutex::default(),
            watches: Mutex::default(),
        })
    }

    pub fn candidate(&self) -> Candidate {
        self.store.candidate()
    }

    /// One more provider on the store.
    pub async fn open(&self) -> Result<Arc<dyn Provider>> {
        let node = self.store.open().await?;
        let provider = node.provider();
        lock(&self.nodes).push(node);
        Ok(provider)
    }

    /// The same, watched: for whatever hands the provider to a runtime.
    pub async fn open_watched(&self) -> Result<(Arc<dyn Provider>, Arc<Watch>)> {
        let (watched, watch) = Watched::new(self.open().await?);
        lock(&self.watches).push(watch.clone());
        Ok((watched, watch))
    }

    /// A runtime with default options but for the number of its dispatchers.
    pub async fn start_runtime(
        &self,
        provider: Arc<dyn Provider>,
        activities: ActivityRegistry,
        orchestrations: OrchestrationRegistry,
        concurrency: usize,
    ) {
        let options = RuntimeOptions {
            orchestration_concurrency: concurrency,
            worker_concurrency: concurrency,
            ..RuntimeOptions::default()
        };
        let runtime = Runtime::start_with_options(provider, activities, orchestrations, options).await;
        lock(&self.runtimes).push(runtime);
    }

    /// Shuts down all runtimes and closes all providers. Whoever calls it must have dropped its own.
    pub async fn close(&self) {
        let runtimes = std::mem::take(&mut *lock(&self.runtimes));
        for runtime in runtimes {
            // Longer than this takes only who is stuck in a call; stopping it below makes it harmless.
            let _ = timeout(Duration::from_secs(5), runtime.shutdown(Some(500))).await;
        }
        for watch in std::mem::take(&mut *lock(&self.watches)) {
            watch.stop();
        }
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        for node in nodes {
            node.close().await;
        }
    }

    /// The server's counters when everything that the candidate did is in them: its connections have to be closed.
    pub async fn counters_after_close(&self) -> Result<Counters> {
        self.close().await;
        self.server.wait_for_backends(self.backends).await?;
        self.server.counters().await
    }

    /// Cleans up.
    pub async fn finish(self) -> Result<()> {
        self.close().await;
        self.store.remove(self.server).await
    }
}
