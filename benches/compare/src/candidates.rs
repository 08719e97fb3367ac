//! The providers under comparison, and a fresh store for each measurement.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use duroxide::providers::Provider;
use duroxide::providers::sqlite::SqliteProvider;
use duroxide_postgres::PostgresProvider;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::server::Server;

/// Connections each PostgreSQL provider may open: our own default. The peers take it from [`PEER_POOL_VARIABLE`]; their
/// default is 10. The SQLite provider has a fixed pool of 5.
pub const POOL_SIZE: usize = 16;
/// Where both peers look for the size of their pool, and the only place they do.
pub const PEER_POOL_VARIABLE: &str = "DUROXIDE_PG_POOL_MAX";
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// This crate
    Postgres,
    /// duroxide-pg 0.1.38
    Pg,
    /// duroxide-pg-opt 0.1.28
    PgOpt,
    /// The framework's SQLite provider, on a file
    Sqlite,
    /// Not a provider: what the server itself can do (workload `floor`)
    #[value(skip)]
    Server,
}

impl Candidate {
    /// In the order of the report's columns.
    pub const ALL: [Self; 5] = [Self::Postgres, Self::Pg, Self::PgOpt, Self::Sqlite, Self::Server];

    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "duroxide-postgres",
            Self::Pg => "duroxide-pg",
            Self::PgOpt => "duroxide-pg-opt",
            Self::Sqlite => "SQLite",
            Self::Server => "server",
        }
    }

    /// One of the two that ratios are taken against.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Pg | Self::PgOpt)
    }

    pub fn is_ours(self) -> bool {
        self == Self::Postgres
    }

    pub fn uses_server(self) -> bool {
        self != Self::Sqlite
    }
}

/// A store of its own for one measurement: a schema, or a file.
pub struct Store {
    candidate: Candidate,
    url: String,
    /// The schema; for SQLite, the file.
    place: String,
    /// Where that file is, until this is dropped.
    _folder: Option<tempfile::TempDir>,
}

impl Store {
    /// Chooses a place where nothing is yet.
    pub fn new(candidate: Candidate, url: &str) -> Result<Self> {
        let mut store = Self::existing(candidate, url, &format!("compare_{}", uuid::Uuid::new_v4().simple()));
        if candidate == Candidate::Sqlite {
            let folder = tempfile::tempdir().context("a folder for SQLite")?;
            store.place = folder.path().join("store.db").display().to_string();
            store._folder = Some(folder);
        }
        Ok(store)
    }

    /// Deploys everything through a provider that is closed again: a backend reports its statistics at the latest when
    /// it ends, so that none of this is counted with what is measured.
    pub async fn deploy(&self) -> Result<()> {
        if self.candidate != Candidate::Server {
            self.open().await?.close().await;
        }
        Ok(())
    }

    /// A store that another process has created, and removes.
    pub fn existing(candidate: Candidate, url: &str, place: &str) -> Self {
        Self {
            candidate,
            url: url.to_string(),
            place: place.to_string(),
            _folder: None,
        }
    }

    pub fn candidate(&self) -> Candidate {
        self.candidate
    }

    /// The schema; for SQLite, the file.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A provider as a node of its own would have it.
    pub async fn open(&self) -> Result<Node> {
        let opened = self.open_provider().await;
        opened.with_context(|| format!("cannot open {}", self.candidate.name()))
    }

    async fn open_provider(&self) -> Result<Node> {
        Ok(match self.candidate {
            Candidate::Postgres => Node::Postgres(Arc::new(
                PostgresProvider::builder(&self.url)
                    .schema(&self.place)
                    .pool_size(POOL_SIZE)
                    .connect()
                    .await?,
            )),
            Candidate::Pg => {
                let provider = duroxide_pg::PostgresProvider::new_with_schema(&self.url, Some(&self.place));
                Node::Pg(Arc::new(provider.await?))
            }
            Candidate::PgOpt => {
                let provider = duroxide_pg_opt::PostgresProvider::new_with_schema(&self.url, Some(&self.place));
                Node::PgOpt(Arc::new(provider.await?))
            }
            Candidate::Sqlite => {
                let file = format!("sqlite:{}?mode=rwc", self.place);
                Node::Sqlite(Arc::new(SqliteProvider::new(&file, None).await?))
            }
            Candidate::Server => anyhow::bail!("the server itself is no provider"),
        })
    }

    /// Removes everything; all its nodes have to be closed.
    pub async fn remove(self, server: &Server) -> Result<()> {
        match self.candidate {
            Candidate::Sqlite => Ok(()),
            _ => server.drop_schema(&self.place).await,
        }
    }
}

/// An open provider, whose kind is known so that it can be closed.
#[derive(Clone)]
pub enum Node {
    Postgres(Arc<PostgresProvider>),
    Pg(Arc<duroxide_pg::PostgresProvider>),
    PgOpt(Arc<duroxide_pg_opt::PostgresProvider>),
    Sqlite(Arc<SqliteProvider>),
}

impl Node {
    pub fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Postgres(provider) => provider.clone(),
            Self::Pg(provider) => provider.clone(),
            Self::PgOpt(provider) => provider.clone(),
            Self::Sqlite(provider) => provider.clone(),
        }
    }

    /// Ends its connections, even if somebody who was aborted still holds the provider.
    pub async fn close(self) {
        match self {
            Self::Postgres(provider) => provider.close(),
            // A pool waits for connections that are in use, perhaps by a call that hangs.
            Self::Pg(provider) => {
                let _ = timeout(CLOSE_TIMEOUT, provider.pool().close()).await;
            }
            Self::PgOpt(provider) => {
                let pool = provider.pool().clone();
                // Its listener ends with the provider, and holds a connection of the pool until then.
                drop(provider);
                let _ = timeout(CLOSE_TIMEOUT, pool.close()).await;
            }
            // Its pool is private: connections end with the provider.
            Self::Sqlite(provider) => drop(provider),
        }
    }
}
