//! Everything against a real PostgreSQL: `DATABASE_URL` says which, `scripts/with-postgres` provides one.
//! Each test has a schema of its own, so all of them run in parallel.

mod deployment;
mod fixtures;
mod interleavings;
mod support;
mod validations;
