//! Where a setting has to be changed.

use super::super::connection::{Connection, column};
use super::super::output::Failure;

/// Where the settings of this session come from.
pub(super) struct Origins {
    database: String,
    role: String,
    /// Settings with their source.
    sources: Vec<(String, String)>,
}

pub(super) enum Cure {
    Sql(String),
    /// Nothing for the server.
    Elsewhere(String),
}

impl From<Cure> for String {
    fn from(cure: Cure) -> Self {
        match cure {
            Cure::Sql(text) | Cure::Elsewhere(text) => text,
        }
    }
}

impl Origins {
    pub(super) async fn read(connection: &Connection) -> Result<Self, Failure> {
        let sql = "select name, source, quote_ident(current_database()) as database, quote_ident(session_user) as role \
                     from pg_settings \
                    where name in ('autovacuum', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync', \
                                   'full_page_writes', 'synchronous_commit', 'track_counts')";
        let mut origins = Self {
            database: String::new(),
            role: String::new(),
            sources: Vec::new(),
        };
        for row in &connection.query(sql, &[]).await? {
            origins.database = column(row, "database")?;
            origins.role = column(row, "role")?;
            origins.sources.push((column(row, "name")?, column(row, "source")?));
        }
        Ok(origins)
    }

    fn source(&self, setting: &str) -> &str {
        let source = self.sources.iter().find(|(name, _)| name == setting);
        source.map_or("", |(_, source)| source)
    }

    /// What turns a setting of the whole server on, where ALTER SYSTEM would not: something else counts more.
    pub(super) fn cure_server(&self, setting: &str) -> Option<String> {
        match self.source(setting) {
            "command line" => Some(format!(
                "restart the server without {setting} on its command line, which ALTER SYSTEM cannot change"
            )),
            "global" | "database" | "user" | "database user" | "client" | "environment variable" => {
                Some(self.cure(setting, "on").into())
            }
            _ => None,
        }
    }

    /// What changes a setting there where nothing overrides it.
    pub(super) fn cure(&self, setting: &str, value: &str) -> Cure {
        let Self { database, role, .. } = self;
        match self.source(setting) {
            "user" | "database user" => Cure::Sql(format!(
                "alter role {role} in database {database} set {setting} = {value};"
            )),
            "client" | "environment variable" => Cure::Elsewhere(format!(
                "take {setting} out of the connection string (options) and of PGOPTIONS, for nodes too"
            )),
            _ => Cure::Sql(format!("alter database {database} set {setting} = {value};")),
        }
    }
}
