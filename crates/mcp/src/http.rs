//! Requests over HTTP: selects the transport of each, and completes what clients leave out but the library requires.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::header::{ACCEPT, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use ::http::request::Parts;
use ::http::response::Parts as AnswerHead;
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyDataStream, BodyExt, Full};
use rmcp::model::NumberOrString;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::Tools;
use crate::handler::Handler;
use crate::older::Older;
use crate::sessions::Sessions;

/// An answer that comes within this time is not streamed.
const SOON: Duration = Duration::from_secs(2);
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The endpoint of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `…/mcp`: streamable HTTP.
    Streamable,
    /// `…/sse`: an older client's stream of answers. Holds the address for its requests, relative to this endpoint.
    Stream(&'static str),
    /// `…/messages`: an older client's requests.
    Messages,
}

/// All HTTP transports of one set of tools.
pub struct Server<T: Tools> {
    transports: Transports,
    tools: PhantomData<fn(T)>,
}

/// The same, whatever the tools.
struct Transports {
    sessions: Arc<Sessions>,
    lasting: StreamableHttpService<Handler, LocalSessionManager>,
    single: StreamableHttpService<Handler, NeverSessionManager>,
    older: Older,
    stop: CancellationToken,
}

/// The fields of a message that select its transport.
#[derive(Deserialize)]
struct Glimpse<'a> {
    jsonrpc: Option<IgnoredAny>,
    method: Option<String>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    params: Option<GlimpseOfParams>,
}

#[derive(Deserialize)]
struct GlimpseOfParams {
    #[serde(rename = "_meta")]
    meta: Option<GlimpseOfMeta>,
}

#[derive(Deserialize)]
struct GlimpseOfMeta {
    #[serde(rename = "progressToken")]
    progress_token: Option<IgnoredAny>,
}

impl Glimpse<'_> {
    /// Whether the sender wants progress notifications.
    fn wants_news(&self) -> bool {
        self.params.as_ref().and_then(|params| params.meta.as_ref()).is_some_and(|meta| meta.progress_token.is_some())
    }
}

impl<T: Tools> Server<T> {
    /// The owner must check host, origin, and caller of each request before it calls [`Server::serve`].
    pub fn new(tools: T) -> Self {
        Self { transports: Transports::new(Handler(Arc::new(tools))), tools: PhantomData }
    }

    /// Ends all sessions and their calls. Later requests are refused.
    pub fn stop(&self) {
        self.transports.stop.cancel();
    }

    /// Answers a request with a body that was already read. `owner` identifies the caller: a session belongs to the owner that
    /// started it, and does not exist for others.
    pub async fn serve(
        &self,
        endpoint: Endpoint,
        mut parts: Parts,
        body: Bytes,
        caller: T::Caller,
        owner: &str,
    ) -> Response<Body> {
        parts.extensions.insert(caller);
        self.transports.serve(endpoint, parts, body, owner).await
    }
}

impl Transports {
    fn new(handler: Handler) -> Self {
        let sessions = Arc::new(Sessions::new());
        let stop = CancellationToken::new();
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_cancellation_token(stop.clone())
            .with_max_request_body_bytes(crate::MAX_BODY);
        let make = || {
            let handler = handler.clone();
            move || Ok(handler.clone())
        };
        let single = config.clone().with_legacy_session_mode(false).with_json_response(true);
        Self {
            lasting: StreamableHttpService::new(make(), Arc::clone(&sessions.manager), config),
            single: StreamableHttpService::new(make(), Arc::default(), single),
            older: Older::new(handler, stop.clone()),
            sessions,
            stop,
        }
    }

    /// Boxed, so that the library's code behind it is compiled in this crate and not in each that calls it.
    fn serve<'a>(&'a self, endpoint: Endpoint, parts: Parts, body: Bytes, owner: &'a str) -> BoxFuture<'a, Response<Body>> {
        Box::pin(self.select(endpoint, parts, body, owner))
    }

    /// Selects the transport.
    async fn select(&self, endpoint: Endpoint, parts: Parts, body: Bytes, owner: &str) -> Response<Body> {
        match endpoint {
            Endpoint::Streamable
                if text(&parts.headers, &SESSION).is_some_and(|session| !self.sessions.belongs_to(&session, owner)) =>
            {
                no_session()
            }
            Endpoint::Streamable if parts.method == Method::POST => self.post(parts, body, owner).await,
            Endpoint::Streamable => self.other(parts, owner).await,
            Endpoint::Stream(messages) if parts.method == Method::GET => self.older.open(messages, owner),
            Endpoint::Stream(_) => not_allowed("GET", "this is where an older client's answers come; requests go to /mcp"),
            Endpoint::Messages if parts.method == Method::POST => self.older.take(parts, &body, owner).await,
            Endpoint::Messages => not_allowed("POST", "an older client's requests are posted here"),
        }
    }

