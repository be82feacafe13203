//! Passes requests on to the node that owns their sandbox, or that shall create one.
//!
//! ```text
//!  client ──► this node: host, origin, caller, rights ──TLS, both keys──► the owner: the rest of the request, and its step
//! ```
//!
//! The owner trusts what this node found out about the client. It never passes a request on again.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arenite_channel::{Connector, Identity as Keys};
use arenite_control::Control;
use arenite_control::nodes::RESTART;
use arenite_control::tenants::Principal;
use arenite_model::{ErrorCode, NodeName, with_sources};
use axum::body::Body;
use http::header::{CONNECTION, HeaderName, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::create;
use crate::auth::{Credential, Identity};
use crate::dialect::agentflow;
use crate::exchange::Exchange;
use crate::gateway::Gateway;
use crate::guard::{Host, HostKind};
use crate::models;
use crate::proxy;
use crate::refusal::Refusal;
use crate::snapshots;
use crate::target::{self, SandboxRef, named};
use crate::volumes;

use super::states::Transfers;
use super::trajectories::{self, Whereabouts};

/// What a node says of a request that it passes on, as JSON.
pub(super) const NODE: HeaderName = HeaderName::from_static("x-arenite-node");
/// The number of sandboxes of the node that answers.
pub(super) const SANDBOXES: HeaderName = HeaderName::from_static("x-arenite-node-sandboxes");
/// Time to connect to a node and to prove both keys.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Interval of probes of an idle connection: the node's host may be gone.
const KEEPALIVE: Duration = Duration::from_secs(4);
/// What the dialer does if it can't connect, as a port in the address of a request: nodes are addressed by name.
const ONCE: u16 = 1;
const WAIT: u16 = 2;
/// Pause between attempts to connect.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an idle connection to a node is kept.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections to each node.
const MAX_IDLE: usize = 64;
/// Routes about credentials of the node that a client calls.
const HERE: [&str; 2] = ["/tickets", "/auth"];
/// Routes that any node answers from the database, if the sandbox's node does not run.
const OF_ROWS: [&str; 2] = ["/api/v2/sandboxes/{name}", "/api/v1/sandbox/{name}"];
/// Longest name of a worker that has a node of the cluster, in bytes. Others are the node's that the client calls.
const MAX_WORKER: usize = 256;

/// A request that another node has passed on: what that node found out about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) principal: Principal,
    pub(crate) shown: Credential,
    pub(crate) by_ticket: bool,
    pub(crate) host: Host,
    pub(crate) client: IpAddr,
    pub(crate) is_https: bool,
    /// The path under which a trusted proxy serves the cluster.
    pub(crate) prefix: String,
    /// The create has an idempotency key that this node has begun.
    #[serde(default)]
    pub(crate) is_repeat: bool,
    /// A call of a tool of MCP.
    #[serde(default)]
    pub(crate) is_mcp: bool,
}

impl Passed {
    pub(super) fn from_exchange(exchange: &Exchange) -> Self {
        Self {
            principal: Principal::clone(&exchange.context.principal),
            shown: exchange.caller.shown,
            by_ticket: exchange.caller.by_ticket,
            host: exchange.host.clone(),
            client: exchange.client,
            is_https: exchange.context.outer_origin().starts_with("https:"),
            prefix: exchange.context.outer_path().to_owned(),
            is_repeat: false,
            is_mcp: false,
        }
    }

    pub(crate) fn caller(&self) -> Identity {
        Identity { principal: Arc::new(self.principal.clone()), until: None, shown: self.shown, by_ticket: self.by_ticket }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }
}

/// Connections to the other nodes.
pub(crate) struct Peers {
    client: Client<Dialer, Body>,
    pub(super) whereabouts: Whereabouts,
    pub(super) transfers: Transfers,
}

