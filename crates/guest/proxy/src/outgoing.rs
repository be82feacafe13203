//! Connections to the targets of routes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{HOST, PROXY_AUTHORIZATION};
use axum::http::{Method, Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::upstream::Upstream;
use crate::ProxyService;
use arenite_guest_runtime::dial::dial;

/// Time to connect, including the upstream's answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client with limits for servers' answers.
pub(super) fn client() -> http1::Builder {
    let mut client = http1::Builder::new();
    client.max_buf_size(super::forward::MAX_HEAD).max_headers(super::forward::MAX_HEADERS);
    client
}

pub(super) async fn straight(proxy: &Arc<ProxyService>, host: &str, port: u16) -> io::Result<TcpStream> {
    if proxy.is_here(host, port) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is this proxy itself"));
    }
    timeout(PATIENCE, dial(host, port)).await.map_err(|_| late())?
}

/// Opens a tunnel to a host through the upstream.
pub(super) async fn through(
    proxy: &Arc<ProxyService>,
    upstream: &Arc<Upstream>,
    host: &str,
    port: u16,
) -> io::Result<TokioIo<Upgraded>> {
    let stream = straight(proxy, &upstream.host, upstream.port).await?;
    let asking = async {
        let (mut sender, connection) = client().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = Request::builder().method(Method::CONNECT).uri(&authority).header(HOST, &authority);
        if let Some(authorization) = upstream.authorization() {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<bytes::Bytes>::new()).map_err(io::Error::other)?;
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            proxy.renew(upstream).await;
        }
        if !status.is_success() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the upstream proxy answered {status}")));
        }
        hyper::upgrade::on(answer).await.map(TokioIo::new).map_err(io::Error::other)
    };
    timeout(PATIENCE, asking).await.map_err(|_| late())?
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", PATIENCE.as_secs()))
}
