//! One connection of a sandbox: from what it speaks to what it may reach.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::client::{ClientStream, reset_on_close};
use crate::dial::{Dialed, Dialer};
use crate::events::{Draft, Events, Protocol};
use crate::hello::ClientHello;
use crate::http::HttpConnection;
use crate::metered::Meter;
use crate::name::normalize_name;
use crate::original::OriginalDestination;
use crate::owner::{Owner, Owners, SocketTransport};
use crate::policy::{Decision, Reason, Seen, Target};
use crate::postgres::{FIRST_BYTE, PostgresConnection};
use crate::sandbox::{Admission, OpenConnection, Sandboxes, Spoken};
use crate::secrets::{SandboxSecrets, WholeBodies};
use crate::sniff::{FIRST_MESSAGE, SERVER_FIRST, Spoke, sniff};
use crate::splice::pass_both_ways;
use crate::tls::{Application, EndedTls, Roots};

/// Names of one address that are compared with the policy.
const MAX_PINS: usize = 256;

/// What all connections use.
pub(crate) struct Shared {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) dialer: Dialer,
    pub(crate) events: Arc<Events>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) destinations: Arc<dyn OriginalDestination>,
    /// Check the servers of TLS that is ended.
    pub(crate) roots: Roots,
    pub(crate) whole_bodies: WholeBodies,
}

impl Shared {
    /// Handles a redirected connection to its end.
    pub(crate) async fn handle(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let stream = ClientStream::new(stream);
        let Some(sandbox) = self.sandboxes.find(from.ip()) else {
            return;
        };
        let destination = match self.destinations.lookup(stream.stream()) {
            Ok(destination) => SocketAddr::new(destination.ip().to_canonical(), destination.port()),
            Err(error) => {
                tracing::debug!(%error, %from, "a connection was not redirected");
                return;
            }
        };
        // Made to the proxy itself, which would connect to itself.
        if stream.stream().local_addr().is_ok_and(|own| own == destination) {
            return;
        }
        let Some(open) = sandbox.open() else {
            let draft = Draft::new(sandbox.id(), Protocol::Tcp, destination.port());
            self.events.decided(&draft, &Decision::refused(Reason::TooMany));
            return;
        };
        let owner = self.owners.ask(&sandbox, SocketTransport::Tcp, from, Some(destination));
        let open = Arc::new(open);
        let connection = Connection { shared: self, open: open.clone(), destination, meter: Meter::new(), owner };
        tokio::select! {
            () = connection.run(stream) => {}
            // The streams reset as they are dropped.
            () = open.closed() => {}
        }
    }
}

pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) open: Arc<OpenConnection>,
    /// To where the client connected.
    pub(crate) destination: SocketAddr,
    pub(crate) meter: Arc<Meter>,
    pub(crate) owner: Arc<Owner>,
}

