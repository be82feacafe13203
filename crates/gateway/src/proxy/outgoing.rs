//! The body of a request to a guest.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;

use crate::gateway::Gateway;
use crate::metrics::Metrics;

use super::record::Record;

/// A request body that is sent.
pub(crate) enum Outgoing {
    /// Held, so the request can be sent again.
    Held(Option<Bytes>),
    /// Passed on as it arrives.
    Streamed(Streamed),
}

pub(crate) struct Streamed {
    body: Body,
    record: Record,
    metrics: Arc<Metrics>,
    progress: Arc<Progress>,
    next_piece: Duration,
    /// Runs while waiting for the client, and not while waiting for the sandbox.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Streamed {
    pub(super) fn new(gateway: &Gateway, body: Body, record: Record, progress: Arc<Progress>) -> Self {
        let (metrics, next_piece) = (Arc::clone(&gateway.metrics), gateway.config.next_piece);
        Self { body, record, metrics, progress, next_piece, patience: None }
    }

    /// The next piece; an error if the client sends none for too long.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let next = http_body::Body::poll_frame(Pin::new(&mut self.body), cx);
        if next.is_ready() {
            self.patience = None;
            return next;
        }
        let wait = self.next_piece;
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        if patience.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.progress.idle.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(axum::Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))))
    }
}

/// Progress of a request's body.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    sent: AtomicBool,
    broken: AtomicBool,
    idle: AtomicBool,
}

impl Progress {
    pub(super) fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// The whole body was sent to the guest.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// The client sent nothing for too long.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// The client aborted it, or was too slow.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Outgoing {
    pub(super) fn held(bytes: Bytes) -> Self {
        Self::Held((!bytes.is_empty()).then_some(bytes))
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Held(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Streamed(streamed) => {
                let next = streamed.poll_next(cx);
                match &next {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(bytes) = frame.data_ref() {
                            // Only the first action on a WebSocket can fail.
                            let _ = streamed.record.feed_request(bytes);
                            streamed.metrics.bytes_in.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        }
                    }
                    Poll::Ready(Some(Err(_))) => streamed.progress.broken.store(true, Ordering::Relaxed),
                    Poll::Ready(None) | Poll::Pending => {}
                }
                if matches!(next, Poll::Ready(None)) || streamed.body.is_end_stream() {
                    streamed.progress.sent();
                }
                next
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Held(bytes) => bytes.is_none(),
            Self::Streamed(streamed) => streamed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Held(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Streamed(streamed) => streamed.body.size_hint(),
        }
    }
}
