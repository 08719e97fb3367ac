//! Opens one connection to one server, encrypted or not.

use std::future::poll_fn;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Notification, Socket};
use tracing::debug;

use super::tls;
use super::tls_settings::TlsSettings;

/// A client, and the task that moves its data.
pub(crate) type Link = (Client, JoinHandle<()>);

/// Why there is no connection to a server.
pub(crate) enum DialError {
    /// The files for TLS are not what they should be.
    TlsFiles(String),
    Server(tokio_postgres::Error),
}

/// A way to connect whose type is forgotten.
pub(crate) trait Dial: Send + Sync {
    /// `notifications`: where they go; the connection ends when nobody receives them any more.
    fn dial(
        &self,
        config: Config,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> BoxFuture<'_, Result<Link, DialError>>;
}

/// The application's own TLS connector.
pub(crate) struct WithConnector<T>(pub(crate) T);

impl<T> Dial for WithConnector<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + Sync,
    T::TlsConnect: Send + Sync,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn dial(
        &self,
        config: Config,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> BoxFuture<'_, Result<Link, DialError>> {
        Box::pin(open(config, self.0.clone(), notifications))
    }
}

/// TLS as the settings ask for it.
pub(crate) struct BuiltIn(pub(crate) TlsSettings);

impl Dial for BuiltIn {
    fn dial(
        &self,
        config: Config,
        notifications: Option<UnboundedSender<Notification>>,
    ) -> BoxFuture<'_, Result<Link, DialError>> {
        Box::pin(async move {
            if config.get_ssl_mode() == SslMode::Disable {
                return open(config, NoTls, notifications).await;
            }
            // Read again for every connection, so that certificates can be renewed while the process runs.
            let connector = tls::connector(&self.0).map_err(DialError::TlsFiles)?;
            open(config, connector, notifications).await
        })
    }
}

async fn open<T>(
    config: Config,
    tls: T,
    notifications: Option<UnboundedSender<Notification>>,
) -> Result<Link, DialError>
where
    T: MakeTlsConnect<Socket> + Send + 'static,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = config.connect(tls).await.map_err(DialError::Server)?;
    let task = tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if notifications
                        .as_ref()
                        .is_some_and(|sender| sender.send(notification).is_err())
                    {
                        break;
                    }
                }
                Some(Ok(AsyncMessage::Notice(notice))) => debug!("{}: {}", notice.severity(), notice.message()),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    debug!(error = crate::error::describe(&error), "a connection failed");
                    break;
                }
                None => break,
            }
        }
    });
    Ok((client, task))
}
