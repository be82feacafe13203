//! One HTTP/1.1 connection to a guest.
//!
//! It has no separate task: the caller that waits for the answer, or reads its body, drives it. So a call costs no hand-over
//! between threads, and dropping the answer drops the connection: the guest learns at once that the client has left.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use arenite_engine::Connection;
use arenite_model::protocol::{
    PORT_UPGRADE, PORTS_PATH, SERVER_CALLS_PATH, SERVER_CALLS_UPGRADE, SSH_AGENT_PATH, SSH_AGENT_UPGRADE, VERSION, VERSION_HEADER,
};
use arenite_model::{ErrorCode, SandboxId};
use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::gateway::Gateway;
use crate::refusal::Refusal;

use super::outgoing::Outgoing;
use super::wire::{Watch, Wire};
use super::{silent, unreachable};

/// Largest head of an answer, and largest piece of its body, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// The engine's listener exists before the guest, so a dial that waits long waits for a full queue.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// Time for the guest to connect to a port, including its own limit.
const PORT_LIMIT: Duration = Duration::from_secs(10);

/// A call of a port without an answer.
pub(crate) struct PortFailure {
    pub(crate) refusal: Refusal,
    /// The program is the cause: a person sees a page about it.
    pub(super) of_program: bool,
    /// No program listens on the port, so nothing was sent.
    pub(crate) nothing_listens: bool,
}

impl PortFailure {
    pub(super) fn of_program(refusal: Refusal) -> Self {
        Self { refusal, of_program: true, nothing_listens: false }
    }
}

impl From<Refusal> for PortFailure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, of_program: false, nothing_listens: false }
    }
}

/// What the server answers processes inside a sandbox that connect to it by the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// Calls of an agent with a token.
    Calls,
    SshAgent,
}

pub(crate) struct Link {
    sender: http1::SendRequest<Outgoing>,
    connection: http1::Connection<TokioIo<Wire>, Outgoing>,
    watch: Arc<Watch>,
    /// The connection has ended; it must not be polled again.
    over: bool,
    /// It has served a call before.
    used: bool,
    /// It leads to the guest itself, and not to a port in its sandbox.
    to_guest: bool,
}

/// A failed call, and why it has no answer.
pub(super) struct NoAnswer {
    pub(super) error: hyper::Error,
    /// The request, if no part of it was sent.
    pub(super) unsent: Option<Request<Outgoing>>,
    /// No answer arrived, so a repeatable call can be repeated.
    pub(super) silent: bool,
    /// The guest did not receive the whole request, so it can't have acted on it.
    pub(super) not_taken: bool,
    pub(super) flooded: bool,
    /// The connection had served a call before.
    pub(super) reused: bool,
}

impl Link {
    pub(super) async fn open(gateway: &Gateway, id: &SandboxId) -> Result<Self, Refusal> {
        gateway.metrics.guest_dials.fetch_add(1, Ordering::Relaxed);
        let dialled = tokio::time::timeout(DIAL_LIMIT, gateway.control.engine().dial(id)).await;
        let io: Box<dyn Connection> = match dialled {
            Ok(Ok(io)) => io,
            Ok(Err(error)) => {
                return Err(Refusal { hint: error.hint(), ..unreachable(error.to_string()) });
            }
            Err(_) => return Err(unreachable("its guest did not take the connection in time")),
        };
        Self::over(io, true).await
    }

