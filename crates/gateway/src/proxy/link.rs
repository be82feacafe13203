//! One HTTP/1.1 connection to a guest.
//!
//! It has no task of its own: whoever waits for the answer, or reads its body, drives it. A call then costs no hand-over
//! between threads, and dropping the answer drops the connection: the guest learns at once that the client has left.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use arenite_engine::Connection;
use arenite_model::SandboxId;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::gateway::Gateway;
use crate::refusal::Refusal;

use super::outgoing::Outgoing;
use super::unreachable;
use super::wire::{Watch, Wire};

/// The most bytes of an answer's head, and of one piece of its body.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// The engine's listener is there before the guest, so a dial that waits long waits for a full queue.
const DIAL_LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Link {
    sender: http1::SendRequest<Outgoing>,
    connection: http1::Connection<TokioIo<Wire>, Outgoing>,
    watch: Arc<Watch>,
    /// The connection has ended; it must not be polled again.
    over: bool,
    /// It has served a call before.
    used: bool,
}

/// Why there is no answer.
pub(super) struct NoAnswer {
    pub(super) error: hyper::Error,
    /// The request, if nothing of it was sent.
    pub(super) unsent: Option<Request<Outgoing>>,
    /// Nothing came back, so a call that may be repeated can be.
    pub(super) silent: bool,
    /// The guest did not take all of the request, so it can't have acted on it.
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
        let watch = Arc::new(Watch::default());
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(Wire::new(io, Arc::clone(&watch))))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        Ok(Self { sender, connection, watch, over: false, used: false })
    }

    /// Whether another call can be made on it. Notices that the guest has closed it.
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

/// Lets the connection do what it can. Its errors come out of the answer or of the body.
fn drive(connection: &mut http1::Connection<TokioIo<Wire>, Outgoing>, over: &mut bool, cx: &mut Context<'_>) {
    if !*over && connection.poll_without_shutdown(cx).is_ready() {
        *over = true;
    }
}
