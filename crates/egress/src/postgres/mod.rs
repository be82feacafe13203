//! Postgres: the proxy does the login of a connection, so that a password can be put in for a placeholder.
//!
//! ```text
//!  client                          here                                          server
//!  SSLRequest, GSSENCRequest ────► S and TLS by the sandbox's authority; N
//!  StartupMessage ───────────────► kept
//!                 ◄── password? ──
//!  a placeholder ────────────────► its value ── SSLRequest, TLS that is verified ──►
//!                                  StartupMessage, cleartext, MD5 or SCRAM-SHA-256 ►
//!                 ◄─────────────── all until ReadyForQuery, with values masked ◄────
//!                 ◄─────────────── bytes as they are ──────────────────────────────►
//! ```
//!
//! Owns the start of the connection, and nothing after it. A server without TLS, or with another name, gets nothing.

mod message;
mod server;
mod start;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use self::message::{ErrorResponse, Startup};
use self::server::{Login, begin_tls, forward_cancel, log_in};
use self::start::{Opened, Started};
use crate::client::ClientStream;
use crate::connection::{Connection, EndEvent};
use crate::dial::Dialed;
use crate::events::{Draft, Protocol};
use crate::metered::Metered;
use crate::policy::{Decision, Reason};
use crate::sandbox::{Admission, Spoken};
use crate::secrets::{Password, SandboxSecrets, SecretRefusal};
use crate::splice::IDLE;
use crate::tls::{Application, EndedTls};

/// Time for the start of a connection, of either side. Servers have the same by default.
const START: Duration = Duration::from_secs(60);

/// Hosts of one address that are tried, if a client does not say which one it means.
const MAX_HOSTS: usize = 8;

/// The first byte of each first message: it is short.
pub(crate) const FIRST_BYTE: u8 = 0;

/// A stream of the client, with or without TLS.
trait Leg: AsyncRead + AsyncWrite + Unpin + Send {}
impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Leg for IO {}

/// A connection of a client to one of these hosts, which share its address.
pub(crate) struct PostgresConnection {
    connection: Connection,
    secrets: Arc<SandboxSecrets>,
    hosts: Vec<Arc<str>>,
}

/// Why a connection ends before its first query.
struct Refusal {
    decision: Decision,
    /// The server, if it is known.
    name: Option<Arc<str>>,
    address: Option<IpAddr>,
    /// A sentence part for people, if the reason says too little.
    text: Option<String>,
}

/// A server that was admitted, after it proved its name.
struct Reached {
    name: Arc<str>,
    address: IpAddr,
    decision: Decision,
}

impl PostgresConnection {
    /// Such hosts, of those that the policy allows. None has a name twice.
    pub(crate) fn new(connection: Connection, secrets: Arc<SandboxSecrets>, hosts: Vec<Arc<str>>) -> Self {
        Self { connection, secrets, hosts }
    }