impl Peers {
    pub(crate) fn new(keys: &Keys, control: Arc<Control>) -> io::Result<Self> {
        let dialer = Dialer { connector: Connector::new(keys)?, control };
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(MAX_IDLE);
        Ok(Self { client: client.build(dialer), whereabouts: Whereabouts::default(), transfers: Transfers::default() })
    }
}

/// Connects to nodes by name.
#[derive(Clone)]
struct Dialer {
    connector: Connector,
    control: Arc<Control>,
}

impl Dialer {
    async fn dial(self, name: &str, attempt: u16) -> io::Result<NodeStream> {
        let begun = Instant::now();
        loop {
            match self.dial_known(name).await {
                Ok(stream) => return Ok(stream),
                // It may restart, or have moved.
                Err(_) if attempt == WAIT && begun.elapsed() < RESTART && self.may_answer(name) => again(&self.control).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn may_answer(&self, name: &str) -> bool {
        name.parse().is_ok_and(|name| self.control.may_answer(&name))
    }

    async fn dial_known(&self, name: &str) -> io::Result<NodeStream> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "it is not up");
        let node = name.parse().ok().and_then(|name| self.control.peer(&name)).ok_or_else(unknown)?;
        let address = node.facts.address.as_deref().ok_or_else(unknown)?;
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let socket = SockRef::from(&stream);
            let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
            socket.set_tcp_keepalive(&probes)?;
            socket.set_tcp_user_timeout(Some(RESTART))?;
            let key = node.key.parse().map_err(io::Error::other)?;
            Ok::<_, io::Error>(NodeStream(self.connector.connect(stream, Some(&key)).await?.0))
        };
        timeout(CONNECT_LIMIT, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Waits before the next attempt to reach a node.
async fn again(control: &Control) {
    tokio::time::sleep(AGAIN).await;
    control.read_peers().await;
}

/// Waits for a node that stops and may start again. It still answers on the connections that are open, but it closes them when it
/// has told the other nodes, and a request must not be on its way then.
async fn until_up(control: &Control, node: &NodeName) {
    let begun = Instant::now();
    while control.peer(node).is_none() && control.may_answer(node) && begun.elapsed() < RESTART {
        again(control).await;
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<NodeStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<NodeStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(
            async move { dialer.dial(uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(ONCE)).await.map(TokioIo::new) },
        )
    }
}

/// A connection to a node.
struct NodeStream(TlsStream<TcpStream>);

impl Connection for NodeStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The answer of the node that a request is for. None: it is this one.
pub(crate) async fn pass_on(exchange: &mut Exchange) -> Result<Option<Response<Body>>, Refusal> {
    let gateway = Arc::clone(&exchange.gateway);
    if gateway.peers.is_none() {
        return Ok(None);
    }
    if exchange.passed().is_some() {
        return Ok(create::refuse_placed(exchange));
    }
    if HERE.contains(&exchange.route.pattern) {
        return Ok(None);
    }
    // An agent's calls belong to its own sandbox, which is here.
    if exchange.context.principal.inside.is_some() && models::is_call(&exchange.path.decoded) {
        return Ok(None);
    }
    if trajectories::are_wanted(exchange) {
        return trajectories::pass_on(exchange).await;
    }
    if let Some(node) = volumes::other_node(exchange).await? {
        return pass(exchange, &node).await.map(Some);
    }
    if let Some(node) = snapshots::other_node(exchange).await? {
        return match pass(exchange, &node).await {
            // It was given up meanwhile, so this node removes the snapshot.
            Err(_) if exchange.parts.method == Method::DELETE && !gateway.control.may_answer(&node) => Ok(None),
            answer => answer.map(Some),
        };
    }
    let Some(sandbox) = sandbox_of(exchange) else {
        // An agent's children are made beside it.
        if create::is_create(exchange) && exchange.context.principal.inside.is_none() {
            return create::place(exchange).await;
        }
        let Some(worker) = worker_of(exchange).await? else { return Ok(None) };
        let node = gateway.control.node_of_worker(exchange.context.tenant(), &worker).await?;
        return match node {
            Some(node) => pass(exchange, &node).await.map(Some),
            None => Ok(None),
        };
    };
    let Some(node) = gateway.control.owner(exchange.context.tenant(), sandbox.key()).await? else {
        return if sandbox.is_default() { create::place_default(exchange, &sandbox).await } else { Ok(None) };
    };
    if !gateway.control.may_answer(&node) {
        // It may be back.
        gateway.control.read_peers().await;
    }
    let is_of_row = OF_ROWS.contains(&exchange.route.pattern) && matches!(exchange.parts.method, Method::GET | Method::DELETE);
    if is_of_row && !gateway.control.may_answer(&node) {
        return Ok(None);
    }
    let answer = match pass(exchange, &node).await {
        Err(_) if is_of_row => return Ok(None),
        answer => answer?,
    };
    if answer.status() == StatusCode::NOT_FOUND {
        gateway.control.forget_owner(exchange.context.tenant(), &sandbox.key());
    }
    Ok(Some(answer))
}

/// The answer of a node to the request.
pub(super) async fn pass(exchange: &mut Exchange, node: &NodeName) -> Result<Response<Body>, Refusal> {
    let body = exchange.take_body();
    Ok(send(exchange, node, body, Attempt::Wait).await?)
}

/// The worker of AgentFlow that a request names.
async fn worker_of(exchange: &mut Exchange) -> Result<Option<String>, Refusal> {
    #[derive(Deserialize)]
    struct Named {
        worker_id: Option<String>,
    }
    if let Some(worker) = models::worker_in_path(&exchange.path.decoded, &exchange.parts.headers) {
        return Ok(Some(worker.to_owned()).filter(|worker| is_worker(worker)));
    }
    if !exchange.route.surface.is_agentflow || exchange.parts.method != Method::POST {
        return Ok(None);
    }
    let body = exchange.take_body();
    let (bytes, permit) = proxy::read_whole(&exchange.gateway, &exchange.parts, body).await?;
    let named = serde_json::from_slice::<Named>(&bytes).ok().and_then(|named| named.worker_id);
    exchange.put_body(bytes);
    // The next reader takes another.
    drop(permit);
    let header = exchange.parts.headers.get(agentflow::WORKER).and_then(|worker| worker.to_str().ok());
    Ok(named.or_else(|| header.map(str::to_owned)).filter(|worker| is_worker(worker)))
}

/// Whether the database can have its name.
fn is_worker(name: &str) -> bool {
    (1..=MAX_WORKER).contains(&name.len()) && !name.contains('\0')
}

/// The sandbox that a request names, or that calls without a name are for.
fn sandbox_of(exchange: &Exchange) -> Option<SandboxRef> {
    if let Some(preview) = exchange.preview() {
        return Some(preview.sandbox_ref.clone());
    }
    let name = exchange.param("name");
    if !name.is_empty() && exchange.route.pattern.contains("/sandbox") {
        return Some(SandboxRef::Name(name.parse().ok()?));
    }
    if let Some(named) = models::sandbox_in_path(&exchange.path.decoded) {
        return Some(named);
    }
    let is_below = exchange.host.kind != HostKind::Server || exchange.path.decoded.starts_with("/sandbox/");
    if is_below || exchange.route.runs_in_sandbox {
        return Some(exchange.target().ok()?.sandbox_ref);
    }
    exchange.parts.headers.contains_key(target::HEADER).then(|| named(&exchange.parts.headers).ok()).flatten()
}

/// Why a request got no answer.
pub(super) enum Unsent {
    /// The node has nothing of it.
    NotConnected(Refusal),
    /// The node may have carried it out.
    BrokenOff(Refusal),
    /// It can't be passed on.
    Refused(Refusal),
}

impl From<Unsent> for Refusal {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::NotConnected(refusal) | Unsent::BrokenOff(refusal) | Unsent::Refused(refusal) => refusal,
        }
    }
}

/// How a request is sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Waits for a node that restarts.
    Wait,
    /// The same for a create: see [`Passed::is_repeat`].
    Repeat,
    /// Another node can do it.
    Once,
}

