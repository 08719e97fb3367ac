//! The command `duroxide-postgres`, run as a process of its own against a real PostgreSQL: `DATABASE_URL` says which.

mod act;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/cluster.rs"]
mod cluster;
mod cut;
mod database;
mod details;
mod doctor;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/fixtures.rs"]
mod fixtures;
mod foreign;
mod grants;
mod locks;
mod observe;
mod owner;
mod passwords;
mod pooler;
mod privileges;
mod process;
mod prune;
mod queued;
mod refusals;
mod removal;
mod restored;
mod schema;
mod schema_advice;
mod script;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/secure.rs"]
mod secure;
mod standby;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/support.rs"]
mod support;
mod terminal;
mod usage;
mod views;
mod waiting;
