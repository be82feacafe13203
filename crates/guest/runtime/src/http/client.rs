//! HTTP requests of the guest, each over its own connection.

use std::error::Error;
use std::io;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Sends a request, and waits for the head of its answer. The connection closes with the answer.
pub async fn send<B>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<B>,
) -> io::Result<Response<Incoming>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(io::Error::other)
}

/// Reads a whole body, of up to `limit` bytes.
pub async fn collect(body: Incoming, limit: usize) -> io::Result<Bytes> {
    Limited::new(body, limit).collect().await.map(|body| body.to_bytes()).map_err(io::Error::other)
}

/// Sends a request, and reads its whole answer, of up to `limit` bytes.
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Bytes>,
    limit: usize,
) -> io::Result<Response<Bytes>> {
    let (head, body) = send(stream, request.map(Full::new)).await?.into_parts();
    Ok(Response::from_parts(head, collect(body, limit).await?))
}