/// Sends a request to a node, with this body.
pub(super) async fn send(
    exchange: &mut Exchange,
    node: &NodeName,
    body: Body,
    attempt: Attempt,
) -> Result<Response<Body>, Unsent> {
    let passed = Passed { is_repeat: attempt == Attempt::Repeat, ..Passed::from_exchange(exchange) };
    let client = exchange.parts.extensions.remove::<OnUpgrade>();
    let mut request = Request::new(body);
    *request.method_mut() = exchange.parts.method.clone();
    *request.uri_mut() = exchange.parts.uri.clone();
    *request.headers_mut() = exchange.parts.headers.clone();
    request.headers_mut().remove(TRANSFER_ENCODING);
    if client.is_none() {
        request.headers_mut().remove(CONNECTION);
    }
    let mut answer = send_to(&exchange.gateway, node, &passed, request, attempt).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let owner = hyper::upgrade::on(&mut answer);
        let cut = exchange.gateway.cut.clone();
        exchange.gateway.tasks.spawn(async move { cut.run_until_cancelled(tunnel(client, owner)).await });
        return Ok(answer.map(|_| Body::empty()));
    }
    answer.headers_mut().remove(CONNECTION);
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer)
}

/// Sends a request to a node, for the caller that `passed` describes.
pub(super) async fn send_to(
    gateway: &Gateway,
    node: &NodeName,
    passed: &Passed,
    mut request: Request<Body>,
    attempt: Attempt,
) -> Result<Response<Body>, Unsent> {
    let unreachable = |why: &dyn std::fmt::Display| {
        tracing::warn!(%node, %why, "a request could not be passed on");
        Refusal::new(ErrorCode::SandboxFailed, format!("the node {node} does not answer"))
            .hint("the sandbox's node is down or unreachable: arenite node ls shows its state")
    };
    let peers = gateway.peers.as_ref().ok_or_else(|| Unsent::NotConnected(unreachable(&"this server is no node")))?;
    let said = serde_json::to_string(passed).ok().and_then(|text| HeaderValue::try_from(text).ok());
    let internal = || Unsent::Refused(Refusal::new(ErrorCode::Internal, "the request can't be described for its node"));
    let said = said.ok_or_else(internal)?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let port = if attempt == Attempt::Once { ONCE } else { WAIT };
    let unreadable = |_| Unsent::Refused(Refusal::bad_request("the path can't be read"));
    *request.uri_mut() = format!("http://{node}:{port}{path}").parse().map_err(unreadable)?;
    if let Ok(host) = HeaderValue::try_from(passed.host.authority.as_str()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request.headers_mut().insert(NODE, said);
    if attempt != Attempt::Once {
        until_up(&gateway.control, node).await;
    }
    tokio::select! {
        answered = peers.client.request(request) => match answered {
            Ok(mut answer) => {
                let count = answer.headers_mut().remove(SANDBOXES);
                if let Some(count) = count.and_then(|count| count.to_str().ok()?.parse().ok()) {
                    gateway.control.count_sandboxes(node, count);
                }
                Ok(answer.map(Body::new))
            }
            Err(error) if error.is_connect() => Err(Unsent::NotConnected(unreachable(&with_sources(&error)))),
            Err(error) => Err(Unsent::BrokenOff(unreachable(&with_sources(&error)))),
        },
        // One that hangs keeps its connections.
        () = gateway.control.until_lost(node) => Err(Unsent::BrokenOff(unreachable(&"it was given up"))),
    }
}

async fn tunnel(client: OnUpgrade, owner: OnUpgrade) {
    let (Ok(client), Ok(owner)) = (client.await, owner.await) else { return };
    // Either end may leave without closing.
    let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(owner)).await;
}
