//! Closes connections after a request that was answered before its body was read.
//!
//! HTTP has no other use for such a connection. Without a word, the server would find that out with its next call on it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};

/// Answers with `Connection: close` if the handler did not read the whole body.
pub(crate) async fn close(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_read = Arc::new(AtomicBool::new(false));
    let request = request.map(|inner| Body::new(Watched { inner, is_read: Arc::clone(&is_read) }));
    let mut answer = next.run(request).await;
    if !is_read.load(Ordering::Relaxed) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// A body that notes its end.
struct Watched {
    inner: Body,
    is_read: Arc<AtomicBool>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_connection_is_closed_only_after_a_body_that_was_not_read() {
        let routes = Router::new()
            .route("/all", post(|body: Bytes| async move { body.len().to_string() }))
            .route("/none", post(|| async { "none" }))
            .layer(from_fn(close));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        for (request, body, closes) in [
            ("POST /none HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n", "", true),
            ("PUT /all HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n", "abc", true),
            ("POST /all HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n", "abc", false),
            ("POST /all HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", false),
            ("POST /none HTTP/1.1\r\nhost: a\r\n\r\n", "", false),
            ("POST /none HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "", false),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("{request}{body}").as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"none") && !answer.ends_with(b"\r\n3") && !answer.ends_with(b"\r\n\r\n") {
                let read = stream.read_buf(&mut answer).await.unwrap();
                assert!(read > 0, "{request:?}");
            }
            let answer = String::from_utf8(answer).unwrap();
            assert_eq!(answer.contains("connection: close"), closes, "{request:?}: {answer}");
        }
    }
}
