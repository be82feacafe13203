//! Connections to ports of the sandbox's loopback, opened on request of the gateway for previews.
//!
//! They are opened inside the sandbox, so no request can reach anything but this sandbox's own loopback.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arenite_model::protocol::{PORT_UPGRADE, PORTS_PATH};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::SharedGuest;
use arenite_guest_runtime::http::whole;

/// The most concurrent connections. Further ones are refused.
const MOST: usize = 256;
/// Time for a listener to accept the connection.
const CONNECT: Duration = Duration::from_secs(5);

pub(crate) fn router(guest: &SharedGuest) -> Router {
    let guest = guest.clone();
    let places = Arc::new(Semaphore::new(MOST));
    let connect = move |Path(port): Path<u16>, request: Request| connect(guest.clone(), places.clone(), port, request);
    Router::new().route(&format!("{PORTS_PATH}{{port}}"), get(connect))
}

async fn connect(guest: SharedGuest, places: Arc<Semaphore>, port: u16, mut request: Request) -> Response {
    if request.headers().get(UPGRADE).is_none_or(|wanted| wanted != PORT_UPGRADE) {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    }
    if port == 0 || guest.runtime.internal_ports().any(|internal| internal == port) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let Ok(place) = places.try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    // The agent in a VM runs when the VM does, and the VM goes on booting when the caller leaves.
    let vm = Arc::clone(&guest.vm);
    if let Err(error) = whole(async move { vm.ready_for(port).await }).await {
        return (StatusCode::BAD_GATEWAY, error.message).into_response();
    }
    let mut local = match timeout(CONNECT, dial(port)).await {
        Ok(Ok(local)) => local,
        Ok(Err(error)) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        Err(_) => return StatusCode::GATEWAY_TIMEOUT.into_response(),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let _place = place;
        let Ok(gateway) = upgrade.await else { return };
        // However it ends, both sides see it.
        drop(tokio::io::copy_bidirectional(&mut TokioIo::new(gateway), &mut local).await);
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(PORT_UPGRADE));
    answer
}

/// Connects to a port. Programs that listen on `localhost` may use either address.
async fn dial(port: u16) -> io::Result<TcpStream> {
    let stream = match TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
        Ok(stream) => stream,
        Err(error) => match TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await {
            Ok(stream) => stream,
            Err(_) => return Err(error),
        },
    };
    if stream.local_addr()? == stream.peer_addr()? {
        // TCP can connect a port to itself when nothing listens there.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}
