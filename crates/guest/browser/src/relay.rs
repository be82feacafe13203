//! The DevTools protocol for external clients: `/cdp/json/*` and `/json/*`, with addresses that lead back here, and WebSockets
//! below `/cdp/devtools/`, each with a separate connection to the browser.
//!
//! The browser id in `/cdp/devtools/browser/{name}` is not checked: an address stays valid when another browser replaces the
//! first.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message as Frame, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::service::Browser;
use crate::BrowserService;
use arenite_guest_cdp::{MAX_MESSAGE, Socket, open};
use arenite_guest_runtime::http::{Address, ApiError, client};

/// Maximum connections of clients; further ones are refused.
const MAX_RELAYS: usize = 64;
/// Interval between pings to a client.
const PING: Duration = Duration::from_secs(20);
/// A client that sends nothing for this long, not even a pong, is considered gone.
const SILENCE: Duration = Duration::from_secs(65);
/// Timeout for a client to accept one message.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout for the browser to answer an HTTP request.
const ANSWER: Duration = Duration::from_secs(15);
/// Time until the end of a browser that closed a connection is noticed.
const NOTICE: Duration = Duration::from_secs(1);
/// Number of retries with another browser when one ended during a request.
const RETRIES: usize = 2;
/// Maximum bytes of such an answer: the protocol's description is the longest.
const MAX_ANSWER: usize = 16 << 20;

static RELAYS: AtomicUsize = AtomicUsize::new(0);

/// A slot for one client's connection.
struct RelaySlot;

impl RelaySlot {
    fn take() -> Option<Self> {
        let next = |n: usize| (n < MAX_RELAYS).then_some(n + 1);
        RELAYS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(|_| Self)
    }
}

impl Drop for RelaySlot {
    fn drop(&mut self) {
        RELAYS.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn router() -> Router<Arc<BrowserService>> {
    let mut router = Router::new().route("/cdp/devtools/{*path}", get(connect));
    for root in ["/cdp/json", "/json"] {
        router =
            router.route(root, any(list)).route(&format!("{root}/"), any(list)).route(&format!("{root}/{{*path}}"), any(json));
    }
    router
}

async fn list(state: State<Arc<BrowserService>>, request: Request) -> Result<Response, ApiError> {
    json(state, Path(String::new()), request).await
}

/// Asks the browser, and replaces its address with ours.
async fn json(
    State(service): State<Arc<BrowserService>>,
    Path(path): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    let uri = format!("/json/{}{query}", path.trim_end_matches('/'));
    let uri = uri.trim_end_matches('/');
    let failed = |why: io::Error| ApiError::new(StatusCode::FAILED_DEPENDENCY, format!("the browser did not answer: {why}"));
    let mut tries = 0;
    let (port, answer) = loop {
        let browser = service.get().await?;
        let (port, _) = browser.endpoint();
        let asked = timeout(ANSWER, ask(port, request.method(), uri)).await;
        match asked.unwrap_or_else(|_| Err(io::Error::other("it took too long"))) {
            Ok(answer) => break (port, answer),
            // It ended during the request: retry with the next browser.
            Err(_) if tries < RETRIES && has_ended(&browser).await => tries += 1,
            Err(why) => return Err(failed(why)),
        }
    };
    let (head, body) = answer.into_parts();
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(mut value) => {
            readdress(&mut value, &Address::from_headers(request.headers()), port);
            Bytes::from(value.to_string())
        }
        // Plain text, such as `Target is closing`.
        Err(_) => body,
    };
    let mut answer = (head.status, body).into_response();
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        answer.headers_mut().insert(CONTENT_TYPE, kind.clone());
    }
    Ok(answer)
}

async fn ask(port: u16, method: &Method, uri: &str) -> io::Result<Response<Bytes>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    // The browser answers only to this machine's names, as a defence against DNS rebinding.
    let request = axum::http::Request::builder().method(method).uri(uri).header(HOST, format!("127.0.0.1:{port}"));
    client::exchange(stream, request.body(Bytes::new()).map_err(io::Error::other)?, MAX_ANSWER).await
}

/// Replaces loopback addresses with the address by which the caller reaches the sandbox.
fn readdress(value: &mut Value, address: &Address, port: u16) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|inner| readdress(inner, address, port)),
        Value::Object(object) => {
            for (name, value) in object {
                let Some(text) = value.as_str() else { continue };
                if name == "webSocketDebuggerUrl"
                    && let Some((_, path)) = text.split_once("/devtools/")
                {
                    *value = address.websocket(&format!("/cdp/devtools/{path}")).into();
                } else if name == "devtoolsFrontendUrl" {
                    let own = format!("ws=127.0.0.1:{port}/");
                    let (word, place) = (address.websocket("").split(':').next().unwrap_or("ws").to_owned(), address.place());
                    *value = text.replace(&own, &format!("{word}={place}/cdp/")).into();
                }
            }
        }
        _ => {}
    }
}

