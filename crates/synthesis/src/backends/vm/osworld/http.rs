//! Requests to a VM's agent, over any connection to it, with a limit on the answer.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::error::{SynthesisError, machine, timeout};
use crate::sandboxes::{GuestRequest, SandboxHandle};

/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// One request.
#[derive(Debug, Clone)]
pub(in crate::backends::vm) struct Request<'a> {
    pub(in crate::backends::vm) method: &'static str,
    pub(in crate::backends::vm) path: &'a str,
    pub(in crate::backends::vm) content_type: Option<&'a str>,
    pub(in crate::backends::vm) body: Vec<u8>,
    /// Timeout of the whole request.
    pub(in crate::backends::vm) timeout: Duration,
    /// Largest answer that is read, in bytes.
    pub(in crate::backends::vm) most: usize,
}

/// An answer with any status.
#[derive(Debug, Clone)]
pub(in crate::backends::vm) struct Reply {
    pub(in crate::backends::vm) status: u16,
    pub(in crate::backends::vm) body: Vec<u8>,
}

/// A connection to an agent. Dropping a request aborts it.
#[async_trait]
pub(in crate::backends::vm) trait Http: Send + Sync {
    /// # Errors
    /// Why there is no answer, for the client.
    async fn send(&self, request: Request<'_>) -> Result<Reply, SynthesisError>;
}

/// An agent at a port that this host can reach.
pub(in crate::backends::vm) struct Tcp {
    /// `127.0.0.1:5000`.
    pub(in crate::backends::vm) address: String,
}

#[async_trait]
impl Http for Tcp {
    async fn send(&self, request: Request<'_>) -> Result<Reply, SynthesisError> {
        let connecting = tokio::time::timeout(CONNECT.min(request.timeout), TcpStream::connect(&self.address)).await;
        let stream = connecting
            .map_err(|_| timeout(format!("{} can't be reached within {} s", self.address, CONNECT.as_secs())))?
            .map_err(|error| SynthesisError::io(format!("{} can't be reached", self.address), error))?;
        exchange(stream, &self.address, request).await
    }
}

/// An agent that listens in a sandbox.
pub(in crate::backends::vm) struct InSandbox {
    pub(in crate::backends::vm) handle: SandboxHandle,
    pub(in crate::backends::vm) port: u16,
}

#[async_trait]
impl Http for InSandbox {
    async fn send(&self, request: Request<'_>) -> Result<Reply, SynthesisError> {
        let Request { method, path, content_type, body, .. } = request;
        let sent = GuestRequest { port: self.port, method, path, content_type, body };
        let answering = self.handle.sandboxes.send(&self.handle.caller, &self.handle.name, sent);
        let seconds = request.timeout.as_secs();
        let (status, body) = tokio::time::timeout(request.timeout, answering)
            .await
            .map_err(|_| timeout(format!("there was no answer within {seconds} s")))??;
        if body.len() > request.most {
            return Err(too_long(request.most));
        }
        Ok(Reply { status, body })
    }
}

/// One request and its answer over a separate connection.
pub(in crate::backends::vm) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    host: &str,
    request: Request<'_>,
) -> Result<Reply, SynthesisError> {
    let all = async {
        let broken = |error: hyper::Error| machine(format!("the connection to {host} broke: {error}"));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut head = hyper::Request::builder().method(request.method).uri(request.path).header(HOST, host);
        if let Some(kind) = request.content_type {
            head = head.header(CONTENT_TYPE, kind);
        }
        let message = head.body(Full::new(Bytes::from(request.body))).map_err(machine)?;
        let answered = async {
            let answer = sender.send_request(message).await.map_err(broken)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), request.most).collect().await;
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => broken(*error),
                Err(_) => too_long(request.most),
            })?;
            Ok(Reply { status, body: body.to_bytes().to_vec() })
        };
        tokio::pin!(answered);
        // The connection is driven here, so dropping the request closes it.
        tokio::select! {
            biased;
            answer = &mut answered => answer,
            _ = connection => answered.await,
        }
    };
    let seconds = request.timeout.as_secs();
    tokio::time::timeout(request.timeout, all).await.map_err(|_| timeout(format!("{host} did not answer within {seconds} s")))?
}

fn too_long(most: usize) -> SynthesisError {
    machine(format!("the answer is over {} KiB", most >> 10))
}