    /// Handles a message, with or without a session.
    async fn post(&self, mut parts: Parts, body: Bytes, owner: &str) -> Response<Body> {
        let glimpse: Glimpse<'_> = match serde_json::from_slice(&body) {
            Ok(glimpse) => glimpse,
            Err(error) if error.is_data() => {
                let why = "the body is not one JSON-RPC message (batches are not taken: send one message per request)";
                return refusal(-32600, why);
            }
            Err(error) => return refusal(-32700, &format!("the body is not JSON: {error}")),
        };
        let method = glimpse.method.as_deref().unwrap_or_default();
        let is_request = !method.is_empty() && !method.starts_with("notifications/");
        let (is_bare, wants_news) = (glimpse.jsonrpc.is_none(), glimpse.wants_news());
        let accepts_events = accepts(&parts.headers, "text/event-stream");
        let session = text(&parts.headers, &SESSION);
        let lasts = session.is_some() || (method == "initialize" && accepts_events);
        let id = glimpse.id.and_then(|id| serde_json::from_str(id.get()).ok());
        let body = match is_bare || (is_request && !accepts_events) {
            true => completed(&body, is_request && is_bare, accepts_events),
            false => body,
        };
        parts.headers.insert(ACCEPT, BOTH);
        parts.headers.insert(CONTENT_TYPE, JSON);
        parts.headers.remove(CONTENT_LENGTH);
        let request = Request::from_parts(parts, Full::new(body));
        if !lasts {
            return self.single.handle(request).await.map(Body::new);
        }
        if let Some(session) = &session {
            self.touch(session, owner, false).await;
        }
        let answer = self.lasting.handle(request).await;
        match session {
            None => {
                if let Some(made) = text(answer.headers(), &SESSION) {
                    self.touch(&made, owner, false).await;
                }
                answer.map(Body::new)
            }
            Some(session) => match id.filter(|_| is_request && answer.status() == StatusCode::OK) {
                Some(id) => {
                    let leaving = Leaving { sessions: Arc::clone(&self.sessions), call: Some((session, id)) };
                    let (head, body) = answer.into_parts();
                    let watched = Watched { body, leaving };
                    match wants_news {
                        true => Response::from_parts(head, Body::new(watched)),
                        false => at_once(head, watched).await,
                    }
                }
                None => answer.map(Body::new),
            },
        }
    }

    /// Handles a session's stream, or its deletion.
    async fn other(&self, mut parts: Parts, owner: &str) -> Response<Body> {
        let Some(session) = text(&parts.headers, &SESSION) else {
            let why = "without a session there is nothing to read: POST a message. Older clients (SSE) connect to …/mcp/sse";
            return not_allowed("POST", why);
        };
        if !accepts(&parts.headers, "text/event-stream") {
            parts.headers.insert(ACCEPT, BOTH);
        }
        let ends = parts.method == Method::DELETE;
        if ends && !self.is_there(&session).await {
            return no_session();
        }
        self.touch(&session, owner, parts.headers.contains_key(LAST_EVENT)).await;
        let mut answer = self.lasting.handle(Request::from_parts(parts, Full::new(Bytes::new()))).await;
        if ends {
            self.sessions.forget(&session);
            if answer.status() == StatusCode::ACCEPTED {
                // The session has already ended, and clients log anything but 200 and 204 as a failure.
                *answer.status_mut() = StatusCode::OK;
            }
        }
        answer.map(Body::new)
    }

    async fn is_there(&self, session: &str) -> bool {
        self.sessions.manager.sessions.read().await.contains_key(session)
    }

    /// Notes the use of a session that exists. Names that clients invent are not kept.
    async fn touch(&self, session: &str, owner: &str, resumes: bool) {
        if self.is_there(session).await {
            self.sessions.touch(session, owner, resumes).await;
        }
    }
}

fn no_session() -> Response<Body> {
    let why = "there is no such session, or not any more\n".to_owned();
    plain(StatusCode::NOT_FOUND, HeaderValue::from_static("text/plain; charset=utf-8"), why)
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Whether a client names this answer type itself: most clients that send `*/*` expect a complete answer.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let named = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|text| text.split(',')).any(|part| part.split(';').next().unwrap_or_default().trim() == wanted)
}

