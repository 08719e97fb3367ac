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
                    where name in ('default_transaction_isolation', 'default_transaction_read_only', 'synchronous_commit')";
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

    /// What changes a setting there where nothing overrides it.
    pub(super) fn cure(&self, setting: &str, value: &str) -> Cure {
        let Self { database, role, .. } = self;
        let source = self.sources.iter().find(|(name, _)| name == setting);
        match source.map_or("", |(_, source)| source) {
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
