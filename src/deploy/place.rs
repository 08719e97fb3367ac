//! Ways to the server.

use deadpool_postgres::ClientWrapper;

use super::call_failed;
use crate::call::Caller;
use crate::connect::{Connector, Pool, Pooled};
use crate::error::{Error, ErrorKind};
use crate::schema_name::SchemaName;

/// How the server is reached.
pub(crate) struct Place<'a> {
    pub(crate) pool: &'a Pool,
    /// Calls functions by way of the pool.
    pub(crate) caller: &'a Caller,
    /// The way around a pooler.
    pub(crate) direct: Option<&'a Connector>,
    /// Whether the pool's connections lead to a pooler that shares its own by the transaction.
    pub(crate) transaction_pooler: bool,
}

impl Place<'_> {
    /// A connection, and whether it is a session.
    pub(super) async fn connection(&self) -> Result<(Pooled, bool), Error> {
        let Some(direct) = self.direct else {
            let pooled = self.pool.get(self.pool.wait()).await.map_err(call_failed)?;
            return Ok((pooled, !self.transaction_pooler));
        };
        match direct.connect(None).await {
            Ok((client, task)) => Ok((Pooled::Single(ClientWrapper::new(client, task)), true)),
            Err(error) => Err(Error::new(
                ErrorKind::Connect,
                format!("cannot connect by the direct URL to {error}"),
            )),
        }
    }

    /// A connection for a deployment. It ends afterwards: statements that it prepared are not for the pool.
    pub(super) async fn session(&self, schema: &SchemaName) -> Result<ClientWrapper, Error> {
        let (connection, is_session) = self.connection().await?;
        if is_session {
            return Ok(connection.take());
        }
        Err(Error::new(
            ErrorKind::Schema,
            format!(
                "schema {:?} has to be deployed, which a pooler in transaction mode does not allow: set \
                 Builder::direct_url to the server itself, or deploy it from elsewhere",
                schema.as_str()
            ),
        ))
    }
}