/// Connects a WebSocket to the browser, to a tab, or to any other target in the path.
async fn connect(
    State(service): State<Arc<BrowserService>>,
    Path(path): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    let too_many = || ApiError::new(StatusCode::TOO_MANY_REQUESTS, format!("{MAX_RELAYS} clients are connected already"));
    let slot = RelaySlot::take().ok_or_else(too_many)?;
    let mut tries = 0;
    let (browser, socket) = loop {
        let browser = service.get().await?;
        let (port, own) = browser.endpoint();
        let path = match path.strip_prefix("browser") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => own.to_owned(),
            _ => format!("/devtools/{path}"),
        };
        match open(port, &path).await {
            Ok(socket) => break (browser, socket),
            Err(_) if tries < RETRIES && has_ended(&browser).await => tries += 1,
            Err(error) => {
                let refused = ApiError::not_found(format!("the browser took no connection to {path}: {error}"));
                return Err(refused.hint("GET /cdp/json/list tells what there is"));
            }
        }
    };
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    Ok(upgrade.on_upgrade(move |client| async move {
        pass(&service, browser, client, socket).await;
        drop(slot);
    }))
}

/// Whether a browser that closed a connection has ended, which may be noticed slightly later.
async fn has_ended(browser: &Browser) -> bool {
    timeout(NOTICE, browser.ended().cancelled()).await.is_ok()
}

/// Relays messages in both directions until one side ends.
async fn pass(service: &Arc<BrowserService>, browser: Arc<Browser>, client: WebSocket, socket: Socket) {
    let (mut to_client, mut from_client) = client.split();
    let (mut to_browser, mut from_browser) = socket.split();
    let heard = std::sync::Mutex::new(Instant::now());
    let last = || *heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let up = async {
        while let Some(Ok(frame)) = from_client.next().await {
            *heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
            let message = match frame {
                Frame::Text(text) => Message::text(text.as_str()),
                Frame::Binary(bytes) => Message::Binary(bytes),
                Frame::Ping(_) | Frame::Pong(_) => continue,
                Frame::Close(_) => return,
            };
            service.desktop.touch();
            if to_browser.send(message).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut pings = interval_at(Instant::now() + PING, PING);
        loop {
            let frame = tokio::select! {
                message = from_browser.next() => match message {
                    Some(Ok(Message::Text(text))) => match Utf8Bytes::try_from(Bytes::from(text)) {
                        Ok(text) => Frame::Text(text),
                        Err(_) => continue,
                    },
                    Some(Ok(Message::Binary(bytes))) => Frame::Binary(bytes),
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                },
                _ = pings.tick() => {
                    if last().elapsed() > SILENCE {
                        return;
                    }
                    Frame::Ping(Bytes::new())
                }
            };
            if !matches!(timeout(PATIENCE, to_client.send(frame)).await, Ok(Ok(()))) {
                return;
            }
        }
    };
    let ended = browser.ended();
    tokio::select! {
        () = up => {}
        () = down => {}
        () = ended.cancelled() => {}
    }
    let close = CloseFrame { code: 1001, reason: Utf8Bytes::from_static("the browser or its tab has ended") };
    // The connection is over either way.
    drop(timeout(Duration::from_secs(5), to_client.send(Frame::Close(Some(close)))).await);
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use axum::http::HeaderMap;
    use serde_json::json;

    #[test]
    fn addresses_lead_back_here() {
        let headers: HeaderMap = [
            (HOST, HeaderValue::from_static("box.example")),
            ("x-forwarded-proto".parse().unwrap(), HeaderValue::from_static("https")),
            ("x-forwarded-prefix".parse().unwrap(), HeaderValue::from_static("/sandbox/a")),
        ]
        .into_iter()
        .collect();
        let mut value = json!([{
            "id": "T", "url": "ws://127.0.0.1:9222/devtools/page/T",
            "webSocketDebuggerUrl": "ws://127.0.0.1:9222/devtools/page/T",
            "devtoolsFrontendUrl": "https://elsewhere.example/inspector.html?ws=127.0.0.1:9222/devtools/page/T",
        }]);
        readdress(&mut value, &Address::from_headers(&headers), 9222);
        let wanted = json!([{
            "id": "T", "url": "ws://127.0.0.1:9222/devtools/page/T",
            "webSocketDebuggerUrl": "wss://box.example/sandbox/a/cdp/devtools/page/T",
            "devtoolsFrontendUrl": "https://elsewhere.example/inspector.html?wss=box.example/sandbox/a/cdp/devtools/page/T",
        }]);
        assert_eq!(value, wanted);
    }
}
