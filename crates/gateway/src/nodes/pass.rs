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
use arenite_control::tenants::Principal;
use arenite_model::{ErrorCode, NodeName};
use axum::body::Body;
use http::header::{CONNECTION, HeaderName, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::auth::{Credential, Identity};
use crate::exchange::Exchange;
use crate::guard::{Host, HostKind};
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef, named};

use super::trajectories::{self, Whereabouts};

/// What a node says of a request that it passes on, as JSON.
pub(super) const NODE: HeaderName = HeaderName::from_static("x-arenite-node");
/// Time to connect to a node and to prove both keys.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an idle connection to a node is kept.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections to each node.
const MAX_IDLE: usize = 64;
/// Routes about credentials of the node that a client calls.
const HERE: [&str; 2] = ["/tickets", "/auth"];
/// Paths that create sandboxes.
const CREATES: [&str; 2] = ["/api/v2/sandboxes", "/api/v1/sandbox"];

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
}

impl Passed {
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
}

impl Peers {
    pub(crate) fn new(keys: &Keys, control: Arc<Control>) -> io::Result<Self> {
        let dialer = Dialer { connector: Connector::new(keys)?, control };
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(MAX_IDLE);
        Ok(Self { client: client.build(dialer), whereabouts: Whereabouts::default() })
    }

    /// Sends a request to the node that its URI names.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, String> {
        self.client.request(request).await.map_err(|error| with_cause(&error))
    }
}

/// Connects to nodes by name.
#[derive(Clone)]
struct Dialer {
    connector: Connector,
    control: Arc<Control>,
}

impl Dialer {
    async fn dial(self, name: &str) -> io::Result<NodeStream> {
        match self.dial_known(name).await {
            Ok(stream) => Ok(stream),
            Err(_) => {
                // It may be back, or have moved.
                self.control.read_peers().await;
                self.dial_known(name).await
            }
        }
    }

    async fn dial_known(&self, name: &str) -> io::Result<NodeStream> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "it is not up");
        let node = name.parse().ok().and_then(|name| self.control.peer(&name)).ok_or_else(unknown)?;
        let address = node.facts.address.as_deref().ok_or_else(unknown)?;
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let key = node.key.parse().map_err(io::Error::other)?;
            Ok::<_, io::Error>(NodeStream(self.connector.connect(stream, Some(&key)).await?.0))
        };
        timeout(CONNECT_LIMIT, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
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
        Box::pin(async move { dialer.dial(uri.host().unwrap_or_default()).await.map(TokioIo::new) })
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
    let Some(peers) = &gateway.peers else { return Ok(None) };
    if exchange.passed().is_some() || HERE.contains(&exchange.route.pattern) {
        return Ok(None);
    }
    if trajectories::are_wanted(exchange) {
        return trajectories::pass_on(exchange, peers).await;
    }
    let sandbox = sandbox_of(exchange);
    let node = match &sandbox {
        Some(sandbox) => gateway.control.owner(exchange.context.tenant(), sandbox.key()).await?,
        None if exchange.parts.method == Method::POST && CREATES.contains(&exchange.path.decoded.as_str()) => {
            // An agent's children are made beside it.
            let key = exchange.parts.headers.get("idempotency-key").and_then(|key| key.to_str().ok());
            if exchange.context.principal.inside.is_some() { None } else { gateway.control.place(key) }
        }
        None => None,
    };
    let Some(node) = node else { return Ok(None) };
    let answer = send(exchange, peers, &node).await?;
    if let Some(sandbox) = sandbox.filter(|_| answer.status() == StatusCode::NOT_FOUND) {
        gateway.control.forget_owner(exchange.context.tenant(), &sandbox.key());
    }
    Ok(Some(answer))
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
    let is_below = exchange.host.kind != HostKind::Server || exchange.path.decoded.starts_with("/sandbox/");
    if is_below || exchange.route.runs_in_sandbox {
        return Some(exchange.target().ok()?.sandbox_ref);
    }
    exchange.parts.headers.contains_key(target::HEADER).then(|| named(&exchange.parts.headers).ok()).flatten()
}

/// A request to a node for the client of an exchange.
pub(super) fn request(
    exchange: &Exchange,
    node: &NodeName,
    method: Method,
    path: &str,
    body: Body,
) -> Result<Request<Body>, Refusal> {
    let passed = Passed {
        principal: Principal::clone(&exchange.context.principal),
        shown: exchange.caller.shown,
        by_ticket: exchange.caller.by_ticket,
        host: exchange.host.clone(),
        client: exchange.client,
        is_https: exchange.context.outer_origin().starts_with("https:"),
        prefix: exchange.context.outer_path().to_owned(),
    };
    let passed = serde_json::to_string(&passed).ok().and_then(|text| HeaderValue::try_from(text).ok());
    let passed = passed.ok_or_else(|| Refusal::new(ErrorCode::Internal, "the request can't be described for its node"))?;
    let uri: Uri = format!("http://{node}{path}").parse().map_err(|_| Refusal::bad_request("the path can't be read"))?;
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    if let Ok(host) = HeaderValue::try_from(exchange.host.authority.as_str()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request.headers_mut().insert(NODE, passed);
    Ok(request)
}

pub(super) async fn send(exchange: &mut Exchange, peers: &Peers, node: &NodeName) -> Result<Response<Body>, Refusal> {
    let client = exchange.parts.extensions.remove::<OnUpgrade>();
    let path = exchange.parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let body = exchange.take_body();
    let mut request = request(exchange, node, exchange.parts.method.clone(), &path, body)?;
    let own = std::mem::replace(request.headers_mut(), exchange.parts.headers.clone());
    let headers = request.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    if client.is_none() {
        headers.remove(CONNECTION);
    }
    for (name, value) in &own {
        headers.insert(name, value.clone());
    }
    let mut answer = peers.send(request).await.map_err(|why| {
        tracing::warn!(%node, why, "a request could not be passed on");
        Refusal::new(ErrorCode::SandboxFailed, format!("the node {node} does not answer"))
            .hint("the node is down or unreachable: arenite node ls shows its state")
    })?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let owner = hyper::upgrade::on(&mut answer);
        let cut = exchange.gateway.cut.clone();
        exchange.gateway.tasks.spawn(async move { cut.run_until_cancelled(tunnel(client, owner)).await });
        return Ok(answer.map(|_| Body::empty()));
    }
    let mut answer = answer.map(Body::new);
    answer.headers_mut().remove(CONNECTION);
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer)
}

async fn tunnel(client: OnUpgrade, owner: OnUpgrade) {
    let (Ok(client), Ok(owner)) = (client.await, owner.await) else { return };
    // Either end may leave without closing.
    let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(owner)).await;
}

fn with_cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