    /// Handles a connection to its end. `first` was read before. In direct TLS, its first message is inside.
    pub(crate) async fn serve(self, stream: ClientStream, first: Vec<u8>, is_direct: bool) {
        let stream = Metered::new(stream, first, self.connection.meter.clone(), IDLE);
        let opened = match timeout(START, self.open(stream, is_direct)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(None)) => return,
            // The client's stream resets.
            Ok(Err(Some(reason))) => return self.note(&self.refusal(reason)),
            Err(_) => return self.note(&self.refusal(Reason::Silent)),
        };
        let Opened { mut leg, hosts, started } = opened;
        let ended = match started {
            Started::Session { startup, password } => self.session(&mut *leg, &hosts, startup, &password).await,
            Started::Cancel(packet) => self.cancel(&hosts, &packet).await,
        };
        if let Err(refusal) = ended {
            self.note(&refusal);
            let error = ErrorResponse::new(&refusal, self.connection.destination.port());
            if leg.write_all(&error.bytes()).await.is_err() {
                return;
            }
        }
        // The stream ends in an orderly way, and not with a reset.
        let _ = timeout(START, leg.shutdown()).await;
    }

    async fn session(&self, leg: &mut dyn Leg, hosts: &[Arc<str>], startup: Startup, password: &[u8]) -> Result<(), Refusal> {
        let (reached, mut server, password) = self.connect_to_one(self.choose(hosts, &startup, password)?).await?;
        let draft = self.draft(&reached);
        let _end = EndEvent { connection: &self.connection, draft: &draft, decision: &reached.decision };
        let login = Login { startup: &startup, password: &password.text, secrets: &self.secrets };
        let logged_in = match timeout(START, log_in(&mut server, leg, login)).await {
            Ok(Ok(logged_in)) => logged_in,
            failed => {
                let text = match failed {
                    Ok(Err(text)) => text,
                    _ => "the server did not complete the login in time".to_owned(),
                };
                let refusal = Refusal { text: Some(text), ..self.refusal(Reason::ServerLogin) };
                return Err(Refusal { name: Some(reached.name.clone()), address: Some(reached.address), ..refusal });
            }
        };
        // Otherwise the server refused it, and the client has its message.
        if logged_in && let Err(error) = copy_bidirectional(&mut *leg, &mut server).await {
            tracing::trace!(%error, "a connection to Postgres was cut off");
        }
        Ok(())
    }

    /// Passes on a request to cancel a query. It has the key of a session, and no password, so nothing says which of the hosts it
    /// is for. Where the key is of no session, it has no effect.
    async fn cancel(&self, hosts: &[Arc<str>], packet: &[u8]) -> Result<(), Refusal> {
        let mut refused = Ok(());
        for name in hosts.iter().take(MAX_HOSTS) {
            if let Err(refusal) = self.cancel_at(name, packet).await {
                refused = Err(refusal);
            }
        }
        refused
    }

    async fn cancel_at(&self, name: &Arc<str>, packet: &[u8]) -> Result<(), Refusal> {
        let (reached, server) = self.connect(name, None).await?;
        let draft = self.draft(&reached);
        let _end = EndEvent { connection: &self.connection, draft: &draft, decision: &reached.decision };
        forward_cancel(server, packet).await;
        Ok(())
    }

    /// The hosts that the password is for, and what they get. At least one. Hosts that share an address differ in their secrets.
    fn choose(&self, hosts: &[Arc<str>], startup: &Startup, password: &[u8]) -> Result<Vec<(Arc<str>, Password)>, Refusal> {
        let port = self.connection.destination.port();
        let (mut chosen, mut refused) = (Vec::new(), None);
        for name in hosts {
            let checked = self.secrets.check_parameters(startup.parameters(), name, port);
            match checked.and_then(|()| self.secrets.fill_password(password, name, port)) {
                Ok(password) => chosen.push((name.clone(), password)),
                Err(SecretRefusal { reason, text }) => {
                    let refusal = Refusal { name: Some(name.clone()), text: Some(text), ..self.refusal(reason) };
                    refused.get_or_insert(refusal);
                }
            }
        }
        if chosen.is_empty() { Err(refused.unwrap_or_else(|| self.refusal(Reason::NoName))) } else { Ok(chosen) }
    }

    /// Connects to the first of these hosts that the server proves to be. They share an address, so it may be another one.
    async fn connect_to_one(
        &self,
        chosen: Vec<(Arc<str>, Password)>,
    ) -> Result<(Reached, TlsStream<TcpStream>, Password), Refusal> {
        let mut refused = None;
        for (name, password) in chosen.into_iter().take(MAX_HOSTS) {
            match self.connect(&name, password.secret.as_deref()).await {
                Ok((reached, server)) => return Ok((reached, server, password)),
                Err(refusal) if refusal.decision.reason == Reason::InvalidCertificate => _ = refused.get_or_insert(refusal),
                Err(refusal) => return Err(refusal),
            }
        }
        Err(refused.unwrap_or_else(|| self.refusal(Reason::NoName)))
    }

    /// Connects to a host by TLS that is verified, and admits the connection by the policy and the secrets of this moment.
    async fn connect(&self, name: &Arc<str>, secret: Option<&str>) -> Result<(Reached, TlsStream<TcpStream>), Refusal> {
        let Connection { shared, open, destination, .. } = &self.connection;
        let port = destination.port();
        let refuse = |decision, address, text| Refusal { decision, name: Some(name.clone()), address, text };
        let dialed = shared.dialer.dial_name(&open.sandbox, name, *destination, &Spoken::Postgres).await;
        let Dialed { stream, address } = dialed.map_err(|decision| refuse(decision, None, None))?;
        let failed = |(reason, text)| refuse(Decision::refused(reason), Some(address), Some(text));
        let authority = self.secrets.ends_postgres(name, port);
        let authority = authority.ok_or_else(|| failed((Reason::SecretRevoked, "no secret is for it".to_owned())))?;
        let stream = begin_tls(stream, name).await.map_err(failed)?;
        let tls = EndedTls { name: name.clone(), authority, application: Application::Postgres };
        let stream = tls.connect(stream, &shared.roots).await.map_err(failed)?;
        let admission = Admission { name: Some(name.clone()), address, port, spoken: Spoken::Postgres };
        let decision = open.admit_login(admission, &self.secrets, secret);
        if !decision.allowed {
            return Err(refuse(decision, Some(address), None));
        }
        let reached = Reached { name: name.clone(), address, decision };
        shared.events.decided(&self.draft(&reached), &reached.decision);
        Ok((reached, stream))
    }

    fn refusal(&self, reason: Reason) -> Refusal {
        let name = if let [name] = &*self.hosts { Some(name.clone()) } else { None };
        Refusal { decision: Decision::refused(reason), name, address: Some(self.connection.destination.ip()), text: None }
    }

    fn draft<'a>(&'a self, reached: &'a Reached) -> Draft<'a> {
        let Reached { name, address, .. } = reached;
        Draft { name: Some(name), address: Some(*address), ..self.connection.draft(Protocol::Postgres) }
    }

    fn note(&self, refusal: &Refusal) {
        let Refusal { decision, name, address, .. } = refusal;
        let draft = Draft { name: name.as_deref(), address: *address, ..self.connection.draft(Protocol::Postgres) };
        self.connection.shared.events.decided(&draft, decision);
    }
}
