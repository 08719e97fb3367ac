//! What a connection string and the environment ask for, as libpq understands them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use super::text::{self, Parameters};
use super::tls_settings::{TlsMode, TlsSettings};
use crate::error::{Error, ErrorKind};

const DEFAULT_PORT: u16 = 5432;
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings that the environment has a variable for.
const VARIABLES: [(&str, &str); 20] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("dbname", "PGDATABASE"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("service", "PGSERVICE"),
];

/// What libpq knows and this crate does not do: ignoring it would be less safe, or not what was asked for.
const REFUSED: [&str; 7] = [
    "sslcrl",
    "sslcrldir",
    "sslpassword",
    "service",
    "requirepeer",
    "require_auth",
    "replication",
];

/// Looks up an environment variable.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
pub(crate) fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One server of perhaps several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// A name, an address, or the directory of a socket.
    pub(crate) host: Host,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

impl Server {
    /// As messages name it.
    pub(crate) fn name(&self) -> String {
        match &self.host {
            Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", self.port),
            Host::Tcp(name) => format!("{name}:{}", self.port),
            #[cfg(unix)]
            Host::Unix(directory) => format!("{}/.s.PGSQL.{}", directory.display(), self.port),
        }
    }

    pub(crate) fn is_socket(&self) -> bool {
        !matches!(self.host, Host::Tcp(_))
    }
}

/// Where to connect, and how.
pub(crate) struct Settings {
    /// Everything but the servers and TLS.
    pub(crate) config: Config,
    pub(crate) servers: Vec<Server>,
    /// Looked up for every connection if there is no password.
    pub(crate) passfile: Option<PathBuf>,
    pub(crate) tls: TlsSettings,
}

impl Settings {
    /// A URL or `key=value` list; what it leaves open comes from the environment.
    pub(crate) fn parse(text: &str, environment: Environment<'_>) -> Result<Self, Error> {
        text::parse(text)
            .and_then(|parameters| Self::from_parameters(parameters, environment))
            .map_err(|problem| Error::new(ErrorKind::Config, format!("invalid connection string: {problem}")))
    }

    /// The environment is not asked: whoever writes a configuration decides all of it.
    pub(crate) fn from_config(config: &Config) -> Result<Self, Error> {
        let ports = config.get_ports();
        let addresses = config.get_hostaddrs();
        let hosts = match config.get_hosts() {
            [] => addresses.iter().map(|address| Host::Tcp(address.to_string())).collect(),
            hosts => hosts.to_vec(),
        };
        let servers = servers(hosts, addresses, ports)
            .map_err(|problem| Error::new(ErrorKind::Config, format!("invalid configuration: {problem}")))?;
        let tls = TlsSettings {
            mode: match config.get_ssl_mode() {
                SslMode::Disable => TlsMode::Disable,
                SslMode::Require => TlsMode::Require,
                _ => TlsMode::Prefer,
            },
            roots: None,
            identity: None,
            only_tls13: false,
            files_asked_for: Vec::new(),
        };
        Ok(Self {
            config: with_defaults(config.clone()),
            servers,
            passfile: None,
            tls,
        })
    }

    fn from_parameters(mut given: Parameters, environment: Environment<'_>) -> Result<Self, String> {
        for (key, variable) in VARIABLES {
            if !given.contains_key(key)
                && let Some(value) = environment(variable)
            {
                given.insert(key.to_string(), value);
            }
        }
        if let Some(key) = REFUSED.iter().find(|key| given.contains_key(**key)) {
            return Err(format!("{key} is not supported"));
        }
        let home = environment("HOME").map(|home| PathBuf::from(home).join(".postgresql"));
        let tls = TlsSettings::take(&mut given, home.as_deref())?;
        let passfile = match given.remove("passfile") {
            // Whether it is there matters to those whom the server asks for a password.
            Some(file) => Some(PathBuf::from(file)),
            None => environment("HOME")
                .map(|home| PathBuf::from(home).join(".pgpass"))
                .filter(|file| file.is_file()),
        };
        let servers = servers_of(&mut given)?;
        let config = config(given)?;
        Ok(Self {
            config: with_defaults(config),
            servers,
            passfile,
            tls,
        })
    }
}

fn servers_of(given: &mut Parameters) -> Result<Vec<Server>, String> {
    let list = |text: Option<String>| -> Vec<String> {
        text.filter(|text| !text.is_empty()).map_or(Vec::new(), |text| {
            text.split(',').map(|part| part.trim().to_string()).collect()
        })
    };
    let mut names = list(given.remove("host"));
    let addresses = list(given.remove("hostaddr"));
    if names.is_empty() {
        names.clone_from(&addresses);
    }
    let addresses: Vec<IpAddr> = addresses
        .iter()
        .map(|address| address.parse())
        .collect::<Result<_, _>>()
        .map_err(|_| "hostaddr is not a list of addresses")?;
    let ports: Vec<u16> = list(given.remove("port"))
        .iter()
        .map(|port| {
            if port.is_empty() {
                Ok(DEFAULT_PORT)
            } else {
                port.parse()
            }
        })
        .collect::<Result<_, _>>()
        // Not quoted: a password with a `/` that is not encoded ends up here.
        .map_err(|_| "a port is not a number from 1 to 65535")?;
    let hosts = names
        .into_iter()
        .map(|name| match name.as_str() {
            "" => Host::Tcp("localhost".to_string()),
            #[cfg(unix)]
            directory if directory.starts_with('/') => Host::Unix(PathBuf::from(directory)),
            _ => Host::Tcp(name),
        })
        .collect();
    servers(hosts, &addresses, &ports)
}

