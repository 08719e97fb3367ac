//! Connects: which server, with what password, how encrypted, and how often.

mod dial;
mod failure;
mod passfile;
mod password;
mod pool;
mod settings;
mod text;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod tls_settings;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};
use tokio_postgres::{Config, Notification};
use tracing::{debug, warn};

use crate::call::jittered;
use crate::error::{Error, ErrorKind, describe};
use crate::telemetry::metrics;
use dial::{BuiltIn, DialError, Link};
pub(crate) use dial::{Dial, WithConnector};
pub(crate) use failure::{ConnectError, NoConnection};
pub(crate) use password::AskPassword;
use password::Found;
pub use password::PasswordRequest;
pub(crate) use pool::{Pool, Pooled};
use settings::Server;
pub(crate) use settings::{Settings, process_environment};
use tls_settings::TlsMode;

/// For the socket, each address by itself. The whole connection may take twice as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections a process opens at once, while they can be had.
const AT_ONCE: usize = 4;
/// For how long one that takes its time counts among them.
const TURN: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_millis(25);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// How often the application is asked again for a password that is refused, and the first pause.
const PASSWORD_ATTEMPTS: u32 = 5;
const PASSWORD_BACKOFF: Duration = Duration::from_millis(50);

/// Opens connections, to one of several servers, one way.
pub(crate) struct Connector {
    settings: Settings,
    dial: Arc<dyn Dial>,
    password: Option<AskPassword>,
    /// Where the next connection is tried first.
    next_server: AtomicUsize,
    starting: Semaphore,
    trouble: Trouble,
}

impl Connector {
    /// `tls`: the application's own connector, instead of what the settings say.
    pub(crate) fn new(
        settings: Settings,
        tls: Option<Arc<dyn Dial>>,
        password: Option<AskPassword>,
    ) -> Result<Self, Error> {
        let dial = match tls {
            Some(dial) => {
                if let Some(setting) = settings.tls.files_asked_for.first() {
                    return Err(Error::new(
                        ErrorKind::Config,
                        format!(
                            "{setting} is for the built-in TLS: the connector given to Builder::tls decides instead"
                        ),
                    ));
                }
                dial
            }
            None => {
                check_tls(&settings)?;
                Arc::new(BuiltIn(settings.tls.clone()))
            }
        };
        Ok(Self {
            settings,
            dial,
            password,
            next_server: AtomicUsize::default(),
            starting: Semaphore::new(AT_ONCE),
            trouble: Trouble::default(),
        })
    }

    /// A new connection, to the first server that can be had.
    ///
    /// A server that comes back is not overrun: few connections are begun at once, and after a failure there
    /// is a pause, of random length, that all callers share.
    pub(crate) async fn connect(
        &self,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> Result<Link, ConnectError> {
        let turn = self.starting.acquire().await;
        self.trouble.pause().await;
        let mut trying = pin!(self.try_servers(notifications));
        let result = match tokio::time::timeout(TURN, &mut trying).await {
            Ok(result) => result,
            Err(_) => {
                drop(turn);
                trying.await
            }
        };
        self.trouble.note(result.is_ok());
        metrics::connection(result.is_ok());
        result
    }

    async fn try_servers(&self, notifications: Option<UnboundedSender<Notification>>) -> Result<Link, ConnectError> {
        let servers = &self.settings.servers;
        let first = match self.settings.config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => uuid::Uuid::new_v4().as_u128() as usize,
            _ => self.next_server.load(Ordering::Relaxed),
        };
        let mut problems = Vec::new();
        for position in (0..servers.len()).map(|offset| first.wrapping_add(offset) % servers.len()) {
            let server = &servers[position];
            let mut moving_on = MovingOn {
                next_server: &self.next_server,
                to: (position + 1) % servers.len(),
            };
            match self.try_server(server, notifications.clone()).await {
                Ok(link) => {
                    moving_on.to = position;
                    return Ok(link);
                }
                Err(problem) => problems.push(format!("{}: {problem}", server.name())),
            }
        }
        Err(ConnectError(problems.join("; ")))
    }

