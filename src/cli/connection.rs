//! The server and the schema a command is about.

use bytes::BytesMut;
use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use super::arguments::Arguments;
use super::output::Failure;
use crate::PostgresProvider;
use crate::call::{Caller, Parameters};
use crate::connect::{Pool, Pooled};
use crate::deploy::{self, Deployment, Standing};
use crate::inner::Inner;
use crate::schema_name::SchemaName;
use crate::shell;
use crate::wake::Waker;

/// One command needs one connection, and some of its calls another.
const POOL_SIZE: usize = 2;

pub(super) struct Connection {
    pool: Pool,
    pub(super) schema: SchemaName,
    caller: Caller,
}

/// A schema without a deployment.
pub(super) enum Place {
    Missing,
    Empty,
    /// Nothing in it is ours.
    Theirs,
    /// Ours, but these of the tables that say so are lost; or their rows are.
    Damaged(Vec<String>),
}

impl Connection {
    /// Does not connect yet.
    pub(super) fn open(arguments: &Arguments) -> Result<Self, Failure> {
        let schema = SchemaName::new(&arguments.schema)?;
        let url = arguments.database_url.as_deref().unwrap_or_default();
        if url.is_empty() && std::env::var_os("PGHOST").is_none() {
            return Err(Failure::usage(
                "no server named: set DATABASE_URL or PGHOST, or use --database-url",
            ));
        }
        let pool = PostgresProvider::builder(url).pool_size(POOL_SIZE).open_pool()?;
        Ok(Self {
            caller: Caller::new(pool.clone(), true, &schema.quoted()),
            pool,
            schema,
        })
    }

    pub(super) async fn client(&self) -> Result<Pooled, Failure> {
        let client = self.pool.get(self.pool.wait()).await;
        Ok(client.map_err(deploy::call_failed)?)
    }

    /// A connection that nobody else uses, not even afterwards.
    pub(super) async fn session(&self) -> Result<ClientWrapper, Failure> {
        self.client().await.map(Pooled::take)
    }

    /// What is deployed; none if nothing is.
    pub(super) async fn find_deployment(&self) -> Result<Option<Deployment>, Failure> {
        Ok(deploy::read(&self.caller, &self.schema).await?)
    }

    /// What is deployed. Fails if nothing is.
    pub(super) async fn deployment(&self) -> Result<Deployment, Failure> {
        match self.find_deployment().await? {
            Some(deployment) => Ok(deployment),
            None => Err(self.not_deployed().await?),
        }
    }

    /// Why there is no deployment.
    pub(super) async fn not_deployed(&self) -> Result<Failure, Failure> {
        let (name, command) = (self.schema.as_str(), self.command());
        Ok(Failure::new(match self.place().await? {
            Place::Missing => format!(
                "there is no schema {name:?} in this database. Name another one with --schema, or deploy with: \
                 {command} schema apply"
            ),
            Place::Empty => format!(
                "schema {name:?} is empty. Name another one with --schema, or deploy with: {command} schema apply"
            ),
            Place::Theirs => format!(
                "schema {name:?} is not ours: duroxide-postgres is not deployed in it. Name another one with --schema"
            ),
            Place::Damaged(lost) if lost.is_empty() => format!(
                "schema {name:?} is not completely deployed: nothing says by which release. Deploy that one, or a later \
                 one, again: {command} schema apply"
            ),
            Place::Damaged(lost) => format!(
                "{}. What to do says: {command} doctor",
                deploy::incomplete(&self.schema, &lost)
            ),
        }))
    }

    /// What is there instead of a deployment.
    pub(super) async fn place(&self) -> Result<Place, Failure> {
        let client = self.client().await?;
        if let Some(lost) = deploy::lost(&**client, &self.schema).await? {
            return Ok(Place::Damaged(lost));
        }
        let sql = "select exists (select from pg_depend as d where d.refclassid = 'pg_namespace'::regclass \
                                     and d.refobjid = n.oid and d.deptype = 'n') as is_used \
                     from pg_namespace as n where n.nspname = $1";
        let rows = query_unnamed(&**client, sql, &[&self.schema.as_str()])
            .await
            .map_err(deploy::database)?;
        match rows.first() {
            None => Ok(Place::Missing),
            Some(row) if column(row, "is_used")? => Ok(Place::Theirs),
            Some(_) => Ok(Place::Empty),
        }
    }

    /// How commands about this schema begin, for a shell.
    pub(super) fn command(&self) -> String {
        shell::command(&self.schema)
    }

    /// A statement of our own, about the catalogs or the views.
    pub(super) async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let client = self.client().await?;
        Ok(query_unnamed(&**client, sql, parameters)
            .await
            .map_err(deploy::database)?)
    }

    /// Fails unless a deployment is there that this release can work with.
    pub(super) async fn require_deployment(&self) -> Result<(), Failure> {
        let found = self.deployment().await?;
        if deploy::standing(&found, &self.schema)? == Standing::Outdated {
            return Err(Failure::new(format!(
                "schema {:?} was deployed by release {}, or another build of it; this is {}. \
                 Upgrade it with: {} schema apply",
                self.schema.as_str(),
                found.release,
                deploy::RELEASE,
                self.command()
            )));
        }
        Ok(())
    }

    /// A provider that neither polls nor listens, on a deployment that it can work with.
    pub(super) async fn provider(&self) -> Result<PostgresProvider, Failure> {
        self.require_deployment().await?;
        let waker = Waker::new(self.schema.channel(), None);
        Ok(PostgresProvider {
            inner: Inner::new(self.caller.clone(), waker, self.schema.clone(), false, 0),
        })
    }
}

/// A statement without a name: those of a session are not for a pooler, and nothing here is run twice.
pub(super) async fn query_unnamed(
    client: &impl GenericClient,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let typed: Vec<_> = parameters
        .iter()
        .map(|&parameter| (parameter, type_of(parameter)))
        .collect();
    client.query_typed(sql, &typed).await
}

/// The type that a value is sent as. The server is not asked what it expects.
fn type_of(value: &(dyn ToSql + Sync)) -> Type {
    [
        Type::TEXT,
        Type::INT8,
        Type::INT4,
        Type::FLOAT8,
        Type::BOOL,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::TIMESTAMPTZ,
    ]
    .into_iter()
    .find(|candidate| value.to_sql_checked(candidate, &mut BytesMut::new()).is_ok())
    .unwrap_or(Type::UNKNOWN)
}

/// Reads a column, whose type the statement fixes.
pub(super) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Failure> {
    row.try_get(name).map_err(|error| {
        Failure::new(format!(
            "column {name} cannot be read: {}",
            crate::error::describe(&error)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_sent_as_what_they_are() {
        assert_eq!(type_of(&"a"), Type::TEXT);
        assert_eq!(type_of(&None::<String>), Type::TEXT);
        assert_eq!(type_of(&1_i64), Type::INT8);
        assert_eq!(type_of(&None::<i32>), Type::INT4);
        assert_eq!(type_of(&1.5), Type::FLOAT8);
        assert_eq!(type_of(&true), Type::BOOL);
        assert_eq!(type_of(&vec!["a"]), Type::TEXT_ARRAY);
        assert_eq!(type_of(&None::<std::time::SystemTime>), Type::TIMESTAMPTZ);
    }
}
