//! Serves requests that other nodes pass on.

use std::convert::Infallible;
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arenite_channel::{Acceptor, peer_key};
use arenite_model::NodeName;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::exchange::{self, Peer};
use crate::gateway::Gateway;

use super::pass::{NODE, Passed, SANDBOXES};
use super::{forks, states};

/// Handshakes at once. Further connections wait in the kernel's queue.
const HANDSHAKES: usize = 64;
/// Time for the handshake of a connection.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for a request's head, and of an idle connection: longer than other nodes keep it.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// The most bytes of a request's head: what clients may send, and what the other node adds.
const MAX_HEAD_BYTES: usize = 128 << 10;
/// Pause after a failed accept, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections of other nodes until the server stops, and lets their requests end.
pub(crate) async fn accept(gateway: Arc<Gateway>, listener: TcpListener, acceptor: Acceptor) {
    let mut open = JoinSet::new();
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        while open.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gateway.stopping.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => drop(open.spawn(serve(Arc::clone(&gateway), acceptor.clone(), stream, peer, permit))),
            Err(error) => {
                tracing::warn!(%error, "a connection of another node could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    // Other nodes' connections are refused from now on, instead of waiting in the kernel's queue: this socket has copies.
    if let Err(error) = SockRef::from(&listener).shutdown(Shutdown::Both) {
        tracing::debug!(%error, "the listener for other nodes could not be closed");
    }
    let ended = async { while open.join_next().await.is_some() {} };
    gateway.cut.run_until_cancelled(ended).await;
}

async fn serve(gateway: Arc<Gateway>, acceptor: Acceptor, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "a handshake of another node failed"),
        Err(_) => return tracing::debug!(%peer, "a handshake of another node took too long"),
    };
    let Some(node) = known(&gateway, &stream).await else {
        return tracing::warn!(%peer, "a connection is refused: its key is not that of a node that is up");
    };
    drop(permit);
    let service = service_fn(|request: Request<Incoming>| {
        let gateway = Arc::clone(&gateway);
        async move { Ok::<_, Infallible>(answer(gateway, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = gateway.stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%node, %error, "a connection of another node ended early");
    }
}

/// The node with the key of a connection.
async fn known(gateway: &Gateway, stream: &TlsStream<TcpStream>) -> Option<NodeName> {
    let key = peer_key(stream)?.to_string();
    if let Some(node) = gateway.control.peer_with_key(&key) {
        return Some(node);
    }
    // It may have joined just now.
    gateway.control.read_peers().await;
    gateway.control.peer_with_key(&key)
}

async fn answer(gateway: Arc<Gateway>, request: Request<Incoming>) -> Response<Body> {
    let mut request = request.map(Body::new);
    let passed = request.headers_mut().remove(NODE);
    let passed = passed.and_then(|passed| serde_json::from_slice::<Passed>(passed.as_bytes()).ok());
    let Some(passed) = passed else {
        let mut answer = Response::new(Body::from("a node says of each request who it is of\n"));
        *answer.status_mut() = StatusCode::BAD_REQUEST;
        return answer;
    };
    if request.uri().path() == forks::PATH {
        let mut answer = forks::answer(&gateway, &passed, request.into_body()).await;
        answer.headers_mut().insert(SANDBOXES, gateway.control.own_sandboxes().into());
        return answer;
    }
    if let Some(answer) = states::answer(&gateway, request.method().clone(), request.uri().path().to_owned()).await {
        return answer;
    }
    let peer = Peer { address: passed.client, scheme: passed.scheme() };
    request.extensions_mut().insert(passed);
    let mut answer = exchange::answer(Arc::clone(&gateway), peer, request).await;
    answer.headers_mut().insert(SANDBOXES, gateway.control.own_sandboxes().into());
    answer
}