    /// Asks the guest to turn a connection into a tunnel. The answer's status is 101 if it has.
    async fn upgrade(gateway: &Gateway, id: &SandboxId, path: &str, to: &'static str) -> Result<(Self, StatusCode), Refusal> {
        let mut link = Self::open(gateway, id).await?;
        let mut request = Request::new(Outgoing::held(Bytes::new()));
        *request.uri_mut() = path.parse().map_err(|_| unreachable("a tunnel has no path"))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(to));
        headers.insert(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(VERSION));
        let answer = link.send(request).await.map_err(|failed| super::call::refusal(&failed.error, failed.flooded))?;
        super::headers::check_protocol(answer.headers())?;
        let status = answer.status();
        drop(answer);
        Ok((link, status))
    }

    /// Waits until a process inside connects to one of the guest's ways to the server, and returns its connection. None: the sandbox
    /// has no such way.
    pub(super) async fn wait_for_inside(
        gateway: &Gateway,
        id: &SandboxId,
        way: WayOut,
    ) -> Result<Option<Box<dyn Connection>>, Refusal> {
        let (path, upgrade) = match way {
            WayOut::Calls => (SERVER_CALLS_PATH, SERVER_CALLS_UPGRADE),
            WayOut::SshAgent => (SSH_AGENT_PATH, SSH_AGENT_UPGRADE),
        };
        let (link, status) = Self::upgrade(gateway, id, path, upgrade).await?;
        match status {
            StatusCode::SWITCHING_PROTOCOLS => {}
            StatusCode::NOT_FOUND => return Ok(None),
            other => return Err(unreachable(format!("its guest answered {other} when asked for a connection from inside"))),
        }
        let (wire, early) = link.into_io().await;
        Ok(Some(if early.is_empty() { wire.into_inner() } else { Box::new(Early { early, io: wire.into_inner() }) }))
    }

    /// Opens a connection to a port of the sandbox's loopback. The guest connects to it and turns this connection into a tunnel.
    pub(super) async fn open_port(gateway: &Gateway, id: &SandboxId, port: u16) -> Result<Self, PortFailure> {
        let connected = async {
            let upgraded = Self::upgrade(gateway, id, &format!("{PORTS_PATH}{port}"), PORT_UPGRADE).await;
            let (link, status) = upgraded.map_err(PortFailure::of_program)?;
            if status != StatusCode::SWITCHING_PROTOCOLS {
                let nothing_listens = status == StatusCode::BAD_GATEWAY;
                return Err(PortFailure { nothing_listens, ..PortFailure::of_program(no_port(port, status)) });
            }
            let (wire, early) = link.into_io().await;
            if !early.is_empty() {
                let refusal = unreachable(format!("whatever listens on port {port} speaks first, as HTTP never does"));
                return Err(PortFailure::of_program(refusal));
            }
            Self::over(wire.into_inner(), false).await.map_err(PortFailure::of_program)
        };
        match tokio::time::timeout(PORT_LIMIT, connected).await {
            Ok(connected) => connected,
            Err(_) => Err(PortFailure::of_program(silent())),
        }
    }

    async fn over(io: Box<dyn Connection>, to_guest: bool) -> Result<Self, Refusal> {
        let watch = Arc::new(Watch::default());
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(Wire::new(io, Arc::clone(&watch))))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        Ok(Self { sender, connection, watch, over: false, used: false, to_guest })
    }

    /// Whether another call can be made on it. Detects that the guest has closed it.
    pub(super) async fn is_usable(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            let ready = !self.over && matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(())));
            Poll::Ready(ready)
        })
        .await
    }

    /// Sends the request and waits for the head of its answer.
    pub(super) async fn send(&mut self, mut request: Request<Outgoing>) -> Result<Response<Incoming>, NoAnswer> {
        self.watch.reset();
        let watch = Arc::clone(&self.watch);
        hyper::ext::on_informational(&mut request, move |_| watch.note_informational());
        let mut answer = pin!(self.sender.try_send_request(request));
        let (connection, over) = (&mut self.connection, &mut self.over);
        let sent = poll_fn(|cx| {
            drive(connection, over, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        let reused = std::mem::replace(&mut self.used, true);
        sent.map_err(|mut failed| NoAnswer {
            unsent: failed.take_message(),
            error: failed.into_error(),
            silent: !self.watch.read_something(),
            not_taken: self.watch.write_failed(),
            flooded: self.watch.flooded(),
            reused,
        })
    }

    /// Whether other calls may use it after this one.
    pub(super) fn is_to_guest(&self) -> bool {
        self.to_guest
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, &mut self.over, cx);
    }

    /// The next piece of an answer's body.
    pub(super) fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut body = std::pin::Pin::new(body);
        if let Poll::Ready(next) = body.as_mut().poll_frame(cx) {
            return Poll::Ready(next);
        }
        self.drive(cx);
        body.poll_frame(cx)
    }

    /// The bare connection after a 101, with what was read beyond the head.
    pub(super) async fn into_io(mut self) -> (Wire, Bytes) {
        poll_fn(|cx| {
            self.drive(cx);
            if self.over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}

/// A connection with bytes that were read from it before.
struct Early {
    early: Bytes,
    io: Box<dyn Connection>,
}

impl AsyncRead for Early {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let length = self.early.len().min(buffer.remaining());
        buffer.put_slice(&self.early.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Early {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Lets the connection progress. Its errors surface in the answer or in the body.
fn drive(connection: &mut http1::Connection<TokioIo<Wire>, Outgoing>, over: &mut bool, cx: &mut Context<'_>) {
    if !*over && connection.poll_without_shutdown(cx).is_ready() {
        *over = true;
    }
}

/// Why the guest could not connect to a port.
fn no_port(port: u16, status: StatusCode) -> Refusal {
    match status {
        StatusCode::BAD_GATEWAY => unreachable_port(format!("nothing listens on port {port} of the sandbox"))
            .hint("start the program there, and have it listen on 127.0.0.1 or 0.0.0.0; its log says whether it did"),
        StatusCode::GATEWAY_TIMEOUT => {
            Refusal::new(ErrorCode::Timeout, format!("the program on port {port} takes no connection"))
                .hint("it listens, but is busy or stopped")
        }
        StatusCode::SERVICE_UNAVAILABLE => Refusal {
            retry_after: Some(1),
            ..Refusal::new(ErrorCode::Exhausted, "too many connections to ports of the sandbox at once")
        },
        StatusCode::FORBIDDEN => Refusal::new(ErrorCode::Forbidden, format!("port {port} is the sandbox's own and no preview")),
        StatusCode::NOT_FOUND => {
            unreachable("its guest knows no previews").hint("the sandbox was made by another version of arenite; create it again")
        }
        other => unreachable(format!("its guest answered {other} when asked for port {port}")),
    }
}

fn unreachable_port(why: String) -> Refusal {
    Refusal::new(ErrorCode::SandboxFailed, why)
}
