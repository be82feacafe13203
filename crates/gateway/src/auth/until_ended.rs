//! Bodies that break off when their caller's key ends.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};

/// A body up to this size, in bytes, is sent to its end if it is there already: it may be the answer to the key's own revocation.
const SMALL: u64 = 64 << 10;

/// A body that breaks off when `ended` completes. What it holds, such as a connection to a sandbox, is released then.
pub(crate) fn until_ended(body: Body, ended: impl Future<Output = ()> + Send + 'static) -> Body {
    if http_body::Body::is_end_stream(&body) {
        return body;
    }
    let is_small = http_body::Body::size_hint(&body).exact().is_some_and(|size| size <= SMALL);
    Body::new(UntilEnded { body: Some(body), is_small, ended: Box::pin(ended) })
}

struct UntilEnded {
    /// None: it broke off.
    body: Option<Body>,
    is_small: bool,
    ended: BoxFuture<'static, ()>,
}

impl http_body::Body for UntilEnded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if this.is_small {
            let next = Pin::new(body).poll_frame(cx);
            if next.is_ready() {
                return next;
            }
            if this.ended.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        } else if this.ended.as_mut().poll(cx).is_pending() {
            return Pin::new(body).poll_frame(cx);
        }
        this.body = None;
        let ended = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the caller's key has ended");
        Poll::Ready(Some(Err(axum::Error::new(ended))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}