impl Connection {
    async fn run(self, mut stream: ClientStream) {
        let policy = self.open.sandbox.policy();
        let (address, port) = (self.destination.ip(), self.destination.port());
        if !policy.observes() {
            let decision = policy.decide(Target::Address(address), port, Seen::Tcp);
            // A denied address is denied by any name.
            if decision.allowed || decision.is_denied() {
                return self.to_address(stream, &[], None, Spoken::Tcp, Reason::NoRule).await;
            }
        }
        // What the resolver gave this address for, and may be spoken to without a name.
        let pinned = if policy.has_named_tcp(port) || policy.observes() {
            let names = self.open.sandbox.names_of(address);
            names.into_iter().take(MAX_PINS).find(|name| policy.decide(Target::Name(name), port, Seen::Tcp).allowed)
        } else {
            None
        };
        drop(policy);
        let postgres = self.postgres_hosts();
        // Clients of the web speak first, also slow ones.
        let server_may_speak = pinned.is_some() || self.observes();
        let patience =
            if server_may_speak && postgres.is_none() && !matches!(port, 80 | 443) { SERVER_FIRST } else { FIRST_MESSAGE };
        let mut first = Vec::new();
        let spoke = match sniff(stream.stream_mut(), &mut first, patience).await {
            Ok(spoke) => spoke,
            Err(error) => {
                tracing::trace!(%error, "a client left");
                return;
            }
        };
        match spoke {
            Spoke::Http => {
                let http = HttpConnection::new(self);
                http.serve(stream, first).await;
            }
            Spoke::Tls(ClientHello { server_name: Some(name), alpn, .. }) => {
                if self.open.sandbox.secrets().is_some_and(|secrets| secrets.leaks_in_name(&name)) {
                    return self.refuse(Protocol::Tls, None, &Decision::refused(Reason::SecretLeak)).await;
                }
                if alpn.iter().any(|protocol| protocol == Application::Postgres.alpn())
                    && let Some(secrets) = self.postgres_at(&name)
                {
                    let postgres = PostgresConnection::new(self, secrets, vec![name.into()]);
                    return Box::pin(postgres.serve(stream, first, true)).await;
                }
                match self.ended_tls(&name) {
                    // Its size is not for other connections.
                    Some(ended) => Box::pin(ended.serve(self, stream, first)).await,
                    None => self.to_name(stream, &first, name.into(), Spoken::Tls).await,
                }
            }
            Spoke::MalformedTls => self.refuse(Protocol::Tls, None, &Decision::refused(Reason::MalformedTls)).await,
            Spoke::Tls(_) => match pinned {
                Some(name) => self.to_name(stream, &first, name, Spoken::Tcp).await,
                None => self.to_address(stream, &first, None, Spoken::Tls, Reason::NoName).await,
            },
            Spoke::Other if postgres.is_some() && first.first() == Some(&FIRST_BYTE) => {
                if let Some((secrets, hosts)) = postgres {
                    let postgres = PostgresConnection::new(self, secrets, hosts);
                    Box::pin(postgres.serve(stream, first, false)).await;
                }
            }
            Spoke::Other | Spoke::Nothing => {
                let refusal = if spoke == Spoke::Nothing { Reason::Silent } else { Reason::UnknownProtocol };
                match pinned {
                    Some(name) => self.to_name(stream, &first, name, Spoken::Tcp).await,
                    None => self.to_address(stream, &first, None, Spoken::Tcp, refusal).await,
                }
            }
        }
    }

    /// Whether TLS to this name ends here: a secret is for it, and the policy allows it.
    fn ended_tls(&self, name: &str) -> Option<EndedTls> {
        let port = self.destination.port();
        let authority = self.open.sandbox.secrets()?.ends_tls(name, port)?;
        let decision = self.open.sandbox.policy().decide(Target::Name(name), port, Seen::EndedTls);
        decision.allowed.then(|| EndedTls { name: name.into(), authority, application: Application::Http })
    }

    /// The secrets, if one is for the password of Postgres at this host, and the policy allows it.
    fn postgres_at(&self, name: &str) -> Option<Arc<SandboxSecrets>> {
        let port = self.destination.port();
        let secrets = self.open.sandbox.secrets()?;
        secrets.ends_postgres(name, port)?;
        let decision = self.open.sandbox.policy().decide(Target::Name(name), port, Seen::Postgres);
        decision.allowed.then_some(secrets)
    }

    /// Such hosts, of the names that the resolver gave this address for.
    fn postgres_hosts(&self) -> Option<(Arc<SandboxSecrets>, Vec<Arc<str>>)> {
        let sandbox = &self.open.sandbox;
        let secrets = sandbox.secrets().filter(|secrets| secrets.has_postgres_port(self.destination.port()))?;
        let mut hosts = sandbox.names_of(self.destination.ip());
        hosts.truncate(MAX_PINS);
        hosts.retain(|name| self.postgres_at(name).is_some());
        (!hosts.is_empty()).then_some((secrets, hosts))
    }

    fn observes(&self) -> bool {
        self.open.sandbox.policy().observes()
    }

