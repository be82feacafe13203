//! Listeners and connections, and the graceful stop.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::Control;
use arenite_engine::descriptors::ran_out;
use arenite_synthesis::{Sandboxes, Setup, Synthesis, remove_plugins};
use arenite_trajectory::{Recorder, TrajectoryKey};
use axum::body::Body;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connections::Connection;
use crate::descriptors::{Lent, Shortage};
use crate::exchange::{self, Peer};
use crate::gateway::Gateway;
use crate::nodes::Peers;
use crate::tls::Certificates;
use crate::unread::{self, Lingering};
use crate::workers::WorkerSandboxes;
use crate::{GatewayConfig, inside, network_records, nodes, traces, webhooks};

/// Time for a request's head, and for the next request on a kept connection.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Largest request head, in bytes; a larger one is answered with 431. Also the most that is read at once.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// HTTP/2: concurrent calls on one connection.
const MAX_STREAMS: u32 = 256;
/// HTTP/2: unread bytes that may be in flight, of one stream and of all.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// HTTP/2: a peer that answers no ping for this time has left.
const PING: Duration = Duration::from_secs(30);
/// A connection that receives nothing for this time is probed, and closed if it answers no probe.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// Connections that wait in the kernel's accept queue of each address; the kernel's `somaxconn` may lower it.
const BACKLOG: i32 = 4096;
/// Time until other nodes know that this one stops.
const LEAVE: Duration = Duration::from_secs(5);
/// Pause before the next accept when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the gateway can't serve.
#[derive(Debug, Error)]
pub enum GatewayError {
    #[error("could not listen on {address}: {source}; is another server there? --listen names another address")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("a listening socket can't be used: {0}")]
    Socket(io::Error),
    #[error("there is no address to listen on; name one with --listen")]
    NoAddress,
    #[error("the workers can't begin: {0}")]
    Workers(String),
}

/// Serves until `stop`, then waits [`GatewayConfig::drain`] for requests to end, and cuts off the rest. The listeners' addresses
/// become [`GatewayConfig::listen`].
pub async fn serve(
    config: GatewayConfig,
    listeners: Vec<std::net::TcpListener>,
    control: Arc<Control>,
    recorder: Recorder,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), GatewayError> {
    Server::on(config, listeners, control, recorder).await?.run(stop).await;
    Ok(())
}

