//! Counters, gauges and histograms, by the `metrics` facade.
//!
//! Labels have few values each, fixed at compile time: never an instance.

use std::time::Duration;

use ::metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::Connections;
use crate::error::ErrorClass;
use crate::reason::Reason;
use crate::wake::Queue;

const OPERATIONS: &str = "duroxide_postgres_operations_total";
const OPERATION_DURATION: &str = "duroxide_postgres_operation_duration_seconds";
const ERRORS: &str = "duroxide_postgres_errors_total";
const CALLS: &str = "duroxide_postgres_calls_total";
const CALL_DURATION: &str = "duroxide_postgres_call_duration_seconds";
const RETRIES: &str = "duroxide_postgres_retries_total";
const POOL_WAIT: &str = "duroxide_postgres_pool_wait_seconds";
const POOL_TIMEOUTS: &str = "duroxide_postgres_pool_timeouts_total";
const CONNECTIONS: &str = "duroxide_postgres_connections_total";
const LISTENER: &str = "duroxide_postgres_listener_events_total";
const BATCH_ITEMS: &str = "duroxide_postgres_batch_items";
const LOOKS: &str = "duroxide_postgres_looks_total";
const LOOK_CALLERS: &str = "duroxide_postgres_look_callers";
const CACHE_LOOKUPS: &str = "duroxide_postgres_history_cache_lookups_total";
const CACHE_EVICTIONS: &str = "duroxide_postgres_history_cache_evictions_total";
const CACHE_BYTES: &str = "duroxide_postgres_history_cache_bytes";

/// Tells the recorder, which should be there by now, what each is about.
pub(crate) fn describe() {
    let counters = [
        (OPERATIONS, "Provider methods called"),
        (ERRORS, "Provider methods that failed, by class of error"),
        (CALLS, "Calls of functions in the database"),
        (RETRIES, "Calls made again inside the provider"),
        (POOL_TIMEOUTS, "Waits for a connection that were given up"),
        (CONNECTIONS, "Connections opened, and failures to open one"),
        (
            LISTENER,
            "What happened to the connection that listens for notifications",
        ),
        (LOOKS, "Looks at a queue for fetches that wait, by what caused them"),
        (CACHE_LOOKUPS, "Histories loaded, by how much of them was in memory"),
        (CACHE_EVICTIONS, "Histories forgotten to make room for others"),
    ];
    for (name, meaning) in counters {
        describe_counter!(name, Unit::Count, meaning);
    }
    let durations = [
        (OPERATION_DURATION, "How long provider methods took, waiting included"),
        (CALL_DURATION, "How long calls took, with all their attempts"),
        (POOL_WAIT, "How long calls waited for a connection"),
    ];
    for (name, meaning) in durations {
        describe_histogram!(name, Unit::Seconds, meaning);
    }
    describe_histogram!(BATCH_ITEMS, Unit::Count, "Requests that shared a call");
    describe_histogram!(LOOK_CALLERS, Unit::Count, "Fetches that shared a look");
    describe_gauge!(CACHE_BYTES, Unit::Bytes, "Memory that cached histories take, roughly");
}

pub(super) fn operation(operation: &'static str, outcome: &'static str, elapsed: Duration) {
    counter!(OPERATIONS, "operation" => operation, "outcome" => outcome).increment(1);
    histogram!(OPERATION_DURATION, "operation" => operation).record(elapsed);
}

pub(super) fn error(operation: &'static str, class: ErrorClass) {
    counter!(ERRORS, "operation" => operation, "class" => class.as_str()).increment(1);
}

pub(super) fn call(function: &'static str, outcome: &'static str, elapsed: Duration) {
    counter!(CALLS, "function" => function, "outcome" => outcome).increment(1);
    histogram!(CALL_DURATION, "function" => function).record(elapsed);
}

/// `reason`: the class of the error, or what else made another attempt worth it.
pub(crate) fn retry(function: &'static str, reason: &'static str) {
    counter!(RETRIES, "function" => function, "reason" => reason).increment(1);
}

fn name(connections: Connections) -> &'static str {
    match connections {
        Connections::Ordinary => "ordinary",
        Connections::Reserved => "reserved",
    }
}

pub(super) fn pool_wait(connections: Connections, waited: Duration) {
    histogram!(POOL_WAIT, "connections" => name(connections)).record(waited);
}

pub(crate) fn pool_timeout(connections: Connections) {
    counter!(POOL_TIMEOUTS, "connections" => name(connections)).increment(1);
}

pub(crate) fn connection(opened: bool) {
    counter!(CONNECTIONS, "outcome" => if opened { "ok" } else { "error" }).increment(1);
}

pub(crate) fn listener(event: &'static str) {
    counter!(LISTENER, "event" => event).increment(1);
}

pub(super) fn batch(operation: &'static str, items: usize) {
    histogram!(BATCH_ITEMS, "operation" => operation).record(items as f64);
}

pub(super) fn look(queue: Queue, reason: Reason, outcome: &'static str) {
    counter!(LOOKS, "queue" => queue.as_str(), "reason" => reason.as_str(), "outcome" => outcome).increment(1);
}

pub(super) fn look_callers(queue: Queue, callers: usize) {
    histogram!(LOOK_CALLERS, "queue" => queue.as_str()).record(callers as f64);
}

pub(crate) fn cache_lookup(result: &'static str) {
    counter!(CACHE_LOOKUPS, "result" => result).increment(1);
}

pub(crate) fn cache_eviction() {
    counter!(CACHE_EVICTIONS).increment(1);
}

/// By how much more or less: a process may have several caches.
pub(crate) fn cache_bytes(from: usize, to: usize) {
    gauge!(CACHE_BYTES).increment(to as f64 - from as f64);
}