    async fn try_server(
        &self,
        server: &Server,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> Result<Link, String> {
        let mut config = self.config(server);
        let limit = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT) * 2;
        let mut attempt = 0;
        loop {
            let mut but = None;
            match password::find(self.password.as_ref(), &self.settings, server, attempt > 0).await? {
                Found::Password(password) => _ = config.password(password),
                Found::But(why) => but = Some(why),
                Found::Nothing => {}
            }
            attempt += 1;
            let dialled = self.dial.dial(config.clone(), notifications.clone());
            match tokio::time::timeout(limit, dialled).await {
                Ok(Ok(link)) => return Ok(link),
                Err(_) => return Err(format!("no connection within {limit:?}")),
                Ok(Err(DialError::TlsFiles(problem))) => return Err(problem),
                Ok(Err(DialError::Server(error))) if self.password.is_some() && is_refusal(&error) => {
                    let problem = describe(&error);
                    if attempt == PASSWORD_ATTEMPTS {
                        return Err(format!(
                            "{problem}: the password callback was asked {attempt} times, and none of its answers was \
                             accepted (expired?)"
                        ));
                    }
                    // A token can expire between the answer and its use.
                    warn!(
                        server = server.name(),
                        problem, "the password was refused; asking for another one"
                    );
                    tokio::time::sleep(jittered(PASSWORD_BACKOFF * 2_u32.pow(attempt))).await;
                }
                Ok(Err(DialError::Server(error))) => match tls::explain(&error, &self.settings.tls) {
                    None => return Err(failure::refusal(&error, but.as_deref())),
                    Some(problem) if config.get_ssl_mode() == SslMode::Prefer && !self.settings.tls.verifies() => {
                        debug!(server = server.name(), problem, "no TLS; going on without");
                        config.ssl_mode(SslMode::Disable);
                        attempt -= 1;
                    }
                    Some(problem) => return Err(problem),
                },
            }
        }
    }

    /// The settings with this server alone.
    fn config(&self, server: &Server) -> Config {
        let from = &self.settings.config;
        let mut config = Config::new();
        match &server.host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(directory) => config.host_path(directory),
        };
        if let Some(address) = server.address {
            config.hostaddr(address);
        }
        config.port(server.port);
        from.get_user().map(|user| config.user(user));
        from.get_password().map(|password| config.password(password));
        from.get_dbname().map(|name| config.dbname(name));
        from.get_options().map(|options| config.options(options));
        from.get_application_name().map(|name| config.application_name(name));
        from.get_tcp_user_timeout()
            .map(|timeout| config.tcp_user_timeout(*timeout));
        from.get_keepalives_interval()
            .map(|interval| config.keepalives_interval(interval));
        from.get_keepalives_retries()
            .map(|retries| config.keepalives_retries(retries));
        config
            .connect_timeout(from.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT))
            .keepalives(from.get_keepalives())
            .keepalives_idle(from.get_keepalives_idle())
            .target_session_attrs(from.get_target_session_attrs())
            .channel_binding(from.get_channel_binding())
            .ssl_negotiation(from.get_ssl_negotiation())
            .load_balance_hosts(from.get_load_balance_hosts())
            .ssl_mode(match self.settings.tls.mode {
                // libpq does not encrypt what does not leave the machine.
                _ if server.is_socket() => SslMode::Disable,
                TlsMode::Disable => SslMode::Disable,
                TlsMode::Prefer => SslMode::Prefer,
                TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
            });
        config
    }
}

/// Whoever comes next, also when an attempt is dropped half-way, does not begin with the server that hung.
struct MovingOn<'a> {
    next_server: &'a AtomicUsize,
    to: usize,
}

impl Drop for MovingOn<'_> {
    fn drop(&mut self) {
        self.next_server.store(self.to, Ordering::Relaxed);
    }
}

/// Files that are missing, or no TLS at all, are noticed before the first connection.
fn check_tls(settings: &Settings) -> Result<(), Error> {
    if settings.tls.mode == TlsMode::Disable || settings.servers.iter().all(Server::is_socket) {
        return Ok(());
    }
    if settings.tls.mode >= TlsMode::VerifyCa && settings.tls.roots.is_none() {
        return Err(Error::new(
            ErrorKind::Config,
            "sslmode verify-ca and verify-full need to know whom to trust: set sslrootcert to a file of certificates, or to \
             `system` for those that the operating system trusts",
        ));
    }
    match tls::connector(&settings.tls) {
        Ok(_) => Ok(()),
        Err(problem) => Err(Error::new(ErrorKind::Config, problem)),
    }
}

/// The class of SQLSTATEs for refused credentials.
fn is_refusal(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("28"))
}

/// How long nobody should try to connect after it failed.
#[derive(Default)]
struct Trouble {
    state: Mutex<TroubleState>,
    over: Notify,
}

#[derive(Default)]
struct TroubleState {
    failures: u32,
    not_before: Option<Instant>,
}

impl Trouble {
    async fn pause(&self) {
        loop {
            let over = self.over.notified();
            let until = self.state.lock().unwrap_or_else(PoisonError::into_inner).not_before;
            match until {
                Some(until) if until > Instant::now() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = over => {}
                    }
                }
                _ => return,
            }
        }
    }

    fn note(&self, success: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if success {
            let had_failed = std::mem::take(&mut *state).failures > 0;
            drop(state);
            if had_failed {
                self.over.notify_waiters();
            }
        } else {
            let pause = FIRST_BACKOFF
                .saturating_mul(2_u32.saturating_pow(state.failures))
                .min(MAX_BACKOFF);
            state.failures += 1;
            state.not_before = Some(Instant::now() + jittered(pause));
        }
    }
}
