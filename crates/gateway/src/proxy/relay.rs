//! The body of a guest's answer to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use arenite_control::Lease;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::gateway::Gateway;

use super::call::Called;
use super::checkpoint::{AfterStep, Checkpointed};
use super::link::Link;
use super::outgoing::Progress;
use super::record::Record;

/// The last event of a stream that the server's stop ends.
const LAST_EVENT: &[u8] =
    b"event: server_stopping\ndata: {\"reason\": \"the server is stopping or restarting; connect again\"}\n\n";

/// Drives the connection, feeds the step, and writes its outcome before it returns the last piece. Holds the sandbox until then.
/// If dropped before, it closes the connection and the step is aborted.
pub(super) struct Relay {
    gateway: Arc<Gateway>,
    body: Incoming,
    /// None when the answer has ended.
    under_way: Option<UnderWay>,
    record: Record,
    status: u16,
    /// Of an answer with a stated length.
    left: Option<u64>,
    /// Of a stream of events, which may never end by itself.
    events: Option<Events>,
    checkpointed: Option<Checkpointed>,
    /// The seal of the disk after the call, and the answer's last piece, which waits for it.
    sealing: Option<(AfterStep, Option<Frame<Bytes>>)>,
}

/// The state of a stream of events.
struct Events {
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Its last bytes.
    tail: Vec<u8>,
}

impl Events {
    fn from_head(gateway: &Gateway, head: &HeaderMap) -> Option<Self> {
        let kind = head.get(CONTENT_TYPE)?.to_str().ok()?;
        let is_plain = kind.starts_with("text/event-stream") && !head.contains_key(CONTENT_ENCODING);
        is_plain.then(|| Self { stopping: Box::pin(gateway.stopping.clone().cancelled_owned()), tail: Vec::new() })
    }

    fn see(&mut self, bytes: &[u8]) {
        const KEPT: usize = 4;
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT)..]);
        self.tail.drain(..self.tail.len().saturating_sub(KEPT));
    }

    /// Whether another event may be inserted here.
    fn is_between(&self) -> bool {
        self.tail.is_empty() || [&b"\n\n"[..], b"\r\r", b"\n\r\n"].iter().any(|end| self.tail.ends_with(end))
    }
}

/// The resources of a call: its connection, the sandbox, and the progress of its request.
type UnderWay = (Link, Lease, Arc<Progress>);

impl Relay {
    /// The answer of a call, with other headers.
    pub(super) fn response(gateway: &Arc<Gateway>, called: Called, headers: HeaderMap) -> Response<axum::body::Body> {
        let status = called.answer.status();
        let mut answer = Response::new(axum::body::Body::new(Self::new(gateway, called)));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        answer
    }

    fn new(gateway: &Arc<Gateway>, called: Called) -> Self {
        let Called { link, lease, progress, record, checkpointed, answer, .. } = called;
        let (head, body) = answer.into_parts();
        let left = body.size_hint().exact();
        let events = if left.is_none() { Events::from_head(gateway, &head.headers) } else { None };
        let (under_way, status) = (Some((link, lease, progress)), head.status.as_u16());
        let mut relay =
            Self { gateway: Arc::clone(gateway), body, under_way, record, status, left, events, checkpointed, sealing: None };
        // No data follows, so the body may not be polled again.
        if left == Some(0) || relay.body.is_end_stream() {
            relay.end();
        }
        relay
    }

    /// Starts the seal of the disk. The last piece is returned when it has ended.
    fn seal(&mut self, last: Option<Frame<Bytes>>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.sealing = self.checkpointed.take().map(|checkpointed| (checkpointed.end(), last));
        self.poll_seal(cx)
    }

    fn poll_seal(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some((sealing, _)) = &mut self.sealing else { return Poll::Ready(None) };
        let state = ready!(sealing.as_mut().poll(cx));
        if let Some(state) = state {
            self.record.set_state(state);
        }
        let last = self.sealing.take().and_then(|(_, last)| last);
        self.end();
        Poll::Ready(last.map(Ok))
    }

    fn end(&mut self) {
        self.record.answered(self.status);
        if let Some((link, lease, progress)) = self.under_way.take()
            // A guest may answer before it has read the whole request; the rest must not return to the pool with the connection.
            && progress.is_sent()
        {
            self.gateway.pools.put(&lease.sandbox.id, link);
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        if this.sealing.is_some() {
            return this.poll_seal(cx);
        }
        let Some((link, ..)) = &mut this.under_way else { return Poll::Ready(None) };
        if let Some(events) = &mut this.events
            && events.is_between()
            && events.stopping.as_mut().poll(cx).is_ready()
        {
            this.record.failed(Some(this.status), "the server stopped");
            this.under_way = None;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(LAST_EVENT)))));
        }
        let mut next = link.poll_body(&mut this.body, cx);
        while matches!(&next, Poll::Ready(Some(Ok(frame))) if frame.is_trailers()) {
            // Trailers are headers that were not checked.
            next = link.poll_body(&mut this.body, cx);
        }
        let mut is_last = false;
        match &next {
            Poll::Pending => {}
            Poll::Ready(None) if this.checkpointed.is_some() => return this.seal(None, cx),
            Poll::Ready(None) => this.end(),
            Poll::Ready(Some(Err(error))) => {
                this.record.failed(Some(this.status), format!("the guest's answer broke off: {error}"));
                this.under_way = None;
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    let length = bytes.len() as u64;
                    this.record.feed_response(bytes);
                    if let Some(events) = &mut this.events {
                        events.see(bytes);
                    }
                    this.gateway.metrics.bytes_out.fetch_add(length, Ordering::Relaxed);
                    if let Some(left) = &mut this.left {
                        *left = left.saturating_sub(length);
                        if *left == 0 {
                            is_last = true;
                        }
                    }
                }
            }
        }
        if is_last {
            if this.checkpointed.is_some()
                && let Poll::Ready(Some(Ok(frame))) = next
            {
                return this.seal(Some(frame), cx);
            }
            this.end();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.under_way.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // A piece that waits for the seal counts as not returned.
        if let Some((_, Some(frame))) = &self.sealing {
            return SizeHint::with_exact(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.record.abandon();
    }
}
