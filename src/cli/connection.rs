//! The server and the schema a command is about.

use bytes::BytesMut;
use deadpool_postgres::ClientWrapper;
use tokio::sync::OnceCell;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use super::arguments::Arguments;
use super::output::Failure;
use super::table_lock::TableLock;
use crate::PostgresProvider;
use crate::call::{Caller, Parameters};
use crate::connect::{Pool, Pooled};
use crate::deploy::{self, Deployment, GrantProblem, Standing, Stranger};
use crate::inner::Inner;
use crate::limited;
use crate::schema_name::SchemaName;
use crate::shell;
use crate::wake::Waker;

/// One command needs one connection, and some of its calls another.
const POOL_SIZE: usize = 2;

pub(super) struct Connection {
    pool: Pool,
    pub(super) schema: SchemaName,
    caller: Caller,
    /// Whether transactions are known between here and the server; once that is known.
    transactions: OnceCell<bool>,
    /// Dropped, it would close the connections, which may still be needed to find out why a call failed.
    provider: OnceCell<PostgresProvider>,
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
        let named = |variable| crate::connect::process_environment(variable).is_some();
        if url.is_empty() && !named("PGHOST") && !named("PGHOSTADDR") {
            return Err(Failure::usage(
                "no server named: set DATABASE_URL, PGHOST or PGHOSTADDR, or use --database-url",
            ));
        }
        let pool = PostgresProvider::builder(url).pool_size(POOL_SIZE).open_pool()?;
        Ok(Self {
            caller: Caller::new(pool.clone(), true, &schema.quoted()),
            pool,
            schema,
            transactions: OnceCell::new(),
            provider: OnceCell::new(),
        })
    }

    pub(super) async fn client(&self) -> Result<Pooled, Failure> {
        let client = self.pool.get(self.pool.wait()).await;
        Ok(client.map_err(deploy::call_failed)?)
    }

    /// A pooler in statement mode knows none, so that nothing can be limited there.
    async fn knows_transactions(&self) -> Result<bool, Failure> {
        let known = self.transactions.get_or_try_init(|| async {
            let client = self.client().await?;
            let begun = client.batch_execute("begin").await;
            match begun {
                Ok(()) => client.batch_execute("rollback").await.map_err(deploy::database)?,
                Err(error) if deploy::is_statement_mode(&error) => {
                    // It ends the connection, sooner or later: nobody else shall get it.
                    drop(client.take());
                    return Ok(false);
                }
                Err(error) => return Err(Failure::from(deploy::database(error))),
            }
            Ok(true)
        });
        known.await.copied()
    }

    /// Whether there has been a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.transactions.initialized()
    }

    /// Somebody's lock on a whole table of ours, as far as can be told.
    pub(super) async fn table_lock(&self) -> Option<TableLock> {
        if !self.knows_transactions().await.ok()? {
            return None;
        }
        let client = self.client().await.ok()?;
        TableLock::find(&client, &self.schema.quoted()).await.ok()?
    }

    /// The same failure, with who is in the way.
    pub(super) async fn blame(&self, failure: Failure) -> Failure {
        if !failure.is_locked() {
            return failure;
        }
        match self.table_lock().await {
            Some(TableLock { who, end }) => failure.followed_by(&format!(
                ". In the way: {who}. Try again later, or end what is in the way: {end}"
            )),
            None => failure.followed_by(
                ". Somebody had a lock, and it is not to be seen any more who: try again. doctor shows transactions that \
                 stay open",
            ),
        }
    }

    /// A connection that nobody else uses, not even afterwards.
    pub(super) async fn session(&self) -> Result<ClientWrapper, Failure> {
        self.client().await.map(Pooled::take)
    }

    /// Calls wait for locks only briefly.
    async fn caller(&self) -> Result<Caller, Failure> {
        let limited = self.knows_transactions().await?;
        Ok(self.caller.clone().limited(limited))
    }

    /// What is deployed; none if nothing is.
    pub(super) async fn find_deployment(&self) -> Result<Option<Deployment>, Failure> {
        let caller = self.caller().await?;
        if let Some(stranger) = self.stranger().await? {
            return Err(Failure::new(stranger.problem));
        }
        Ok(deploy::read(&caller, &self.schema).await?)
    }

    /// What would be asked or read, and may be somebody else's.
    pub(super) async fn stranger(&self) -> Result<Option<Stranger>, Failure> {
        Ok(deploy::planted_view(&**self.client().await?, &self.schema).await?)
    }

    /// Who has too many privileges, or too few.
    pub(super) async fn grant_problems(&self) -> Result<Vec<GrantProblem>, Failure> {
        let transactions = self.knows_transactions().await?;
        let mut client = self.client().await?;
        if !transactions {
            return Ok(deploy::grant_problems(&**client, &self.schema).await?);
        }
        let transaction = client.transaction().await.map_err(deploy::no_transaction)?;
        transaction
            .batch_execute(limited::LIMIT)
            .await
            .map_err(deploy::database)?;
        Ok(deploy::grant_problems(&*transaction, &self.schema).await?)
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
        let rows = self.query(deploy::LOST, &[&self.schema.as_str()]).await?;
        if let Some(row) = rows.first() {
            return Ok(Place::Damaged(column(row, "lost")?));
        }
        let sql = "select exists (select from pg_depend as d where d.refclassid = 'pg_namespace'::regclass \
                                     and d.refobjid = n.oid and d.deptype = 'n') as is_used \
                     from pg_namespace as n where n.nspname = $1";
        let rows = self.query(sql, &[&self.schema.as_str()]).await?;
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

    /// A statement of our own, about the catalogs or the views. Waits for locks only briefly.
    pub(super) async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        self.query_within(limited::LIMIT, sql, parameters).await
    }

    /// The same, with other settings for its transaction.
    pub(super) async fn query_within(
        &self,
        settings: &str,
        sql: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let limited = self.knows_transactions().await?;
        let client = self.client().await?;
        let found = if limited {
            limited::query_within(&client, settings, sql, &typed(parameters)).await
        } else {
            query_unnamed(&**client, sql, parameters).await
        };
        Ok(found.map_err(deploy::database)?)
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
        let provider = self.provider.get_or_try_init(|| async {
            self.require_deployment().await?;
            let waker = Waker::new(self.schema.channel(), None);
            Ok::<_, Failure>(PostgresProvider {
                inner: Inner::new(self.caller().await?, waker, self.schema.clone(), false, 0),
            })
        });
        provider.await.cloned()
    }
}

/// A statement without a name: those of a session are not for a pooler, and nothing here is run twice.
pub(super) async fn query_unnamed(
    client: &impl GenericClient,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    client.query_typed(sql, &typed(parameters)).await
}

fn typed<'a>(parameters: Parameters<'a>) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let typed = parameters.iter().map(|&parameter| (parameter, type_of(parameter)));
    typed.collect()
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
