//! The world outside the workflow: a bank, a warehouse and a carrier, and a record of what was asked of them.
//!
//! It stands for services that no node can take down with it, so the nodes share it; everything else they share
//! is in the database.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A charge that the bank is going to confirm.
pub(crate) struct Charge {
    pub(crate) instance: String,
    pub(crate) receipt: String,
}

pub(crate) struct Outside {
    pub(crate) turns: AtomicU64,
    records: Mutex<Records>,
    bank: UnboundedSender<Charge>,
}

#[derive(Default)]
struct Records {
    /// Activities by key.
    activities: HashMap<String, Activity>,
    /// Idempotency keys of the requests that were carried out.
    requests: HashSet<String>,
    /// Requests that had been carried out already, and so had no effect.
    repeated: usize,
    declined: HashSet<String>,
}

#[derive(Default)]
struct Activity {
    executions: usize,
    /// The node that executes it. Nobody clears this for a node that dies.
    node: Option<usize>,
}

impl Outside {
    pub(crate) fn new() -> (Arc<Self>, UnboundedReceiver<Charge>) {
        let (bank, charges) = unbounded_channel();
        let outside = Self {
            turns: AtomicU64::new(0),
            records: Mutex::default(),
            bank,
        };
        (Arc::new(outside), charges)
    }

    /// Carries a request out, unless it was already. Returns whether it did.
    pub(crate) fn request(&self, key: &str) -> bool {
        let mut records = self.records();
        let is_new = records.requests.insert(key.to_string());
        records.repeated += usize::from(!is_new);
        is_new
    }

    /// Charges a card, once for a key. The confirmation comes later, to the orchestration.
    pub(crate) fn charge(&self, key: &str, instance: &str, receipt: String) {
        if self.request(key) {
            let charge = Charge {
                instance: instance.to_string(),
                receipt,
            };
            // Nobody receives only when the program is about to end.
            let _ = self.bank.send(charge);
        }
    }

    /// True the first time.
    pub(crate) fn decline_once(&self, instance: &str) -> bool {
        self.records().declined.insert(instance.to_string())
    }

    /// A node begins to execute an activity.
    pub(crate) fn began(&self, key: &str, node: usize) {
        let mut records = self.records();
        let activity = records.activities.entry(key.to_string()).or_default();
        activity.executions += 1;
        activity.node = Some(node);
    }

    /// The node has executed it.
    pub(crate) fn ended(&self, key: &str) {
        if let Some(activity) = self.records().activities.get_mut(key) {
            activity.node = None;
        }
    }

    /// How many activities a node executes or, dead, left behind that nobody began again.
    pub(crate) fn running_on(&self, node: usize) -> usize {
        let records = self.records();
        records
            .activities
            .values()
            .filter(|activity| activity.node == Some(node))
            .count()
    }

    /// How often nodes began to execute this activity.
    pub(crate) fn executions(&self, key: &str) -> usize {
        let records = self.records();
        records.activities.get(key).map_or(0, |activity| activity.executions)
    }

    /// Whether the request was carried out.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.records().requests.contains(key)
    }

    pub(crate) fn repeated_requests(&self) -> usize {
        self.records().repeated
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
