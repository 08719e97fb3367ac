//! What those who watch see: spans, events and metrics, as `docs/observability.md` says, and never a payload.
//!
//! Each test has one thread, and a subscriber and recorder that only this thread knows.

mod capture;
#[cfg(feature = "metrics")]
mod looks;
#[cfg(feature = "metrics")]
mod metrics;
mod payloads;
#[cfg(feature = "metrics")]
mod recorder;
#[cfg(feature = "metrics")]
mod retries;
mod shared;
mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

/// Runs a test on this thread alone.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(test)
}

/// What the table in `docs/observability.md` has of these kinds: names, and their fields or labels.
fn documented(kinds: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let text = include_str!("../../docs/observability.md");
    let quoted = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_string).collect() };
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["", kind, name, labels, ..] if kinds.contains(kind) => {
                Some((quoted(name).concat(), quoted(labels).into_iter().collect()))
            }
            _ => None,
        }
    });
    rows.collect()
}