/// Listens on an address. Connections wait in the kernel's queue until a server accepts them.
pub fn listen_on(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A server that listens, but does not answer yet.
pub struct Server {
    gateway: Arc<Gateway>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl Server {
    /// Listens on all addresses of the configuration. Port 0 selects a free one.
    pub async fn bind(config: GatewayConfig, control: Arc<Control>, recorder: Recorder) -> Result<Self, GatewayError> {
        let listen = |&address: &SocketAddr| listen_on(address).map_err(|source| GatewayError::Listen { address, source });
        let listeners = config.listen.iter().map(listen).collect::<Result<_, _>>()?;
        Self::on(config, listeners, control, recorder).await
    }

    /// Uses sockets that already listen.
    pub async fn on(
        mut config: GatewayConfig,
        given: Vec<std::net::TcpListener>,
        control: Arc<Control>,
        recorder: Recorder,
    ) -> Result<Self, GatewayError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for listener in given {
            listener.set_nonblocking(true).map_err(GatewayError::Socket)?;
            let listener = TcpListener::from_std(listener).map_err(GatewayError::Socket)?;
            addresses.push(listener.local_addr().map_err(GatewayError::Socket)?);
            listeners.push(listener);
        }
        if listeners.is_empty() {
            return Err(GatewayError::NoAddress);
        }
        config.listen.clone_from(&addresses);
        let mut gateway = Gateway::new(config, control, recorder);
        if let Some(node) = &gateway.config.node {
            gateway.peers = Some(Peers::new(&node.keys, Arc::clone(&gateway.control)).map_err(GatewayError::Socket)?);
        }
        let gateway = Arc::new(gateway);
        start_workers(&gateway).await?;
        Ok(Self { gateway, listeners, addresses })
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { gateway, listeners, addresses } = self;
        gateway.tasks.spawn(inside::follow(Arc::clone(&gateway)));
        gateway.tasks.spawn(webhooks::run(Arc::clone(&gateway)));
        gateway.tasks.spawn(traces::run(Arc::clone(&gateway)));
        let expire = Arc::clone(&gateway);
        gateway.tasks.spawn(async move { expire.pools.expire(&expire.stopping).await });
        if let Some(synthesis) = gateway.synthesis.get() {
            gateway.tasks.spawn(Arc::clone(synthesis).run(gateway.stopping.clone()));
        }

        if let Some(certificates) = &gateway.config.tls {
            gateway.tasks.spawn(Arc::clone(certificates).follow(gateway.stopping.clone()));
        }

        if let Some(users) = gateway.config.auth.users() {
            gateway.tasks.spawn(Arc::clone(users).follow(gateway.stopping.clone()));
        }

        if let Some(archive) = gateway.config.archive.clone() {
            let (control, stopping) = (Arc::clone(&gateway.control), gateway.stopping.clone());
            let is_live = move |key: &TrajectoryKey| key.trajectory().parse().is_ok_and(|id| control.has_id(key.tenant(), &id));
            gateway.tasks.spawn(async move { stopping.run_until_cancelled(archive.run(is_live)).await });
        }

        // Takes ten milliseconds, which the first call of a sandbox would wait for otherwise.
        let described = Arc::clone(&gateway);
        gateway.tasks.spawn_blocking(move || drop(described.guest_routes().at("/")));
        if let Some(node) = &gateway.config.node {
            let listening = node.listener.try_clone().and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok((TcpListener::from_std(listener)?, arenite_channel::Acceptor::of_any(&node.keys)?))
            });
            match listening {
                Ok((listener, acceptor)) => {
                    drop(gateway.tasks.spawn(nodes::accept(Arc::clone(&gateway), listener, acceptor)));
                }
                Err(error) => tracing::error!(%error, "other nodes can't reach this one"),
            }
        }
        let mut accepting = JoinSet::new();
        for (listener, address) in listeners.into_iter().zip(addresses) {
            let is_plain = gateway.config.plain_listen == Some(address);
            let tls = gateway.config.tls.clone().filter(|_| !is_plain);
            accepting.spawn(accept(Arc::clone(&gateway), listener, tls));
        }
        tokio::select! {
            () = stop => {}
            () = gateway.shutdown.cancelled() => {}
        }
        // Before other nodes find this one closed.
        if tokio::time::timeout(LEAVE, gateway.control.announce_stop()).await.is_err() {
            tracing::warn!("the stop could not be noted in the cluster yet");
        }
        // Listeners close, so the kernel refuses new connections. Accepted connections are handed over.
        gateway.stopping.cancel();
        gateway.mcp.stop();
        let mut open: Vec<JoinSet<()>> = Vec::new();
        while let Some(ended) = accepting.join_next().await {
            open.extend(ended);
        }
        gateway.tasks.close();
        let drained = async {
            for connections in &mut open {
                while connections.join_next().await.is_some() {}
            }
            gateway.tasks.wait().await;
        };
        if tokio::time::timeout(gateway.config.drain, drained).await.is_err() {
            tracing::warn!("cutting off what is still under way after {:?}", gateway.config.drain);
        }
        gateway.cut.cancel();
        for connections in &mut open {
            connections.shutdown().await;
        }
        // Tunnels react to the cut, and write their outcomes.
        gateway.tasks.wait().await;
    }
}

/// Resumes the workers' sessions, and warms up what is configured.
async fn start_workers(gateway: &Arc<Gateway>) -> Result<(), GatewayError> {
    if let Some(events) = gateway.control.engine().network_events() {
        let (recording, stopping) = (network_records::record(Arc::clone(gateway), events), gateway.stopping.clone());
        gateway.tasks.spawn(async move { stopping.run_until_cancelled(recording).await });
    }
    let Some(workers) = gateway.config.workers.clone() else { return Ok(()) };
    let warmup = workers.warmup.clone();
    let sandboxes: Arc<dyn Sandboxes> = Arc::new(WorkerSandboxes::new(gateway));
    remove_plugins(&sandboxes).await;
    let starting = workers.parts.into_iter().map(|part| part.start(&sandboxes));
    let mut backends = Vec::new();
    for started in futures_util::future::join_all(starting).await {
        match started {
            Ok(backend) => backends.push(backend),
            Err(error) => tracing::warn!("{error}"),
        }
    }
    let setup = Setup {
        dir: workers.dir,
        recorder: gateway.recorder.clone(),
        sandboxes,
        backends,
        session_ttl: workers.session_ttl,
        sandbox_request: workers.sandbox_request,
    };
    let synthesis = Synthesis::start(setup).map_err(GatewayError::Workers)?;
    // Backends that discover their tools do so in the background, and lists of tools name failures.
    let warmup: Vec<String> = warmup.into_iter().filter(|name| !synthesis.discovers(name)).collect();
    if !warmup.is_empty() {
        for (name, warmed) in synthesis.warm_up(Some(&warmup)).await {
            warmed.map_err(|error| GatewayError::Workers(format!("{name}: {error}")))?;
        }
    }
    let (discovering, stopping) = (Arc::clone(&synthesis), gateway.stopping.clone());
    gateway.tasks.spawn(async move { stopping.run_until_cancelled(discovering.discover()).await });
    // It is set only here.
    let _ = gateway.synthesis.set(synthesis);
    Ok(())
}

