//! The client's side of the start of a connection.

use std::io;
use std::sync::Arc;

use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio_rustls::LazyConfigAcceptor;
use zeroize::Zeroizing;

use super::message::{First, Message, Startup, read_password};
use super::{Leg, PostgresConnection};
use crate::client::ClientStream;
use crate::metered::Metered;
use crate::name::normalize_name;
use crate::policy::{Reason, Seen, Target};
use crate::tls::Application;

/// `AuthenticationCleartextPassword`.
const CLEARTEXT: [u8; 4] = 3_u32.to_be_bytes();

/// A client that said what it wants.
pub(super) struct Opened {
    pub(super) leg: Box<dyn Leg>,
    /// Those that it can mean.
    pub(super) hosts: Vec<Arc<str>>,
    pub(super) started: Started,
}

pub(super) enum Started {
    Session { startup: Startup, password: Zeroizing<Vec<u8>> },
    Cancel(Vec<u8>),
}

/// Why a client got no answer: a reason, or none if it left.
type Unopened = Option<Reason>;

impl PostgresConnection {
    pub(super) async fn open(&self, mut stream: Metered<ClientStream>, is_direct: bool) -> Result<Opened, Unopened> {
        if is_direct {
            let (leg, hosts) = self.accept_tls(stream).await?;
            return read_start(Box::new(leg), hosts, None).await;
        }
        let mut answered_gss = false;
        loop {
            match First::read(&mut stream).await.map_err(left)? {
                First::GssRequest if !answered_gss => {
                    answered_gss = true;
                    stream.write_all(b"N").await.map_err(left)?;
                }
                First::SslRequest => {
                    stream.write_all(b"S").await.map_err(left)?;
                    // What comes next is read as TLS, so nothing before it can count as its content.
                    let (leg, hosts) = self.accept_tls(stream).await?;
                    return read_start(Box::new(leg), hosts, None).await;
                }
                first => return read_start(Box::new(stream), self.hosts.clone(), Some(first)).await,
            }
        }
    }

    /// TLS by the sandbox's authority, for the host that the client names or the first one.
    async fn accept_tls(&self, stream: Metered<ClientStream>) -> Result<(impl Leg + 'static, Vec<Arc<str>>), Unopened> {
        let started = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
        let started = started.map_err(|_| Reason::ClientHandshake)?;
        let hosts = match started.client_hello().server_name() {
            Some(name) => {
                let name = normalize_name(name).map_err(|_| Reason::MalformedTls)?;
                if self.secrets.leaks_in_name(&name) {
                    return Err(Some(Reason::SecretLeak));
                }
                if !self.is_host(&name) {
                    return Err(Some(Reason::HostMismatch));
                }
                vec![Arc::from(name)]
            }
            None => self.hosts.clone(),
        };
        let name = hosts.first().ok_or(Reason::NoName)?;
        let port = self.connection.destination.port();
        let authority = self.secrets.ends_postgres(name, port).ok_or(Reason::SecretRevoked)?;
        let config = authority.server_config(name, Application::Postgres).map_err(|error| {
            tracing::error!(%error, "a host has no certificate");
            None
        })?;
        match started.into_stream(config).await {
            Ok(leg) => Ok((leg, hosts)),
            Err(error) => {
                tracing::debug!(%error, "a client did not complete its handshake");
                Err(Some(Reason::ClientHandshake))
            }
        }
    }

    /// Whether passwords are put in for this name, and the policy allows it.
    fn is_host(&self, name: &str) -> bool {
        let port = self.connection.destination.port();
        let policy = self.connection.open.sandbox.policy();
        self.secrets.ends_postgres(name, port).is_some() && policy.decide(Target::Name(name), port, Seen::Postgres).allowed
    }
}

/// Reads what the client wants, and asks for its password.
async fn read_start(mut leg: Box<dyn Leg>, hosts: Vec<Arc<str>>, first: Option<First>) -> Result<Opened, Unopened> {
    let first = match first {
        Some(first) => first,
        None => First::read(&mut leg).await.map_err(left)?,
    };
    let startup = match first {
        First::Startup(startup) => startup,
        First::Cancel(packet) => return Ok(Opened { leg, hosts, started: Started::Cancel(packet) }),
        First::SslRequest | First::GssRequest | First::Malformed => return Err(Some(Reason::MalformedPostgres)),
    };
    let question = Message { kind: b'R', body: CLEARTEXT.to_vec() };
    leg.write_all(&question.bytes()).await.map_err(left)?;
    leg.flush().await.map_err(left)?;
    let password = read_password(&mut leg).await.map_err(left)?.ok_or(Reason::MalformedPostgres)?;
    Ok(Opened { leg, hosts, started: Started::Session { startup, password } })
}

/// A client that has no password leaves to ask for one.
fn left(error: io::Error) -> Unopened {
    tracing::trace!(%error, "a client left");
    None
}
