//! Everything against a real PostgreSQL: `DATABASE_URL` says which, `scripts/with-postgres` provides one.
//! Each test has a schema of its own, so all of them run in parallel.

mod bad_input;
mod batching;
mod cache;
mod connecting;
mod deletion;
mod deployment;
mod fixtures;
mod interleavings;
mod limits;
mod outages;
mod plans;
mod privileges;
mod proxy;
mod races;
mod random_mix;
mod round_trips;
mod support;
mod validations;
mod versions;
mod views;
mod wake_ups;
