//! Everything against a real PostgreSQL: `DATABASE_URL` says which, `scripts/with-postgres` provides one.
//! Each test has a schema of its own, so all of them run in parallel.

mod bad_input;
mod batching;
mod cache;
mod cluster;
mod connecting;
mod deletion;
mod deployment;
mod failover;
mod fixtures;
mod identity;
mod interleavings;
mod limits;
mod modes;
mod outages;
mod plans;
mod pooler;
mod privileges;
mod proxy;
mod races;
mod random_mix;
mod round_trips;
mod secure;
mod sessions;
mod support;
mod telemetry;
mod test_support;
mod tls;
mod validations;
mod versions;
mod views;
mod wake_ups;