    /// Passes the connection on to the address that the client chose, if a rule has it. `name` is what it said about its server,
    /// and `no_rule` the reason if there is no rule.
    async fn to_address(&self, stream: ClientStream, first: &[u8], name: Option<&str>, spoken: Spoken, no_rule: Reason) {
        let admission = Admission { name: None, address: self.destination.ip(), port: self.destination.port(), spoken };
        let protocol = protocol(&admission.spoken);
        let mut decision = admission.decide(&self.open.sandbox.policy());
        if !decision.allowed {
            if decision.reason == Reason::NoRule {
                decision.reason = no_rule;
            }
            return self.refuse(protocol, name, &decision).await;
        }
        match self.shared.dialer.dial_address(self.destination).await {
            Ok(dialed) => self.pass(stream, first, name, dialed, admission).await,
            Err(reason) => self.refuse(protocol, name, &Decision { allowed: false, reason, ..decision }).await,
        }
    }

    async fn to_name(&self, stream: ClientStream, first: &[u8], name: Arc<str>, spoken: Spoken) {
        debug_assert!(normalize_name(&name).as_deref() == Ok(&*name), "names have one spelling");
        let protocol = protocol(&spoken);
        let port = self.destination.port();
        let seen = if spoken == Spoken::Tls { Seen::Tls } else { Seen::Tcp };
        let decision = self.open.sandbox.policy().decide(Target::Name(&name), port, seen);
        if decision.lacks_rule() {
            // A rule for TLS may have the address.
            return self.to_address(stream, first, Some(&name), spoken, decision.reason).await;
        }
        if !decision.allowed {
            return self.refuse(protocol, Some(&name), &decision).await;
        }
        match self.shared.dialer.dial_name(&self.open.sandbox, &name, self.destination, &spoken).await {
            Ok(dialed) => {
                let admission = Admission { name: Some(name.clone()), address: dialed.address, port, spoken };
                self.pass(stream, first, Some(&name), dialed, admission).await;
            }
            Err(refusal) => self.refuse(protocol, Some(&name), &refusal).await,
        }
    }

    async fn pass(&self, stream: ClientStream, first: &[u8], name: Option<&str>, upstream: Dialed, admission: Admission) {
        let draft = Draft { name, address: Some(upstream.address), ..self.draft(protocol(&admission.spoken)) };
        // The policy may be another one since the connection to the server was begun.
        let decision = self.open.admit(admission);
        self.shared.events.decided(&draft, &decision);
        if !decision.allowed {
            return;
        }
        let _end = EndEvent { connection: self, draft: &draft, decision: &decision };
        match pass_both_ways(stream.stream(), &upstream.stream, first, &self.meter).await {
            Ok(()) => {
                stream.end_orderly();
                reset_on_close(&upstream.stream, false);
            }
            Err(error) => tracing::trace!(%error, "a connection was cut off"),
        }
    }

    pub(crate) fn draft(&self, protocol: Protocol) -> Draft<'_> {
        let sandbox = self.open.sandbox.id();
        let draft = Draft::new(sandbox, protocol, self.destination.port());
        Draft { connection: Some(self.open.number), owner: Some(&self.owner), ..draft }
    }

    /// The client's stream resets as its owner drops it.
    pub(crate) async fn refuse(&self, protocol: Protocol, name: Option<&str>, decision: &Decision) {
        let address: Option<IpAddr> = Some(self.destination.ip());
        self.shared.events.decided(&Draft { name, address, ..self.draft(protocol) }, decision);
        self.owner.settle().await;
    }
}

/// Reports the end of a connection, also of one that is closed by a new policy.
pub(crate) struct EndEvent<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) draft: &'a Draft<'a>,
    pub(crate) decision: &'a Decision,
}

impl Drop for EndEvent<'_> {
    fn drop(&mut self) {
        self.connection.shared.events.ended(self.draft, self.decision, self.connection.meter.traffic());
    }
}

fn protocol(spoken: &Spoken) -> Protocol {
    match spoken {
        Spoken::Tls => Protocol::Tls,
        Spoken::Http { .. } => Protocol::Http,
        Spoken::Https { .. } => Protocol::Https,
        Spoken::Postgres => Protocol::Postgres,
        Spoken::Tcp => Protocol::Tcp,
        Spoken::Udp => Protocol::Udp,
    }
}
