//! The server that is measured: its counters, its settings, and keeping house between measurements.
//!
//! Every statement here names `compare_probe`, so that it can be left out of what pg_stat_statements has counted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client, NoTls};

use crate::process::ServerProcesses;

/// Settings that decide about durability and speed, as the report lists them.
const SETTINGS: [&str; 13] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "wal_level",
    "wal_buffers",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "max_connections",
    "autovacuum",
    "jit",
    "shared_preload_libraries",
];

/// What the program calls itself at the server.
pub const APPLICATION_NAME: &str = "compare";

/// Connects with the harness's own driver, independent of every candidate.
pub async fn connect(url: &str) -> Result<Client> {
    let mut config: tokio_postgres::Config = url.parse().context("DATABASE_URL is not a connection string")?;
    config.application_name(APPLICATION_NAME);
    let (client, connection) = config.connect(NoTls).await.context("cannot connect to DATABASE_URL")?;
    tokio::spawn(connection);
    Ok(client)
}

/// The harness's own connection.
pub struct Server {
    client: Client,
    processes: Option<ServerProcesses>,
    counts_statements: bool,
}

/// Counters of this database at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    pub transactions: i64,
    pub commits: i64,
    pub rows_read: i64,
    /// Position in the WAL, in bytes.
    pub wal: i64,
    /// Top-level statements, if pg_stat_statements can be used.
    pub statements: Option<i64>,
    /// Those among them that begin an explicit transaction.
    pub begins: Option<i64>,
}

impl Server {
    pub async fn connect(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        let backend: i32 = client.query_one("select pg_backend_pid()", &[]).await?.get(0);
        // Fails where the library is not loaded, or we may not create extensions: statements are not counted then.
        let counts_statements = client
            .batch_execute(
                "create extension if not exists pg_stat_statements; select 1 from pg_stat_statements limit 1",
            )
            .await
            .is_ok();
        Ok(Self {
            client,
            processes: u32::try_from(backend).ok().and_then(ServerProcesses::of_backend),
            counts_statements,
        })
    }

    /// The server's processes, if they run on this machine.
    pub fn processes(&self) -> Option<ServerProcesses> {
        self.processes
    }

    pub fn counts_statements(&self) -> bool {
        self.counts_statements
    }

    /// Refuses a server that could only yield figures nobody may compare.
    pub async fn require_durable(&self) -> Result<()> {
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value = self.setting(setting).await?;
            if value == "off" {
                bail!(
                    "the server runs with {setting} = off, which would measure something else: start one with \
                     `PG_DURABLE=1 scripts/with-postgres …`, or pass --allow-unsafe"
                );
            }
        }
        Ok(())
    }

    async fn setting(&self, name: &str) -> Result<String> {
        let row = self.client.query_one("select current_setting($1)", &[&name]).await?;
        Ok(row.get(0))
    }

    pub async fn settings(&self) -> Result<Vec<(String, String)>> {
        let mut settings = Vec::new();
        for name in SETTINGS {
            settings.push((name.to_string(), self.setting(name).await?));
        }
        Ok(settings)
    }

    pub async fn version(&self) -> Result<String> {
        let row = self.client.query_one("select version()", &[]).await?;
        Ok(row.get(0))
    }

    /// Now, in UTC.
    pub async fn date(&self) -> Result<String> {
        let sql = "select to_char(now() at time zone 'UTC', 'YYYY-MM-DD HH24:MI \"UTC\"')";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }

    /// Writes out what earlier measurements left dirty, so that none pays for another. Needs the role
    /// `pg_checkpoint`; without it measurements are a little less fair, not wrong.
    pub async fn checkpoint(&self) {
        let _ = self.client.batch_execute("checkpoint").await;
    }

    pub async fn counters(&self) -> Result<Counters> {
        let row = self
            .client
            .query_one(
                "select xact_commit + xact_rollback, xact_commit, tup_returned + tup_fetched,
                        (pg_current_wal_insert_lsn() - '0/0')::bigint as compare_probe
                 from pg_stat_database where datname = current_database()",
                &[],
            )
            .await?;
        let mut counters = Counters {
            transactions: row.get(0),
            commits: row.get(1),
            rows_read: row.get(2),
            wal: row.get(3),
            statements: None,
            begins: None,
        };
        if self.counts_statements {
            let row = self
                .client
                .query_one(
                    "select coalesce(sum(calls), 0)::bigint,
                            coalesce(sum(calls) filter (where query ~* '^\\s*(begin|start transaction)'), 0)::bigint
                                as compare_probe
                     from pg_stat_statements
                     where dbid = (select oid from pg_database where datname = current_database())
                       and query not like '%compare_probe%'",
                    &[],
                )
                .await?;
            counters.statements = row.get(0);
            counters.begins = row.get(1);
        }
        Ok(counters)
    }

    /// Connections to this database that are not the program's own.
    pub async fn backends(&self) -> Result<i64> {
        let row = self
            .client
            .query_one(
                "select count(*) as compare_probe from pg_stat_activity
                 where datname = current_database() and backend_type = 'client backend' and application_name <> $1",
                &[&APPLICATION_NAME],
            )
            .await?;
        Ok(row.get(0))
    }

    /// Waits until no more than `count` of those are left: a backend that ends has reported its statistics.
    pub async fn wait_for_backends(&self, count: i64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(5);
        while self.backends().await? > count && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Sizes in bytes of the tables of a schema with their indexes, biggest first.
    pub async fn table_sizes(&self, schema: &str) -> Result<Vec<(String, i64)>> {
        let rows = self
            .client
            .query(
                "select c.relname, pg_total_relation_size(c.oid) as compare_probe
                 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where n.nspname = $1 and c.relkind in ('r', 'p') order by 2 desc",
                &[&schema],
            )
            .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Does not wait forever for a connection that was abandoned inside a transaction.
    pub async fn drop_schema(&self, schema: &str) -> Result<()> {
        self.client
            .batch_execute(&format!(
                "set client_min_messages = warning; set lock_timeout = '10s'; drop schema if exists \"{schema}\" cascade"
            ))
            .await
            .with_context(|| format!("cannot drop schema {schema}"))
    }

    pub async fn execute(&self, sql: &str) -> Result<()> {
        Ok(self.client.batch_execute(sql).await?)
    }

    pub fn client(&self) -> &Client {
        &self.client
    }
}
