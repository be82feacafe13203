//! The process: listeners, and the tasks for what they accept.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::accept::next_connection;
use crate::closed::ClosedRanges;
use crate::connection::Shared;
use crate::control::{ANSWERS, Queues, follow, report};
use crate::dial::Dialer;
use crate::dns::{DnsServer, Lookup, PolicedAnswers, Resolvers};
use crate::error::EgressError;
use crate::events::Events;
use crate::original::OriginalDestination;
use crate::owner::Owners;
use crate::sandbox::Sandboxes;
use crate::secrets::WholeBodies;
use crate::tls::Roots;
use crate::udp::{Relay, UdpSockets};

/// Maximum number of connections of all sandboxes.
const MAX_CONNECTIONS: usize = 16_384;
/// Descriptors for queries, flows of UDP, and the process itself.
const RESERVED_DESCRIPTORS: u64 = 10_240;
/// Each connection has one to the client and one to the server.
const DESCRIPTORS: u64 = 2;

/// What the proxy needs of the host.
pub struct EgressConfig {
    /// To which TCP of sandboxes is redirected.
    pub tcp: StdTcpListener,
    /// To which DNS of sandboxes is redirected, by UDP and TCP.
    pub dns_udp: StdUdpSocket,
    pub dns_tcp: StdTcpListener,
    /// None: UDP is not redirected, so none passes.
    pub udp: Option<UdpConfig>,
    pub closed: ClosedRanges,
    /// None: the host's, read again when they change.
    pub resolvers: Option<Vec<SocketAddr>>,
    /// [`Conntrack`](crate::Conntrack), except in tests.
    pub destinations: Arc<dyn OriginalDestination>,
    /// Trusted for servers of TLS that is ended here, beside the host's certificates.
    pub roots: Vec<CertificateDer<'static>>,
}

/// To where UDP is redirected.
pub struct UdpConfig {
    pub redirected: StdUdpSocket,
    pub sockets: Arc<dyn UdpSockets>,
}

/// Serves sandboxes until the server ends: `input` has its messages, and `output` gets events and answers. All connections end
/// with it.
pub async fn serve(
    config: EgressConfig,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Result<(), EgressError> {
    // Values of secrets are in its memory: no other process of its user may read them, and no core dump has them.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the process's memory can be read by its user");
    }
    let EgressConfig { tcp, dns_udp, dns_tcp, udp, closed, resolvers, destinations, roots } = config;
    let listen = |what| move |source| EgressError::Listen { what, source };
    let tcp = tcp_listener(tcp).map_err(listen("accept connections"))?;
    let dns_tcp = tcp_listener(dns_tcp).map_err(listen("accept connections for names"))?;
    let dns_udp = udp_socket(dns_udp).map_err(listen("receive queries"))?;

    let sandboxes = Arc::new(Sandboxes::default());
    let (events, queue) = Events::channel();
    let (owners, questions) = Owners::channel(events.clone());
    let lookup = Arc::new(Lookup::new(Resolvers::new(resolvers), Arc::new(closed)));
    let answers =
        PolicedAnswers { sandboxes: sandboxes.clone(), lookup: lookup.clone(), events: events.clone(), owners: owners.clone() };
    let dns = DnsServer::start(dns_udp, dns_tcp, Arc::new(answers));
    let shared = Arc::new(Shared {
        sandboxes: sandboxes.clone(),
        dialer: Dialer::new(lookup),
        events: events.clone(),
        owners: owners.clone(),
        destinations,
        roots: Roots::new(roots),
        whole_bodies: WholeBodies::default(),
    });

    let udp = match udp {
        Some(UdpConfig { redirected, sockets }) => {
            let redirected = udp_socket(redirected).map_err(listen("receive datagrams"))?;
            Some(Relay::new(shared.clone(), sockets).serve(redirected))
        }
        None => None,
    };
    let (answer, answers) = mpsc::channel(ANSWERS);
    let result = tokio::select! {
        result = follow(input, &sandboxes, &owners, answer) => result,
        () = report(output, events, Queues { answers, questions, events: queue }) => Ok(()),
        () = accept(tcp, shared) => Ok(()),
        () = run_or_wait(udp) => Ok(()),
    };
    dns.stop().await;
    result
}

async fn run_or_wait(task: Option<impl Future<Output = ()>>) {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// Never ends. The connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(connection_limit()));
    let mut running = JoinSet::new();
    loop {
        let (stream, from) = next_connection(&listener, &mut running).await;
        match permits.clone().try_acquire_owned() {
            Ok(permit) => {
                let shared = shared.clone();
                running.spawn(async move {
                    let _permit = permit;
                    shared.handle(stream, from).await;
                });
            }
            Err(_) => refuse(&stream, from),
        }
    }
}

fn refuse(stream: &TcpStream, from: SocketAddr) {
    tracing::debug!(%from, "too many connections");
    crate::client::reset_on_close(stream, true);
}

/// What the process's descriptors allow, up to the limit.
fn connection_limit() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let reserved = RESERVED_DESCRIPTORS.min(descriptors / 2);
    usize::try_from((descriptors - reserved) / DESCRIPTORS).unwrap_or(usize::MAX).min(MAX_CONNECTIONS)
}

fn tcp_listener(listener: StdTcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn udp_socket(socket: StdUdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