fn servers(hosts: Vec<Host>, addresses: &[IpAddr], ports: &[u16]) -> Result<Vec<Server>, String> {
    if hosts.is_empty() {
        return Err(
            "it names no host, and neither do PGHOST and PGHOSTADDR. For a server on this machine, name the directory of its \
             socket: postgres:///app?host=/var/run/postgresql"
                .to_string(),
        );
    }
    if !addresses.is_empty() && addresses.len() != hosts.len() {
        return Err(format!("{} hosts, but {} hostaddrs", hosts.len(), addresses.len()));
    }
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(format!("{} hosts, but {} ports", hosts.len(), ports.len()));
    }
    Ok(hosts
        .into_iter()
        .enumerate()
        .map(|(position, host)| Server {
            host,
            address: addresses.get(position).copied(),
            port: ports.get(position).or(ports.first()).copied().unwrap_or(DEFAULT_PORT),
        })
        .collect())
}

/// What is left of the parameters goes to tokio-postgres.
fn config(given: Parameters) -> Result<Config, String> {
    let mut config = Config::new();
    for (key, value) in given {
        match key.as_str() {
            "user" => _ = config.user(value),
            "password" => _ = config.password(value),
            "dbname" => _ = config.dbname(value),
            "options" => _ = config.options(value),
            "application_name" => _ = config.application_name(value),
            "fallback_application_name" if config.get_application_name().is_none() => {
                config.application_name(value);
            }
            "connect_timeout" => _ = duration(&key, &value, 1000)?.map(|time| config.connect_timeout(time)),
            "tcp_user_timeout" => _ = duration(&key, &value, 1)?.map(|time| config.tcp_user_timeout(time)),
            "keepalives" => _ = config.keepalives(value != "0"),
            "keepalives_idle" => _ = duration(&key, &value, 1000)?.map(|time| config.keepalives_idle(time)),
            "keepalives_interval" => _ = duration(&key, &value, 1000)?.map(|time| config.keepalives_interval(time)),
            "keepalives_count" | "keepalives_retries" => {
                let count = value.parse().map_err(|_| format!("{key} is not a number"))?;
                config.keepalives_retries(count);
            }
            "target_session_attrs" => {
                _ = config.target_session_attrs(match value.as_str() {
                    "any" => TargetSessionAttrs::Any,
                    "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
                    _ => return Err(one_of(&key, &value, "any, read-write and primary: this crate writes")),
                })
            }
            "load_balance_hosts" => {
                _ = config.load_balance_hosts(match value.as_str() {
                    "disable" => LoadBalanceHosts::Disable,
                    "random" => LoadBalanceHosts::Random,
                    _ => return Err(one_of(&key, &value, "disable and random")),
                })
            }
            "channel_binding" => {
                _ = config.channel_binding(match value.as_str() {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return Err(one_of(&key, &value, "disable, prefer and require")),
                })
            }
            "sslnegotiation" => {
                _ = config.ssl_negotiation(match value.as_str() {
                    "postgres" => SslNegotiation::Postgres,
                    "direct" => SslNegotiation::Direct,
                    _ => return Err(one_of(&key, &value, "postgres and direct")),
                })
            }
            "client_encoding" if !matches!(value.to_ascii_lowercase().as_str(), "auto" | "utf8" | "utf-8") => {
                return Err(one_of(&key, &value, "auto and UTF8"));
            }
            "gssencmode" if value == "require" => return Err("gssencmode=require is not supported".to_string()),
            // They ask for what is done, or not done, anyway.
            "fallback_application_name"
            | "client_encoding"
            | "gssencmode"
            | "sslcompression"
            | "sslsni"
            | "krbsrvname"
            | "gsslib" => {}
            _ => return Err(format!("unknown parameter {key:?}")),
        }
    }
    Ok(config)
}

fn one_of(key: &str, value: &str, choices: &str) -> String {
    format!("{key} {value:?} is none of {choices}")
}

/// None for "no limit", which libpq writes as 0 or less.
fn duration(key: &str, value: &str, unit_ms: u64) -> Result<Option<Duration>, String> {
    let number: i64 = value.trim().parse().map_err(|_| format!("{key} is not a number"))?;
    Ok(u64::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .map(|number| Duration::from_millis(number.saturating_mul(unit_ms))))
}

fn with_defaults(mut config: Config) -> Config {
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
    config
}

#[cfg(test)]
mod tests;
