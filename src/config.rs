//! Settings of a provider.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, Socket};

use crate::call::Caller;
use crate::connect::{
    AskPassword, Connector, Dial, PasswordRequest, Pool, Settings, WithConnector, process_environment,
};
use crate::deploy::{self, Place};
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::provider::PostgresProvider;
use crate::schema_name::SchemaName;
use crate::wake::Waker;

const DEFAULT_SCHEMA: &str = "duroxide";
const DEFAULT_POOL_SIZE: usize = 16;
const DEFAULT_POOL_WAIT: Duration = Duration::from_secs(30);
const DEFAULT_HISTORY_CACHE: usize = 64 << 20;

/// What [`connect`](Builder::connect) does about the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DeployPolicy {
    /// Deploys it when it is missing, and upgrades it when it is older. Never touches a newer one.
    #[default]
    Apply,
    /// Runs no DDL: fails, naming what is missing, extra, changed or newer, unless it is exactly what this release
    /// deploys, or was deployed by a later release that still serves this one.
    Verify,
}

/// Settings of a [`PostgresProvider`].
///
/// ```no_run
/// use duroxide_postgres::{DeployPolicy, PostgresProvider};
///
/// # async fn example() -> Result<(), duroxide_postgres::Error> {
/// let provider = PostgresProvider::builder("postgres://app@db.example/app")
///     .schema("orders")
///     .pool_size(32)
///     .deploy(DeployPolicy::Verify)
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "settings do nothing until `connect` is called"]
pub struct Builder {
    source: Source,
    direct_url: Option<String>,
    transaction_pooler: bool,
    tls: Option<Arc<dyn Dial>>,
    password: Option<AskPassword>,
    schema: String,
    pool_size: usize,
    pool_wait: Duration,
    deploy: DeployPolicy,
    long_poll: bool,
    history_cache: usize,
}

enum Source {
    /// Kept unparsed, so that the error comes from `connect`.
    Url(String),
    Config(Box<Config>),
    Pool(deadpool_postgres::Pool),
}

impl Builder {
    /// Connections without a provider.
    #[cfg(any(feature = "cli", feature = "test-support"))]
    pub(crate) fn open_pool(self) -> Result<Pool, Error> {
        self.open().map(|(pool, _)| pool)
    }

