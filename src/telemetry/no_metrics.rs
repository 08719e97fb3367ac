//! In the place of `metrics.rs` where the cargo feature `metrics` is off: nothing.

use std::time::Duration;

use super::Connections;
use crate::error::ErrorClass;
use crate::reason::Reason;
use crate::wake::Queue;

pub(crate) fn describe() {}
pub(super) fn operation(_: &'static str, _: &'static str, _: Duration) {}
pub(super) fn error(_: &'static str, _: ErrorClass) {}
pub(super) fn call(_: &'static str, _: &'static str, _: Duration) {}
pub(crate) fn retry(_: &'static str, _: &'static str) {}
pub(super) fn pool_wait(_: Connections, _: Duration) {}
pub(crate) fn pool_timeout(_: Connections) {}
pub(crate) fn connection(_: bool) {}
pub(crate) fn listener(_: &'static str) {}
pub(super) fn batch(_: &'static str, _: usize) {}
pub(super) fn look(_: Queue, _: Reason, _: &'static str) {}
pub(super) fn look_callers(_: Queue, _: usize) {}
pub(crate) fn cache_lookup(_: &'static str) {}
pub(crate) fn cache_eviction() {}
pub(crate) fn cache_bytes(_: usize, _: usize) {}
