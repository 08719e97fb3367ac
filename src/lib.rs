#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// Spans and metrics.
#[cfg(doc)]
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}

mod activities;
mod activity_ack;
mod activity_fetch;
mod activity_handover;
mod admin;
mod ahead;
mod appetite;
mod batch;
mod bulk_deletion;
mod cache;
mod call;
mod carried;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod config;
mod connect;
mod connection;
mod deploy;
mod encode;
mod ended;
mod error;
mod fetch;
mod follow;
mod granted;
mod habit;
mod handover;
mod head;
mod history;
mod inner;
mod instances;
mod kept;
mod kv;
mod lease;
#[cfg(feature = "cli")]
mod limited;
mod look;
mod messages;
mod next;
mod orchestrations;
mod pace;
mod poll;
mod polled;
mod provider;
mod reason;
mod rests;
mod schema_name;
mod sessions;
#[cfg(feature = "cli")]
mod shell;
mod signatures;
mod swept;
mod telemetry;
#[cfg(feature = "test-support")]
pub mod test_support;
mod token;
mod turn;
mod turn_ack;
mod turn_acks;
mod turn_handover;
mod waiters;
mod wake;
mod words;
mod work_item;

pub use config::{Builder, DeployPolicy};
pub use connect::PasswordRequest;
pub use error::{Error, ErrorKind};
pub use provider::PostgresProvider;