    /// The pool, and what fills it unless it is the application's.
    fn open(&self) -> Result<(Pool, Option<Arc<Connector>>), Error> {
        let settings = match &self.source {
            Source::Pool(pool) => return Ok((Pool::Given(pool.clone()), None)),
            Source::Url(url) => Settings::parse(url, &process_environment)?,
            Source::Config(config) => Settings::from_config(config)?,
        };
        let connector = self.connector(settings)?;
        let pool = Pool::new(Arc::clone(&connector), self.pool_size, self.pool_wait)?;
        Ok((pool, Some(connector)))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            direct_url: None,
            transaction_pooler: false,
            tls: None,
            password: None,
            schema: DEFAULT_SCHEMA.to_string(),
            pool_size: DEFAULT_POOL_SIZE,
            pool_wait: DEFAULT_POOL_WAIT,
            deploy: DeployPolicy::default(),
            long_poll: true,
            history_cache: DEFAULT_HISTORY_CACHE,
        }
    }

    pub(crate) fn from_url(url: &str) -> Self {
        Self::new(Source::Url(url.to_string()))
    }

    /// Takes everything from the environment: `PGHOST`, `PGUSER`, `PGPASSWORD` and the others that libpq knows.
    pub fn from_env() -> Self {
        Self::from_url("")
    }

    /// Starts from a tokio-postgres configuration instead of a connection string.
    ///
    /// The environment is not asked. TLS is as its `ssl_mode` says, with no certificate verified; for more, use a
    /// connection string or [`tls`](Self::tls).
    pub fn from_config(config: Config) -> Self {
        Self::new(Source::Config(Box::new(config)))
    }

    /// Uses a pool that exists already.
    ///
    /// Its own settings apply; [`pool_size`](Self::pool_size), [`pool_wait`](Self::pool_wait) and, but for
    /// [`direct_url`](Self::direct_url), [`tls`](Self::tls) and [`password`](Self::password) do not. Without a direct
    /// URL there is no connection for LISTEN: waiting fetches poll every half second at least, and other processes
    /// learn of new work when they poll. If it is shared, nobody may leave session state on its connections. It stays
    /// open when the provider is closed.
    pub fn from_pool(pool: deadpool_postgres::Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    /// Whether connections lead through a pooler in transaction mode, as PgBouncer's `pool_mode = transaction`.
    /// Default: false.
    ///
    /// If so, nothing is used that needs a session: no named prepared statement and no LISTEN. A
    /// [`direct_url`](Self::direct_url) makes up for the latter.
    pub fn transaction_pooler(mut self, transaction_pooler: bool) -> Self {
        self.transaction_pooler = transaction_pooler;
        self
    }

    /// A connection string that leads to the server itself where the other one leads to a pooler. Default: none.
    ///
    /// One connection for LISTEN uses it, and deployment. Without it, and with a
    /// [`transaction_pooler`](Self::transaction_pooler), fetches that wait poll every half second, and a schema
    /// that has to be deployed is an error.
    pub fn direct_url(mut self, url: &str) -> Self {
        self.direct_url = Some(url.to_string());
        self
    }

    /// Where passwords come from that do not last: tokens of a cloud's identity service, leases of a vault.
    ///
    /// Asked for every new connection, so it should keep what is still good. A password that is refused is asked for
    /// again a few times, with [`refused`](PasswordRequest::refused) set, before that becomes an error. Connections
    /// that exist go on when their password expires. It takes the place of any other password.
    ///
    /// ```no_run
    /// use duroxide_postgres::PostgresProvider;
    ///
    /// # async fn example() -> Result<(), duroxide_postgres::Error> {
    /// let provider = PostgresProvider::builder("postgres://app@db.example/app?sslmode=verify-full&sslrootcert=system")
    ///     .password(|_| async {
    ///         let token = tokio::fs::read_to_string("/run/secrets/database-token").await?;
    ///         // Files end with a newline.
    ///         Ok::<_, std::io::Error>(token.trim_end().to_string())
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn password<F, Answer, E>(mut self, callback: F) -> Self
    where
        F: Fn(PasswordRequest) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.password = Some(AskPassword::new(callback));
        self
    }

    /// The schema to work in. Default: `duroxide`.
    ///
    /// Letters, digits, `_`, `-` and `$`, at most 63 bytes, not beginning with a digit or `pg_`.
    pub fn schema(mut self, schema: &str) -> Self {
        self.schema = schema.to_string();
        self
    }

    /// The most connections this provider opens, beside one for LISTEN. Default: 16.
    ///
    /// A quarter of them, at least one, is kept free for acks and renewals.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long a call waits for a connection while others use all of them. Default: 30 seconds.
    ///
    /// Then it fails with a retryable error. Acks and renewals have their own connections and are exempt.
    pub fn pool_wait(mut self, limit: Duration) -> Self {
        self.pool_wait = limit;
        self
    }

    /// What to do about the schema. Default: [`DeployPolicy::Apply`].
    pub fn deploy(mut self, policy: DeployPolicy) -> Self {
        self.deploy = policy;
        self
    }

    /// Whether fetches wait for work, as long as their `poll_timeout` says. Default: true.
    pub fn long_poll(mut self, long_poll: bool) -> Self {
        self.long_poll = long_poll;
        self
    }

    /// How much memory this process spends on histories it knows already, in bytes. Default: 64 MiB.
    ///
    /// Of an orchestration whose history is in memory a turn loads, and parses, only what is new. 0 keeps nothing.
    pub fn history_cache(mut self, bytes: usize) -> Self {
        self.history_cache = bytes;
        self
    }

    /// How to encrypt connections, instead of what the connection string says: any TLS connector for tokio-postgres.
    ///
    /// The connector decides what is verified; of `sslmode` only `disable`, `prefer` and `require` count then.
    pub fn tls<T>(mut self, connector: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.tls = Some(Arc::new(WithConnector(connector)));
        self
    }

    /// Connects, and brings the schema to what the [`DeployPolicy`] asks for.
    ///
    /// # Errors
    ///
    /// See [`PostgresProvider::connect`].
    pub async fn connect(self) -> Result<PostgresProvider, Error> {
        let schema = SchemaName::new(&self.schema)?;
        if self.pool_size == 0 {
            return Err(Error::new(ErrorKind::Config, "the pool size must be at least 1"));
        }
        let (pool, connector) = self.open()?;
        let direct = match &self.direct_url {
            Some(url) => Some(self.connector(Settings::parse(url, &process_environment)?)?),
            None => None,
        };
        let caller = Caller::new(pool.clone(), self.transaction_pooler, &schema.quoted());
        let place = Place {
            pool: &pool,
            caller: &caller,
            direct: direct.as_deref(),
            transaction_pooler: self.transaction_pooler,
        };
        deploy::deploy(&place, &schema, self.deploy).await?;
        // LISTEN needs a session.
        let listener = direct.or(connector.filter(|_| !self.transaction_pooler));
        let waker = Waker::new(schema.channel(), listener);
        Ok(PostgresProvider {
            inner: Inner::new(caller, waker, schema, self.long_poll, self.history_cache),
        })
    }

    fn connector(&self, settings: Settings) -> Result<Arc<Connector>, Error> {
        Connector::new(settings, self.tls.clone(), self.password.clone()).map(Arc::new)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("pool_wait", &self.pool_wait)
            .field("transaction_pooler", &self.transaction_pooler)
            .field("deploy", &self.deploy)
            .field("long_poll", &self.long_poll)
            .field("history_cache", &self.history_cache)
            .finish_non_exhaustive()
    }
}
