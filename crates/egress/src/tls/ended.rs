//! Connections of which the TLS ends here.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Application, Authority, Roots};
use crate::client::ClientStream;
use crate::connection::Connection;
use crate::events::Protocol;
use crate::http::{HttpConnection, IDLE};
use crate::metered::Metered;
use crate::policy::{Decision, Reason};

/// Time for a handshake, of either side.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// The server that a client named when it began TLS, and the authority that stands for it.
#[derive(Debug, Clone)]
pub(crate) struct EndedTls {
    pub(crate) name: Arc<str>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) application: Application,
}

impl EndedTls {
    /// Shakes hands with the client, and answers its requests. `first` was read before.
    pub(crate) async fn serve(self, connection: Connection, stream: ClientStream, first: Vec<u8>) {
        let stream = Metered::new(stream, first, connection.meter.clone(), IDLE);
        let config = match self.authority.server_config(&self.name, self.application) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "a host has no certificate");
                return;
            }
        };
        match timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => HttpConnection::with_ended_tls(connection, self).serve_metered(stream).await,
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::debug!(%error, "a client did not complete its handshake");
                }
                connection.refuse(Protocol::Https, Some(&self.name), &Decision::refused(Reason::ClientHandshake)).await;
            }
        }
    }

    /// Shakes hands with the server. The error is a reason and a sentence part for people.
    pub(crate) async fn connect(&self, stream: TcpStream, roots: &Roots) -> Result<TlsStream<TcpStream>, (Reason, String)> {
        let name = &self.name;
        let failed = |why: &dyn std::fmt::Display| (Reason::NotConnected, format!("TLS with {name} failed: {why}"));
        let verifier = roots.verifier().ok_or_else(|| failed(&"the host has no certificates of authorities"))?;
        let config = self.authority.client_config(verifier, self.application).map_err(|error| failed(&error))?;
        let server = ServerName::try_from(name.to_string()).map_err(|error| failed(&error))?;
        match timeout(HANDSHAKE, TlsConnector::from(config).connect(server, stream)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                Some(rustls::Error::InvalidCertificate(why)) => {
                    Err((Reason::InvalidCertificate, format!("the certificate of {name} is not valid: {why}")))
                }
                _ => Err(failed(&error)),
            },
            Err(_) => Err(failed(&"the server did not answer in time")),
        }
    }
}