/// A message with the fields that its sender left out. A client that accepts no events gets no progress notifications.
fn completed(body: &Bytes, needs_id: bool, accepts_events: bool) -> Bytes {
    let Ok(Value::Object(mut message)) = serde_json::from_slice(body) else { return body.clone() };
    message.entry("jsonrpc").or_insert_with(|| json!("2.0"));
    if needs_id {
        message.entry("id").or_insert_with(|| json!(1));
    }
    if !accepts_events && let Some(Value::Object(meta)) = message.get_mut("params").and_then(|params| params.get_mut("_meta")) {
        meta.remove("progressToken");
    }
    Value::Object(message).to_string().into()
}

/// A protocol error for a message that could not be parsed.
pub(crate) fn refusal(code: i32, why: &str) -> Response<Body> {
    let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": why}});
    plain(StatusCode::BAD_REQUEST, JSON, body.to_string())
}

fn not_allowed(methods: &'static str, why: &str) -> Response<Body> {
    let mut answer =
        plain(StatusCode::METHOD_NOT_ALLOWED, HeaderValue::from_static("text/plain; charset=utf-8"), format!("{why}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

pub(crate) fn plain(status: StatusCode, kind: HeaderValue, body: String) -> Response<Body> {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// An answer that comes soon is sent as one JSON text instead of a stream of one event: clients limit the size of events, and it
/// is less work. A slower one becomes a stream, so that its connection shows activity.
async fn at_once<B>(mut head: AnswerHead, mut body: B) -> Response<Body>
where
    B: http_body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + Unpin + 'static,
{
    let mut held = BytesMut::new();
    let whole = async {
        while let Some(frame) = body.frame().await {
            match frame.map(|frame| frame.into_data().unwrap_or_default()) {
                Ok(piece) => held.extend_from_slice(&piece),
                Err(_) => return false,
            }
        }
        true
    };
    let is_whole = tokio::time::timeout(SOON, whole).await.unwrap_or(false);
    let held = held.freeze();
    if is_whole && let Some(message) = only_message(&held) {
        head.headers.insert(CONTENT_TYPE, JSON);
        return Response::from_parts(head, Body::from(message));
    }
    let first = futures_util::stream::once(std::future::ready(Ok(held)));
    let rest = BodyDataStream::new(body).map_err(Into::into);
    Response::from_parts(head, Body::from_stream(first.chain(rest)))
}

/// The data of the only event that has data.
fn only_message(events: &Bytes) -> Option<Bytes> {
    let lines = events.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let mut data = lines.filter_map(|line| line.strip_prefix(b"data:")).map(<[u8]>::trim_ascii_start).filter(|d| !d.is_empty());
    let message = data.next()?;
    data.next().is_none().then(|| events.slice_ref(message))
}

/// A session's call with an answer in progress. If this is dropped before the end, the client has left.
struct Leaving {
    sessions: Arc<Sessions>,
    call: Option<(String, NumberOrString)>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some((session, id)) = self.call.take() {
            self.sessions.left(session, id);
        }
    }
}

struct Watched<B> {
    body: B,
    leaving: Leaving,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(next, Poll::Ready(None)) {
            self.leaving.call = None;
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_taken_out_of_its_event() {
        let events = Bytes::from_static(b"data: \nid: 0\nretry: 3000\n\ndata: {\"a\":1}\nid: 1/0\n\n");
        assert_eq!(only_message(&events), Some(Bytes::from_static(b"{\"a\":1}")));
        assert_eq!(only_message(&Bytes::from_static(b"data: \n\n")), None);
        assert_eq!(only_message(&Bytes::from_static(b"data: 1\n\ndata: 2\n\n")), None);
    }

    #[test]
    fn what_bare_calls_leave_out_is_added() {
        let bare = Bytes::from_static(br#"{"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1}}}"#);
        let whole: Value = serde_json::from_slice(&completed(&bare, true, false)).unwrap();
        assert_eq!(whole, json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "_meta": {}}}));
        let kept: Value = serde_json::from_slice(&completed(&bare, true, true)).unwrap();
        assert_eq!(kept["params"]["_meta"]["progressToken"], 1);
    }

    #[test]
    fn kinds_of_answers_are_read_from_lists() {
        let accept = |text: &'static str| HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(text))]);
        assert!(accepts(&accept("application/json, text/event-stream;q=0.9"), "text/event-stream"));
        assert!(!accepts(&accept("*/*"), "text/event-stream"));
        assert!(!accepts(&HeaderMap::new(), "text/event-stream"));
    }
}
