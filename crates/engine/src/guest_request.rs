//! One HTTP request to a guest, over its own connection.

use std::io;

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
    let request = Request::builder().method(method).uri(path).header(HOST, "guest").header(CONTENT_TYPE, "application/json");
    let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
    sender.send_request(request).await.map(GuestAnswer).map_err(io::Error::other)
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
