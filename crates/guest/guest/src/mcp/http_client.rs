//! Streamable HTTP for rmcp's transport: a connection for each request, and a bound on the size of answers.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse};
use sse_stream::{Sse, SseStream};

use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::MAX_MESSAGE;
use arenite_guest_runtime::dial::{dial, secure};
use arenite_guest_runtime::http::client;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// The most bytes of an answer that reports a failure.
const MAX_REFUSAL: usize = 64 << 10;

type Failed = StreamableHttpError<io::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

#[derive(Debug, Clone)]
pub(super) struct HttpClient {
    /// A file of trusted certificates, checked before the image's.
    pub(super) certificates: Option<Arc<str>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl StreamableHttpClient for HttpClient {
    type Error = io::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let body = serde_json::to_vec(&message)?;
        let accepts = [(ACCEPT, format!("{JSON}, {EVENTS}")), (CONTENT_TYPE, JSON.to_owned())];
        let in_session = session_id.is_some();
        let answer = self.send((Method::POST, &uri), accepts, session_id, auth_header, custom_headers, body.into()).await?;
        let (status, kind) = (answer.status(), content_type(&answer));
        if status == StatusCode::NOT_FOUND && in_session {
            return Err(Failed::SessionExpired);
        }
        if !status.is_success() {
            let body = client::collect(answer.into_body(), MAX_REFUSAL).await.map_err(Failed::Client)?;
            // A protocol error in an HTTP one: rmcp finds the call by its id.
            return match serde_json::from_slice(&body) {
                Ok(refusal @ ServerJsonRpcMessage::Error(_)) if !in_session => {
                    Ok(StreamableHttpPostResponse::Json(refusal, None))
                }
                _ => Err(refused(status, &body)),
            };
        }
        let is_request = matches!(message, ClientJsonRpcMessage::Request(_));
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) || !is_request {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = answer.headers().get(SESSION).and_then(|v| v.to_str().ok()).map(str::to_owned);
        if kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(answer), session));
        }
        if !kind.starts_with(JSON) {
            return Err(Failed::UnexpectedContentType(Some(kind)));
        }
        let body = client::collect(answer.into_body(), MAX_MESSAGE).await.map_err(Failed::Client)?;
        Ok(StreamableHttpPostResponse::Json(serde_json::from_slice(&body)?, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Failed> {
        let answer = self.send((Method::DELETE, &uri), [], Some(session_id), auth_header, custom_headers, Bytes::new()).await?;
        match answer.status() {
            status if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status => Err(refused(status, b"")),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let accepts = [(ACCEPT, EVENTS.to_owned())].into_iter().chain(last_event_id.map(|id| (LAST_EVENT, id)));
        let answer = self.send((Method::GET, &uri), accepts, session_id, auth_header, custom_headers, Bytes::new()).await?;
        match answer.status() {
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => Err(Failed::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(refused(status, b"")),
            _ if !content_type(&answer).starts_with(EVENTS) => Err(Failed::ServerDoesNotSupportSse),
            _ => Ok(events(answer)),
        }
    }
}

impl HttpClient {
    async fn send(
        &self,
        (method, uri): (Method, &str),
        extra: impl IntoIterator<Item = (HeaderName, String)>,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failed> {
        let wrong = |e: &dyn std::fmt::Display| Failed::Client(io::Error::new(io::ErrorKind::InvalidInput, e.to_string()));
        let uri: Uri = uri.parse().map_err(|e| wrong(&e))?;
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else { return Err(wrong(&"the URL names no host")) };
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        // A URL may contain credentials; they are not part of the host's name.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
        for (name, value) in extra {
            request = request.header(name, value);
        }
        for (name, value) in custom_headers {
            request = request.header(name, value);
        }
        if let Some(id) = session_id {
            request = request.header(SESSION, &*id);
        }
        if let Some(token) = auth_header {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| wrong(&e))?;
        let is_secure = uri.scheme_str() == Some("https");
        let stream = dial(host, uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 })).await.map_err(Failed::Client)?;
        let stream: Box<dyn Stream> = match is_secure {
            true => Box::new(secure(stream, host, self.certificates.as_deref()).await.map_err(Failed::Client)?),
            false => Box::new(stream),
        };
        client::send(stream, request).await.map_err(Failed::Client)
    }
}

fn refused(status: StatusCode, body: &[u8]) -> Failed {
    let text: String = String::from_utf8_lossy(body).chars().take(256).collect();
    Failed::UnexpectedServerResponse(format!("HTTP {status}: {text}").into())
}

fn content_type(answer: &Response<Incoming>) -> String {
    answer.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default().to_ascii_lowercase()
}

/// The events of an answer. An event that is too large ends the stream.
fn events(answer: Response<Incoming>) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut pending = 0;
    let mut last = 0;
    let bytes = answer.into_body().into_data_stream().map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        // An event ends at an empty line.
        for byte in piece.iter().filter(|b| **b != b'\r') {
            pending = if *byte == b'\n' && last == b'\n' { 0 } else { pending + 1 };
            last = *byte;
        }
        match pending > MAX_MESSAGE {
            true => Err(io::Error::other(format!("an event is larger than {MAX_MESSAGE} bytes"))),
            false => Ok(piece),
        }
    });
    SseStream::from_bytes_stream(bytes).boxed()
}
