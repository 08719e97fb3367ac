//! The command `duroxide-postgres`, run as a process of its own against a real PostgreSQL: `DATABASE_URL` says which.

mod act;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/cluster.rs"]
mod cluster;
mod doctor;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/fixtures.rs"]
mod fixtures;
mod grants;
mod observe;
mod process;
mod prune;
mod schema;
mod script;
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
#[path = "../it/support.rs"]
mod support;
mod usage;
