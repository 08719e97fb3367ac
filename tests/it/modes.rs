//! How the providers of the validations connect. `TEST_CONNECTION` says which way: `scripts/test-connections` goes
//! all of them.

use std::convert::Infallible;
use std::sync::LazyLock;

use duroxide_postgres::{Builder, PostgresProvider};

use crate::cluster::{Cluster, Options, Pooler};
use crate::secure::{PASSWORD, SERVER, TOKENS};
use crate::support::{TestSchema, database_url};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To the server of `DATABASE_URL`.
    Plain,
    /// Through PgBouncer in transaction mode.
    Pooler,
    /// Encrypted, everything verified.
    Tls,
    /// With passwords that last two seconds.
    Token,
}

pub static MODE: LazyLock<Mode> = LazyLock::new(|| match std::env::var("TEST_CONNECTION").as_deref() {
    Err(_) | Ok("" | "plain") => Mode::Plain,
    Ok("pooler") => Mode::Pooler,
    Ok("tls") => Mode::Tls,
    Ok("token") => Mode::Token,
    Ok(other) => panic!("TEST_CONNECTION={other} is none of plain, pooler, tls and token"),
});

/// For each role. Fewer than the providers have that run at once, so that they get each other's.
const POOLER_CONNECTIONS: usize = 12;

static BEHIND_POOLER: LazyLock<(Cluster, Pooler)> = LazyLock::new(|| {
    let cluster = Cluster::start(&Options::default());
    let pooler = Pooler::start(&cluster, POOLER_CONNECTIONS);
    (cluster, pooler)
});

/// Who owns the schemas while passwords do not last.
const ROTATING_OWNER: &str = "rotating_owner";

static ROTATING: LazyLock<()> = LazyLock::new(|| {
    SERVER
        .cluster
        .execute(&format!("create role {ROTATING_OWNER} superuser login"));
    TOKENS.rotate(ROTATING_OWNER);
});

/// A way around everything, for looking behind the provider's back.
pub fn admin_url() -> String {
    match *MODE {
        Mode::Plain => database_url(),
        Mode::Pooler => BEHIND_POOLER.0.admin_url(),
        Mode::Tls | Mode::Token => SERVER.cluster.admin_url(),
    }
}

/// Settings that connect as the owner of the schema.
pub fn owner(schema: &TestSchema) -> Builder {
    match *MODE {
        Mode::Plain => PostgresProvider::builder(&schema.url),
        Mode::Pooler => PostgresProvider::builder(&BEHIND_POOLER.1.url("postgres"))
            .transaction_pooler(true)
            .direct_url(&schema.url),
        Mode::Tls => PostgresProvider::builder(&SERVER.verified_url("postgres", PASSWORD)),
        Mode::Token => {
            LazyLock::force(&ROTATING);
            with_tokens(ROTATING_OWNER)
        }
    }
}

/// Settings that connect as the role that has the schema's name, and its name as a password.
pub fn execute_only(schema: &TestSchema) -> Builder {
    match *MODE {
        Mode::Plain => Builder::from_config(schema.execute_only_config()),
        // Nowhere else to go: what waits, polls.
        Mode::Pooler => PostgresProvider::builder(&BEHIND_POOLER.1.url(&schema.name)).transaction_pooler(true),
        Mode::Tls => PostgresProvider::builder(&SERVER.verified_url(&schema.name, &schema.name)),
        Mode::Token => {
            TOKENS.rotate(&schema.name);
            with_tokens(&schema.name)
        }
    }
}

fn with_tokens(role: &str) -> Builder {
    PostgresProvider::builder(&SERVER.url(role, "expired", "sslmode=require"))
        .password(|_| async { Ok::<_, Infallible>(TOKENS.current()) })
}
