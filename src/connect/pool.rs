//! The connections that calls share: a pool of this provider's own, or the application's.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult, Timeouts};
use deadpool_postgres::ClientWrapper;

use super::Connector;
use super::failure::{ConnectError, NoConnection};
use crate::error::{CallError, Error, ErrorKind};

/// Fills a pool.
pub(crate) struct Manager(Arc<Connector>);

impl managed::Manager for Manager {
    type Type = ClientWrapper;
    type Error = ConnectError;

    async fn create(&self) -> Result<ClientWrapper, ConnectError> {
        let (client, task) = self.0.connect(None).await?;
        Ok(ClientWrapper::new(client, task))
    }

    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<ConnectError> {
        if client.is_closed() {
            Err(RecycleError::message("it was lost"))
        } else {
            Ok(())
        }
    }
}

#[derive(Clone)]
pub(crate) enum Pool {
    Own {
        pool: managed::Pool<Manager>,
        /// How long ordinary calls wait for a connection that others use.
        wait: Duration,
    },
    /// Its own settings apply.
    Given(deadpool_postgres::Pool),
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>, size: usize, wait: Duration) -> Result<Self, Error> {
        let pool = managed::Pool::builder(Manager(connector))
            .max_size(size)
            // The connection used last: its backend has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
        Ok(Self::Own { pool, wait })
    }

    /// A connection. `wait`: how long to wait for one that others use; none for as long as it takes.
    pub(crate) async fn get(&self, wait: Option<Duration>) -> Result<Pooled, CallError> {
        match self {
            Self::Own { pool, .. } => {
                let timeouts = Timeouts {
                    wait,
                    ..Timeouts::default()
                };
                match pool.timeout_get(&timeouts).await {
                    Ok(object) => Ok(Pooled::Own(object)),
                    Err(PoolError::Closed) => Err(CallError::Closed),
                    Err(PoolError::Backend(error)) => Err(CallError::NoConnection(NoConnection::Failed(error))),
                    // No other time is limited, and there are no hooks.
                    Err(_) => Err(CallError::NoConnection(self.busy(wait))),
                }
            }
            Self::Given(pool) => match pool.get().await {
                Ok(object) => Ok(Pooled::Given(object)),
                Err(deadpool_postgres::PoolError::Closed) => Err(CallError::Closed),
                Err(error) => Err(CallError::NoConnection(NoConnection::Pool(error))),
            },
        }
    }

    /// How long ordinary calls wait for a connection that others use. None: as long as it takes.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self {
            Self::Own { wait, .. } => Some(*wait),
            Self::Given(pool) => pool.timeouts().wait,
        }
    }

    pub(crate) fn busy(&self, waited: Option<Duration>) -> NoConnection {
        NoConnection::Busy {
            waited,
            size: self.size(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Own { pool, .. } => pool.status().max_size,
            Self::Given(pool) => pool.status().max_size,
        }
    }

    /// Drops connections that nobody has used for a time.
    pub(crate) fn drop_idle(&self, since: Duration) {
        match self {
            Self::Own { pool, .. } => drop(pool.retain(|_, metrics| metrics.last_used() < since)),
            Self::Given(pool) => drop(pool.retain(|_, metrics| metrics.last_used() < since)),
        }
    }

    /// Unless it is the application's.
    pub(crate) fn close(&self) {
        if let Self::Own { pool, .. } = self {
            pool.close();
        }
    }
}

/// A connection that goes back to its pool, if it has one, when dropped.
pub(crate) enum Pooled {
    Own(Object<Manager>),
    Given(deadpool_postgres::Object),
    Single(ClientWrapper),
}

impl Pooled {
    /// It will not go back.
    pub(crate) fn take(self) -> ClientWrapper {
        match self {
            Self::Own(object) => Object::take(object),
            Self::Given(object) => deadpool_postgres::Object::take(object),
            Self::Single(client) => client,
        }
    }
}

impl Deref for Pooled {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        match self {
            Self::Own(object) => object,
            Self::Given(object) => object,
            Self::Single(client) => client,
        }
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        match self {
            Self::Own(object) => object,
            Self::Given(object) => object,
            Self::Single(client) => client,
        }
    }
}
