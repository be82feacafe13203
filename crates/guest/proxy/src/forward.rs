//! The listener: HTTP/1.1 requests with absolute URLs, and CONNECT.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{
    CONNECTION, CONTENT_TYPE, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::outgoing::{self, client};
use super::pattern::{Scheme, Wanted, host_and_port};
use super::rules::Route;
use super::tunnel::{self, IDLE};
use crate::ProxyService;

/// The most client connections. Further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
/// The most bytes of a request's and of an answer's head.
pub(super) const MAX_HEAD: usize = 64 << 10;
pub(super) const MAX_HEADERS: usize = 100;
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Time until a server's answer starts.
const ANSWER_PATIENCE: Duration = Duration::from_secs(600);

pub(super) async fn serve(listener: TcpListener, proxy: Arc<ProxyService>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Usually out of descriptors: some will be closed.
            Err(error) => {
                tracing::warn!(%error, "the proxy could not take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let place = Arc::new(place);
            let service = service_fn(|request| {
                let (proxy, place) = (proxy.clone(), place.clone());
                async move { Ok::<_, Infallible>(answer(proxy, request, place).await) }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
            // Errors here concern only the client and its connection.
            let _ = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
    }
}

/// Answers a request. `place` is held as long as the connection lives, including the time of a tunnel.
async fn answer(
    proxy: Arc<ProxyService>,
    request: Request<Incoming>,
    place: Arc<tokio::sync::OwnedSemaphorePermit>,
) -> Response<Body> {
    let outcome = match request.method() {
        &Method::CONNECT => connect(proxy, request, place).await,
        _ => forward(&proxy, request).await,
    };
    outcome.unwrap_or_else(|(status, why)| {
        let mut answer = Response::new(Body::from(format!("arenite's proxy: {why}\n")));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        answer
    })
}

type Refused = (StatusCode, String);

fn bad(why: impl Into<String>) -> Refused {
    (StatusCode::BAD_REQUEST, why.into())
}

fn failed(place: &str, error: &io::Error) -> Refused {
    let status = match error.kind() {
        io::ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        io::ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        _ => StatusCode::BAD_GATEWAY,
    };
    (status, format!("{place} could not be reached: {error}"))
}

/// Opens a tunnel: bytes pass unchanged, also to the target of a mapping.
async fn connect(
    proxy: Arc<ProxyService>,
    request: Request<Incoming>,
    place: Arc<tokio::sync::OwnedSemaphorePermit>,
) -> Result<Response<Body>, Refused> {
    let authority = request.uri().authority().ok_or_else(|| bad("CONNECT needs host:port"))?;
    let (host, port) = host_and_port(authority.as_str()).map_err(bad)?;
    let port = port.ok_or_else(|| bad("CONNECT needs a port"))?;
    let scheme = if port == Scheme::Http.port() { Scheme::Http } else { Scheme::Https };
    let rules = proxy.rules();
    let shown = format!("{host}:{port}");
    match rules.route(&Wanted { scheme, host: &host, port, path: None }) {
        Route::Upstream(upstream) => {
            let stream = outgoing::through(&proxy, upstream, &host, port).await.map_err(|e| failed(&shown, &e))?;
            tokio::spawn(pass(request, stream, place));
        }
        Route::Mapped(mapping) => {
            let target = &mapping.target;
            let stream = outgoing::straight(&proxy, &target.host, target.port).await;
            tokio::spawn(pass(request, stream.map_err(|e| failed(&target.text, &e))?, place));
        }
        Route::Direct(_) => {
            let stream = outgoing::straight(&proxy, &host, port).await.map_err(|e| failed(&shown, &e))?;
            tokio::spawn(pass(request, stream, place));
        }
    }
    Ok(Response::default())
}

async fn pass<S>(request: Request<Incoming>, stream: S, place: Arc<tokio::sync::OwnedSemaphorePermit>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite,
{
    if let Ok(client) = hyper::upgrade::on(request).await {
        tunnel::join(TokioIo::new(client), stream).await;
    }
    drop(place);
}

/// Forwards one plain HTTP request.
async fn forward(proxy: &Arc<ProxyService>, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
    let (mut parts, body) = request.into_parts();
    let (Some("http"), Some(authority)) = (parts.uri.scheme_str(), parts.uri.authority().cloned()) else {
        return Err(bad("this is a forward proxy: it takes requests with http:// URLs, and CONNECT"));
    };
    // Credentials in the URL are the client's own; they do not belong in Host.
    let authority = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
    let (host, port) = host_and_port(&authority).map_err(bad)?;
    let port = port.unwrap_or(Scheme::Http.port());
    let asked = parts.uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let path = asked.split('?').next().unwrap_or("/");
    end_to_end(&mut parts.headers);
    let given = HeaderValue::from_str(&authority).map_err(|_| bad("the URL's host can't be sent"))?;
    parts.headers.insert(HOST, given);

    let rules = proxy.rules();
    let wanted = Wanted { scheme: Scheme::Http, host: &host, port, path: Some(path) };
    let (place, next, uri, upstream) = match rules.route(&wanted) {
        Route::Mapped(mapping) => {
            let target = &mapping.target;
            let uri = format!("{}{}", target.path(&mapping.source, path), &asked[path.len()..]);
            (target.text.clone(), (&*target.host, target.port), uri, None)
        }
        Route::Direct(_) => (authority.clone(), (&*host, port), asked.clone(), None),
        Route::Upstream(upstream) => {
            if let Some(authorization) = upstream.authorization() {
                parts.headers.insert(PROXY_AUTHORIZATION, authorization);
            }
            (upstream.address(), (&*upstream.host, upstream.port), format!("http://{authority}{asked}"), Some(upstream))
        }
    };
    parts.uri = uri.parse::<Uri>().map_err(|_| bad("the mapped path can't be sent"))?;
    let stream = outgoing::straight(proxy, next.0, next.1).await.map_err(|e| failed(&place, &e))?;
    let broken = |e: hyper::Error| (StatusCode::BAD_GATEWAY, format!("{place} broke off: {e}"));
    let (mut sender, connection) = client().handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    let answer = timeout(ANSWER_PATIENCE, sender.send_request(Request::from_parts(parts, patient(body)))).await;
    let late = || (StatusCode::GATEWAY_TIMEOUT, format!("{place} gave no answer within {} s", ANSWER_PATIENCE.as_secs()));
    let (mut head, body) = answer.map_err(|_| late())?.map_err(broken)?.into_parts();
    end_to_end(&mut head.headers);
    if let (Some(upstream), StatusCode::PROXY_AUTHENTICATION_REQUIRED) = (upstream, head.status) {
        proxy.renew(upstream).await;
        // The client has no credentials to give: they are the proxy's.
        return Err((StatusCode::BAD_GATEWAY, "the upstream proxy refused the credentials".to_owned()));
    }
    Ok(Response::from_parts(head, patient(body)))
}

/// Adds an idle timeout to a body.
fn patient(body: Incoming) -> Body {
    use hyper::body::Body as _;
    if body.is_end_stream() {
        return Body::empty();
    }
    let hint = body.size_hint().exact();
    let pieces = futures_util::stream::unfold(Some(body.into_data_stream()), |body| async {
        let mut body = body?;
        match timeout(IDLE, body.next()).await {
            Ok(piece) => piece.map(|piece| (piece.map_err(io::Error::other), Some(body))),
            Err(_) => Some((Err::<Bytes, _>(io::ErrorKind::TimedOut.into()), None)),
        }
    });
    match hint {
        // Keeps the length, so that the next hop receives one.
        Some(length) => Body::new(Measured { inner: Body::from_stream(pieces), length }),
        None => Body::from_stream(pieces),
    }
}

/// A body of known length.
struct Measured {
    inner: Body,
    length: u64,
}

impl hyper::body::Body for Measured {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        let frame = std::pin::Pin::new(&mut self.inner).poll_frame(context);
        if let std::task::Poll::Ready(Some(Ok(frame))) = &frame {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.length = self.length.saturating_sub(length);
        }
        frame
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.length)
    }
}

/// Removes hop-by-hop headers.
pub fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = [
        CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        HeaderName::from_static("proxy-connection"),
        HeaderName::from_static("keep-alive"),
    ];
    for name in named.iter().chain(&known) {
        headers.remove(name);
    }
}
