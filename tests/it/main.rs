//! Everything against a real PostgreSQL: `DATABASE_URL` says which, `scripts/with-postgres` provides one.
//! Each test has a schema of its own, so all of them run in parallel.

mod deployment;
mod fixtures;
mod interleavings;
mod privileges;
mod random_mix;
mod round_trips;
mod outages;
mod proxy;
mod support;
mod validations;
