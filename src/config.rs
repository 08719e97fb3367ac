//! Settings of a provider.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime, Timeouts};
use tokio::sync::mpsc;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Config, NoTls, Socket};
use tracing::debug;

use crate::call::Caller;
use crate::deploy;
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::provider::PostgresProvider;
use crate::schema_name::SchemaName;
use crate::wake::{Connector, Listening, Waker};

const DEFAULT_SCHEMA: &str = "duroxide";
const DEFAULT_POOL_SIZE: usize = 16;
const DEFAULT_HISTORY_CACHE: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const POOL_WAIT_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

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
    tls: Arc<dyn Tls>,
    schema: String,
    pool_size: usize,
    deploy: DeployPolicy,
    long_poll: bool,
    history_cache: usize,
}

enum Source {
    /// Kept unparsed, so that the error comes from `connect`.
    Url(String),
    Config(Box<Config>),
    Pool(Pool),
}

impl Source {
    fn open(self, tls: &dyn Tls, pool_size: usize) -> Result<(Pool, Option<Connector>, String), Error> {
        match self {
            Self::Pool(pool) => Ok((pool, None, "the pool's server".to_string())),
            Self::Url(url) => {
                let config = url.parse::<Config>().map_err(|error| {
                    Error::new(
                        ErrorKind::Config,
                        format!("invalid connection string: {}", crate::error::describe(&error)),
                    )
                })?;
                open(config, tls, pool_size)
            }
            Self::Config(config) => open(*config, tls, pool_size),
        }
    }
}

impl Builder {
    /// Connections without a provider, and the server's name.
    #[cfg(feature = "cli")]
    pub(crate) fn open_pool(self) -> Result<(Pool, String), Error> {
        let (pool, _, server) = self.source.open(&*self.tls, self.pool_size)?;
        Ok((pool, server))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            tls: Arc::new(Connectable(NoTls)),
            schema: DEFAULT_SCHEMA.to_string(),
            pool_size: DEFAULT_POOL_SIZE,
            deploy: DeployPolicy::default(),
            long_poll: true,
            history_cache: DEFAULT_HISTORY_CACHE,
        }
    }

    pub(crate) fn from_url(url: &str) -> Self {
        Self::new(Source::Url(url.to_string()))
    }

    /// Starts from a tokio-postgres configuration instead of a connection string.
    pub fn from_config(config: Config) -> Self {
        Self::new(Source::Config(Box::new(config)))
    }

    /// Uses a pool that exists already.
    ///
    /// Its own settings apply; [`pool_size`](Self::pool_size) and [`tls`](Self::tls) do not. There is no connection
    /// for LISTEN then: waiting fetches poll every half second at least, and other processes learn of new work when
    /// they poll. If it is shared, nobody may leave session state on its connections. It stays open when the provider is
    /// closed.
    pub fn from_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
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

    /// How to encrypt connections: any TLS connector for tokio-postgres. Default: none.
    pub fn tls<T>(mut self, connector: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.tls = Arc::new(Connectable(connector));
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
        let owns_pool = !matches!(self.source, Source::Pool(_));
        let (pool, connector, server) = self.source.open(&*self.tls, self.pool_size)?;
        let caller = Caller::new(pool.clone(), owns_pool, &schema.quoted());
        deploy::deploy(&pool, &caller, &schema, self.deploy)
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::Connect => {
                    let message = format!("cannot connect to {server}: {error}");
                    Error::new(ErrorKind::Connect, message).caused_by(error)
                }
                _ => error,
            })?;
        let waker = Waker::new(schema.channel(), connector);
        Ok(PostgresProvider {
            inner: Inner::new(caller, waker, schema, self.long_poll, self.history_cache),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("schema", &self.schema)
            .field("pool_size", &self.pool_size)
            .field("deploy", &self.deploy)
            .field("long_poll", &self.long_poll)
            .field("history_cache", &self.history_cache)
            .finish_non_exhaustive()
    }
}

/// A pool, a way to LISTEN, and the server's name for error messages.
fn open(mut config: Config, tls: &dyn Tls, pool_size: usize) -> Result<(Pool, Option<Connector>, String), Error> {
    if config.get_application_name().is_none() {
        config.application_name(env!("CARGO_PKG_NAME"));
    }
    // Without these a connection whose peer vanished is noticed only after minutes, or hours.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(KEEPALIVES_IDLE);
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(Error::new(ErrorKind::Config, "the connection string names no host"));
    }
    let server = server_name(&config);
    let pool = Pool::builder(tls.manager(config.clone()))
        .max_size(pool_size)
        // The connection used last: its backend has everything at hand.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts {
            wait: Some(POOL_WAIT_TIMEOUT),
            create: Some(*config.get_connect_timeout().unwrap_or(&CONNECT_TIMEOUT)),
            recycle: Some(CONNECT_TIMEOUT),
        })
        .build()
        .map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
    Ok((pool, Some(tls.connector(config)), server))
}

fn server_name(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |position: usize| ports.get(position).or(ports.first()).copied().unwrap_or(5432);
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(position, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(position)),
            #[cfg(unix)]
            Host::Unix(directory) => format!("{}/.s.PGSQL.{}", directory.display(), port(position)),
        })
        .collect();
    let database = config
        .get_dbname()
        .map_or(String::new(), |name| format!(" database {name:?}"));
    format!("{}{database}", hosts.join(","))
}

/// A TLS connector whose type is forgotten.
trait Tls: Send + Sync {
    fn manager(&self, config: Config) -> Manager;
    fn connector(&self, config: Config) -> Connector;
}

struct Connectable<T>(T);

impl<T> Tls for Connectable<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn manager(&self, config: Config) -> Manager {
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        Manager::from_config(config, self.0.clone(), recycling)
    }

    fn connector(&self, config: Config) -> Connector {
        let tls = self.0.clone();
        Arc::new(move || {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, mut connection) = config.connect(tls).await?;
                let (sender, notifications) = mpsc::unbounded_channel();
                tokio::spawn(async move {
                    loop {
                        match poll_fn(|context| connection.poll_message(context)).await {
                            Some(Ok(AsyncMessage::Notification(notification))) => {
                                if sender.send(notification).is_err() {
                                    break;
                                }
                            }
                            Some(Ok(_)) => {}
                            Some(Err(error)) => {
                                debug!(
                                    error = crate::error::describe(&error),
                                    "the connection for LISTEN failed"
                                );
                                break;
                            }
                            None => break,
                        }
                    }
                });
                Ok(Listening { client, notifications })
            })
        })
    }
}