/// Accepts until the stop, and returns the connections that are open then.
async fn accept(gateway: Arc<Gateway>, listener: TcpListener, tls: Option<Arc<Certificates>>) -> JoinSet<()> {
    let mut open = JoinSet::new();
    let acceptor = Acceptor { builder: builder(), tls };
    loop {
        // Ended connections are removed.
        while open.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gateway.stopping.cancelled() => return open,
        };
        match accepted {
            Ok((stream, peer)) => {
                let shortage = gateway.descriptors.shortage();
                acceptor.connect(&gateway, &mut open, stream, peer, shortage, None);
            }
            Err(error) if is_of_one_connection(&error) => tracing::debug!(%error, "a connection could not be accepted"),
            Err(error) if ran_out(&error) => {
                if let Some((lent, shortage)) = gateway.descriptors.lend()
                    && let Ok(Ok((stream, peer))) = tokio::time::timeout(ACCEPT_PAUSE, listener.accept()).await
                {
                    acceptor.connect(&gateway, &mut open, stream, peer, Some(shortage), Some(lent));
                    continue;
                }
                gateway.connections.evict_oldest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                gateway.connections.evict_oldest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the peer left before the accept; the listener still works.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

/// What a listener does with its connections.
struct Acceptor {
    builder: auto::Builder<TokioExecutor>,
    /// None: without TLS.
    tls: Option<Arc<Certificates>>,
}

impl Acceptor {
    fn connect(
        &self,
        gateway: &Arc<Gateway>,
        open: &mut JoinSet<()>,
        stream: TcpStream,
        peer: SocketAddr,
        shortage: Option<Shortage>,
        lent: Option<Lent>,
    ) {
        // Small answers must not wait for acknowledgements. A client that vanished must not keep its slot forever, because a
        // WebSocket may be silent for long. On a connection that is already closed, later calls fail anyway.
        let _ = stream.set_nodelay(true);
        let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&probes);
        let address = peer.ip().to_canonical();
        let is_proxy = gateway.config.trusted_proxies.contains(&address);
        let entered = gateway.connections.enter((!is_proxy).then_some(address), shortage, lent);
        let (shared, of_calls) = (Arc::clone(gateway), Arc::clone(&entered));
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let service = service_fn(move |mut request: Request<Incoming>| {
            let gateway = Arc::clone(&shared);
            let call = of_calls.begin();
            // A WebSocket outlives the task that serves the connection.
            request.extensions_mut().insert(Arc::clone(&of_calls));
            let entered = Arc::clone(&of_calls);
            let is_http1 = request.version() <= Version::HTTP_11;
            // A client that waits for `100 Continue` sends its body only when it is read.
            let is_waiting = request.headers().contains_key(EXPECT);
            async move {
                let (head, body) = request.into_parts();
                let (body, unread) = if is_http1 { unread::follow(body) } else { (Body::new(body), None) };
                let mut answer = exchange::answer(gateway, Peer { address, scheme }, Request::from_parts(head, body)).await;
                let is_read = match unread {
                    Some(_) if is_waiting => false,
                    Some(unread) => unread.finish().await,
                    None => true,
                };
                let is_upgrade = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
                if is_http1 && !is_upgrade && (!is_read || entered.is_for_one_call()) {
                    if !is_read {
                        entered.linger();
                    }
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer.map(|body| call.until_sent(body)))
            }
        });
        let stopping = gateway.stopping.clone();
        let builder = self.builder.clone();
        let tls = self.tls.clone();
        open.spawn(async move {
            let ended = match tls {
                None => drive(&builder, stream, service, entered, stopping).await,
                Some(certificates) => match entered.handshake(certificates.accept(stream), &stopping).await {
                    Ok(stream) => drive(&builder, stream, service, entered, stopping).await,
                    Err(error) => Err(error.into()),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, error, "a connection ended early");
            }
        });
    }
}

type Driven = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

/// Serves a connection to its end. It is boxed because the compiler can't prove that the service's type is `Send` inside a future
/// that has waited for a handshake.
fn drive<I, S>(
    builder: &auto::Builder<TokioExecutor>,
    stream: I,
    service: S,
    entered: Arc<Connection>,
    stopping: CancellationToken,
) -> Driven
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let stream = Lingering::new(stream, Arc::clone(&entered));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    Box::pin(async move { entered.drive(connection, &stopping).await })
}
