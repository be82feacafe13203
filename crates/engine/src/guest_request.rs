//! HTTP requests to a guest: one over a separate connection, or over a kept one.

use std::future::poll_fn;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::Connection;

/// A guest's answer. Its body may still be on the way; dropping it closes the connection.
#[derive(Debug)]
pub struct GuestAnswer(Response<Incoming>);

/// Sends a request with a JSON body, and waits for the head of its answer.
pub async fn request_guest(
    connection: impl Connection + 'static,
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> io::Result<GuestAnswer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    sender.send_request(request(method, path, body)?).await.map(GuestAnswer).map_err(io::Error::other)
}

fn request(method: &str, path: &str, body: Vec<u8>) -> io::Result<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(path).header(HOST, "guest").header(CONTENT_TYPE, "application/json");
    request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)
}

/// A guest's complete answer, and the connection that it came over.
#[derive(Debug)]
pub(crate) struct KeptAnswer<C> {
    /// Its status is 200.
    pub(crate) is_ok: bool,
    pub(crate) text: String,
    /// None if the guest closes it, or sent more than an answer.
    pub(crate) connection: Option<C>,
}

/// Sends a request with a JSON body, and waits for its whole answer, of up to `limit` bytes. The calling task drives the
/// connection, which can then serve others.
pub(crate) async fn request_and_keep<C: Connection + 'static>(
    connection: C,
    method: &str,
    path: &str,
    body: Vec<u8>,
    limit: usize,
) -> io::Result<KeptAnswer<C>> {
    let request = request(method, path, body)?;
    let (mut sender, mut connection) = http1::handshake(TokioIo::new(connection)).await.map_err(io::Error::other)?;
    let (answered, is_over) = {
        let mut answered = pin!(async {
            let answer = GuestAnswer(sender.send_request(request).await.map_err(io::Error::other)?);
            Ok::<_, io::Error>((answer.is_ok(), answer.text(limit).await?))
        });
        let mut is_over = false;
        let answered = poll_fn(|cx| {
            // Its errors surface in the answer.
            is_over = is_over || connection.poll_without_shutdown(cx).is_ready();
            let answered = answered.as_mut().poll(cx);
            // Again: it sends a request at once that it got just now, and it learns from an answer's end whether it ends too.
            is_over = is_over || connection.poll_without_shutdown(cx).is_ready();
            answered
        });
        let answered = answered.await?;
        (answered, is_over)
    };
    let parts = connection.into_parts();
    let is_kept = !is_over && parts.read_buf.is_empty();
    let (is_ok, text) = answered;
    Ok(KeptAnswer { is_ok, text, connection: is_kept.then(|| parts.io.into_inner()) })
}

impl GuestAnswer {
    /// Whether its status is 200.
    pub fn is_ok(&self) -> bool {
        self.0.status() == StatusCode::OK
    }

    /// Waits for the whole body, of up to `limit` bytes.
    pub async fn text(self, limit: usize) -> io::Result<String> {
        let body = Limited::new(self.0.into_body(), limit).collect().await.map_err(io::Error::other)?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    }
}
