//! Bodies of requests that are answered before they were read, as refusals often are.
//!
//! The next request on an HTTP/1.1 connection comes after the whole body of the last one. Without the rest of a body, the
//! connection can't be reused, and the answer has to say so: otherwise the client sends its next call to a closing connection. And
//! the kernel resets a connection that is closed with unread bytes, which takes the answer from clients that are still sending.
//! So a short rest is read before the answer, and other connections are closed in two steps: first the sending side, then, when
//! the client has read the answer and closes, the other one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};

use crate::connections::Connection;

/// The largest rest, in bytes, that is read to keep a connection; and how long that may take.
const SHORT: u64 = 64 << 10;
const SHORT_TIME: Duration = Duration::from_millis(250);
/// What a closing connection reads at most, in bytes; and for how long.
const LINGER_BYTES: usize = 16 << 20;
const LINGER_TIME: Duration = Duration::from_secs(5);
/// Size of one read, in bytes.
const PIECE_BYTES: usize = 16 << 10;

/// What became of a request's body.
enum Rest {
    InUse,
    Read,
    Left(Incoming),
}

/// Where a body is returned to.
pub(crate) struct Unread(Arc<Mutex<Rest>>);

/// Follows a body. None: there is nothing to read.
pub(crate) fn follow(body: Incoming) -> (Body, Option<Unread>) {
    if body.is_end_stream() {
        return (Body::empty(), None);
    }
    let rest = Arc::new(Mutex::new(Rest::InUse));
    (Body::new(Followed { body: Some(body), rest: Arc::clone(&rest) }), Some(Unread(rest)))
}

impl Unread {
    /// Reads what is left if that is short. Returns whether all of the body has been read.
    pub(crate) async fn finish(self) -> bool {
        let rest = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), Rest::InUse);
        match rest {
            Rest::Read => true,
            Rest::InUse => false,
            Rest::Left(body) if body.size_hint().upper().is_none_or(|bytes| bytes > SHORT) => false,
            Rest::Left(mut body) => {
                let all = async { while let Some(Ok(_)) = body.frame().await {} };
                timeout(SHORT_TIME, all).await.is_ok() && body.is_end_stream()
            }
        }
    }
}

struct Followed {
    /// None: it was read to its end, or failed.
    body: Option<Incoming>,
    rest: Arc<Mutex<Rest>>,
}

impl http_body::Body for Followed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if body.is_end_stream() || !matches!(frame, Some(Ok(_))) {
            self.body = None;
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Rest::Read;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Rest::Left(body);
        }
    }
}

/// A connection's stream. If a body was left unread, its shutdown ends when the client closes, or after the limits above.
pub(crate) struct Lingering<I> {
    stream: I,
    of: Arc<Connection>,
    is_shut: bool,
    left: usize,
    end: Option<Pin<Box<Sleep>>>,
}

impl<I> Lingering<I> {
    pub(crate) fn new(stream: I, of: Arc<Connection>) -> Self {
        Self { stream, of, is_shut: false, left: LINGER_BYTES, end: None }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Lingering<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.is_shut = true;
        }
        if !this.of.lingers() {
            return Poll::Ready(Ok(()));
        }
        let end = this.end.get_or_insert_with(|| Box::pin(sleep(LINGER_TIME)));
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut space = [0; PIECE_BYTES];
        while this.left > 0 {
            let mut into = ReadBuf::new(&mut space);
            let is_open = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut into)).is_ok();
            match into.filled().len() {
                read if is_open && read > 0 => this.left = this.left.saturating_sub(read),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
