//! The client of a running server: HTTP/1.1, with TLS if its URL is https.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use arenite_rollout::encoded;
use arenite_rollout::{ConnectError, Connector, ConnectorError, ServerStream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::cli::Server;
use crate::failure::{Failure, UNREACHABLE};
use crate::names;

/// The default address of the server.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";
/// Maximum size of a JSON answer, in bytes. Above the guest's own limit on a command's inline output.
const MAX_ANSWER: usize = 64 << 20;
/// Maximum size of an error body, in bytes.
const MAX_ERROR: usize = 1 << 20;

type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body of a size that is known before it is sent.
struct SizedBody {
    size: u64,
    content: RequestBody,
}

impl Body for SizedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.content).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.size)
    }
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// Scheme, authority and an optional path, without a slash at the end.
    base: String,
    connector: Connector,
    http: HttpClient<Connector, RequestBody>,
    key: Option<HeaderValue>,
    /// The command that makes all calls, which are then one step.
    command: Option<Command>,
}

/// A command that records its calls as one step.
#[derive(Debug, Clone)]
struct Command {
    header: HeaderValue,
    /// The header of the last call.
    end: HeaderValue,
    arguments: Option<HeaderValue>,
}

const COMMAND: HeaderName = HeaderName::from_static("x-arenite-command");
const ARGUMENTS: HeaderName = HeaderName::from_static("x-arenite-arguments");

/// The header of the key.
const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

impl Client {
    /// A client of the server, and with the key, of a command line.
    pub(crate) fn connect_to(server: &Server) -> Result<Self, Failure> {
        let mut client = Self::new(&server.server, server.ca.as_deref())?;
        if let Some(key) = &server.api_key {
            let mut value = HeaderValue::from_str(&key.0)
                .map_err(|_| Failure::new("the API key can't be sent: it has characters that no header has").exit_code(2))?;
            value.set_sensitive(true);
            client.key = Some(value);
        }
        Ok(client)
    }

    /// Parses a server's URL. `ca`: a PEM file of the certificate authorities to trust for https. Does not connect.
    pub(crate) fn new(server: &str, ca: Option<&Path>) -> Result<Self, Failure> {
        let refused = |error: ConnectorError| Failure::new(error.to_string()).maybe_hint(error.hint()).exit_code(2);
        let connector = Connector::new(server, ca).map_err(refused)?;
        let http = HttpClient::builder(TokioExecutor::new()).build(connector.clone());
        Ok(Self { base: server.trim_end_matches('/').to_owned(), connector, http, key: None, command: None })
    }

    /// The same client, but with its calls recorded as one step: the command's name, and its arguments unless its first call
    /// states them.
    pub(crate) fn recorded_as(&self, name: &str, arguments: &[(&str, &str)]) -> Result<Self, Failure> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|error| Failure::new(format!("no random bytes: {error}")))?;
        let header = format!("{name} {:016x}", u64::from_ne_bytes(random));
        let query: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let value = |text: String| HeaderValue::try_from(text).map_err(|_| Failure::new("the command can't be named"));
        let command = Command {
            end: value(format!("{header} end"))?,
            header: value(header)?,
            arguments: if arguments.is_empty() { None } else { Some(value(query.join("&"))?) },
        };
        Ok(Self { command: Some(command), ..self.clone() })
    }

    /// Ends the command: it makes no further calls in this sandbox.
    pub(crate) async fn end_command(&self, sandbox: &str) {
        let Some(command) = &self.command else { return };
        let last = Self { command: Some(Command { header: command.end.clone(), ..command.clone() }), ..self.clone() };
        // The server notices by itself, too, though later.
        let _ = last.send(Method::GET, &format!("/sandbox/{sandbox}/v1/ping"), None, empty()).await;
    }

    /// The server's URL, for people.
    pub(crate) fn server(&self) -> &str {
        &self.base
    }

    /// The request for a WebSocket at `path`.
    pub(crate) fn websocket(&self, path: &str) -> Result<Request<()>, Failure> {
        let url = format!("ws{}{path}", self.base.strip_prefix("http").unwrap_or(&self.base));
        let failed = |error: tungstenite::Error| Failure::new(format!("the terminal could not be opened: {error}"));
        let mut request = url.into_client_request().map_err(failed)?;
        request.headers_mut().extend(self.key.clone().map(|key| (KEY_HEADER, key)));
        // A person uses it.
        request.headers_mut().insert(HeaderName::from_static("x-arenite-origin"), HeaderValue::from_static("person"));
        Ok(request)
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        decode(self.send(Method::GET, path, None, empty()).await?).await
    }

    /// A list with the entries of all its pages, which are in the field `entries`.
    pub(crate) async fn get_all<T: DeserializeOwned>(&self, path: &str, entries: &str) -> Result<T, Failure> {
        let mut list: Value = self.get(path).await?;
        let mut cursor = next_cursor(&list);
        while let Some(given) = cursor {
            let separator = if path.contains('?') { '&' } else { '?' };
            let mut page: Value = self.get(&format!("{path}{separator}cursor={}", encoded(&given))).await?;
            cursor = next_cursor(&page);
            if cursor.as_ref() == Some(&given) {
                return Err(Failure::new("the server's list does not end: a page is followed by itself"));
            }
            list["next_cursor"] = page["next_cursor"].take();
            if let (Value::Array(all), Value::Array(more)) = (&mut list[entries], page[entries].take()) {
                all.extend(more);
            }
        }
        serde_json::from_value(list).map_err(|error| not_understood(&error))
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        self.send(Method::DELETE, path, None, empty()).await.map(drop)
    }

    /// The same with its answer.
    pub(crate) async fn delete_with<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        decode(self.send(Method::DELETE, path, None, empty()).await?).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.send_json(Method::POST, path, body).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.send_json(Method::PUT, path, body).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.send_json(Method::PATCH, path, body).await
    }

    /// Posts a request that may have to wait for the pull of an image. Shows the progress of the pull, and returns the last event.
    pub(crate) async fn post_watched<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        progress: &mut dyn FnMut(&Value),
    ) -> Result<T, Failure> {
        let json = serde_json::to_vec(body).map_err(|error| Failure::new(format!("could not write the request: {error}")))?;
        let request = Request::post("/")
            .header(header::ACCEPT, "text/event-stream")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(json))
            .map_err(|error| Failure::new(format!("the request can't be sent: {error}")))?;
        let response = self.raw(path, request).await?;
        if !response.status().is_success() {
            return Err(self.refused(response, path, serde_json::to_value(body).ok()).await);
        }
        let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        if !is_stream {
            return decode(response).await;
        }
        let mut stream = response.into_body().into_data_stream();
        let (mut rest, mut kind) = (Vec::new(), String::new());
        while let Some(piece) = stream.next().await {
            rest.extend_from_slice(&piece.map_err(|error| Failure::new(format!("the server's answer broke off: {error}")))?);
            if rest.len() > MAX_ANSWER {
                return Err(Failure::new("the server sent a line that is too long"));
            }
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                if let Some(name) = line.strip_prefix("event: ") {
                    name.trim_end().clone_into(&mut kind);
                }
                let Some(data) = line.strip_prefix("data: ") else { continue };
                match kind.as_str() {
                    "pull" => progress(&serde_json::from_str(data).map_err(|error| not_understood(&error))?),
                    "failed" => {
                        let problem: Value = serde_json::from_str(data).map_err(|error| not_understood(&error))?;
                        let status = problem["status"].as_u64().and_then(|status| StatusCode::from_u16(status as u16).ok());
                        let failure = refusal(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), data.as_bytes());
                        return Err(self.suggest(failure, path, serde_json::to_value(body).ok()).await);
                    }
                    "server_stopping" => return Err(Failure::new("the server is stopping")),
                    _ => return serde_json::from_str(data).map_err(|error| not_understood(&error)),
                }
            }
        }
        Err(Failure::new("the server's answer broke off"))
    }

    async fn send_json<T: DeserializeOwned>(&self, method: Method, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let json = serde_json::to_vec(body).map_err(|error| Failure::new(format!("could not write the request: {error}")))?;
        let content = Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed_unsync();
        let response = self.exchange(method, path, Some("application/json"), content).await?;
        if !response.status().is_success() {
            return Err(self.refused(response, path, serde_json::to_value(body).ok()).await);
        }
        decode(response).await
    }

    /// The raw bytes of an answer, as they arrive.
    pub(crate) async fn download(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + Unpin + use<>, Failure> {
        self.download_sized(path).await.map(|(_, content)| content)
    }

    /// The same with their number, if the server knows it.
    pub(crate) async fn download_sized(
        &self,
        path: &str,
    ) -> Result<(Option<u64>, impl Stream<Item = io::Result<Bytes>> + Send + Unpin + use<>), Failure> {
        let body = self.send(Method::GET, path, None, empty()).await?.into_body();
        Ok((body.size_hint().exact(), body.into_data_stream().map_err(io::Error::other)))
    }

    /// Sends a file of this size as it is.
    pub(crate) async fn post_file<T: DeserializeOwned>(
        &self,
        path: &str,
        size: u64,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<T, Failure> {
        let body = SizedBody { size, content: StreamBody::new(content.map_ok(Frame::data)).boxed_unsync() };
        decode(self.send(Method::POST, path, Some("application/octet-stream"), body.boxed_unsync()).await?).await
    }

    /// Uploads a file in AIO's format: a multipart form with `path`, then `file`.
    pub(crate) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        target: &str,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<T, Failure> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).map_err(|error| Failure::new(format!("no random bytes: {error}")))?;
        let boundary = format!("arenite-{:032x}", u128::from_ne_bytes(random));
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n{target}\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        let tail = format!("\r\n--{boundary}--\r\n");
        let once = |text: String| futures_util::stream::once(async move { Ok(Bytes::from(text)) });
        let whole = once(head).chain(content).chain(once(tail)).map_ok(Frame::data);
        let body = StreamBody::new(whole).boxed_unsync();
        let kind = format!("multipart/form-data; boundary={boundary}");
        decode(self.send(Method::POST, path, Some(&kind), body).await?).await
    }

    /// Sends a request and returns its answer, which has a success status.
    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: RequestBody,
    ) -> Result<Response<Incoming>, Failure> {
        let response = self.exchange(method, path, content_type, body).await?;
        if response.status().is_success() { Ok(response) } else { Err(self.refused(response, path, None).await) }
    }

    /// The failure of an answer without a success status.
    async fn refused(&self, response: Response<Incoming>, path: &str, body: Option<Value>) -> Failure {
        let status = response.status();
        let content = Limited::new(response.into_body(), MAX_ERROR).collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        self.suggest(refusal(status, &content), path, body).await
    }

    /// Adds to the failure of a request what was meant by the name in it that doesn't exist. Only names that the caller may list
    /// are suggested.
    pub(crate) async fn suggest(&self, failure: Failure, path: &str, body: Option<Value>) -> Failure {
        let text = failure.to_string();
        let mut named = names::in_request(path, body.as_ref());
        match failure.status() {
            Some(404) => {}
            // Some names are values of a request. Those that the message doesn't mention are not what is wrong with it.
            Some(400) => named.retain(|(_, name)| text.contains(name.as_str())),
            _ => return failure,
        }
        for (kind, wanted) in named {
            let Some(found) = self.names(kind, names::PATIENCE).await else { continue };
            if let Some(hint) = names::hint(&wanted, &found, kind.command, failure.hint_text()) {
                return failure.hint(hint);
            }
        }
        failure
    }

    /// The names of a kind, as far as a page has them. None: the caller can't list them, or not in time.
    pub(crate) async fn names(&self, kind: names::Kind, patience: Duration) -> Option<Vec<String>> {
        let list = async {
            let response = self.exchange(Method::GET, &kind.path(), None, empty()).await.ok()?;
            if response.status().is_success() { decode::<Value>(response).await.ok() } else { None }
        };
        let page = tokio::time::timeout(patience, list).await.ok()??;
        Some(kind.names(&page))
    }

    /// Sends a request and returns its answer with any status.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: RequestBody,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(header::USER_AGENT, concat!("arenite-cli/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.key {
            request = request.header(KEY_HEADER, key);
        }
        if let Some(command) = &self.command {
            request = request.header(COMMAND, &command.header);
            if let Some(arguments) = &command.arguments {
                request = request.header(ARGUMENTS, arguments);
            }
        }
        if let Some(kind) = content_type {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request.body(body).map_err(|error| Failure::new(format!("the request can't be sent: {error}")))?;
        self.http.request(request).await.map_err(|error| self.unreachable(&error))
    }

    /// Sends a request and returns the answer with any status. The caller reads the body.
    pub(crate) async fn raw(&self, path: &str, request: Request<Bytes>) -> Result<Response<Incoming>, Failure> {
        let (mut parts, body) = request.into_parts();
        let uri = format!("{}{path}", self.base).parse();
        parts.uri = uri.map_err(|error| Failure::new(format!("the request can't be sent: {error}")))?;
        parts.headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("arenite-cli/", env!("CARGO_PKG_VERSION"))));
        parts.headers.extend(self.key.clone().map(|key| (KEY_HEADER, key)));
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        self.http.request(Request::from_parts(parts, body)).await.map_err(|error| self.unreachable(&error))
    }

    /// The failure of a refused connection.
    pub(crate) fn no_answer(&self) -> Failure {
        Failure::new(format!("no server answers at {}", self.base))
            .hint("start one with: sudo arenite serve; or name another with --server URL or ARENITE_SERVER")
            .exit_code(UNREACHABLE)
    }

    /// A connection for other protocols than HTTP.
    pub(crate) async fn dial(&self) -> Result<ServerStream, Failure> {
        let uri = self.base.parse().map_err(|error| Failure::new(format!("the server's address is not valid: {error}")))?;
        self.connector.dial(&uri).await.map_err(|error| self.no_connection(&error))
    }

    fn no_connection(&self, error: &ConnectError) -> Failure {
        match error {
            ConnectError::Unreachable(_) => self.no_answer(),
            ConnectError::Tls { .. } => Failure::new(error.to_string())
                .hint("--ca or ARENITE_CA names a private certificate authority's PEM file; a server without TLS has an http:// URL")
                .exit_code(UNREACHABLE),
        }
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        while let Some(source) = cause.source() {
            cause = source;
            if let Some(error) = cause.downcast_ref::<ConnectError>() {
                return self.no_connection(error);
            }
        }
        Failure::new(format!("the connection to {} failed: {cause}", self.base)).exit_code(UNREACHABLE)
    }
}

fn empty() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

async fn decode<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| Failure::new(format!("the server's answer broke off: {error}")))?.to_bytes();
    // An empty answer means null.
    let body: &[u8] = if body.is_empty() { b"null" } else { &body };
    serde_json::from_slice(body).map_err(|error| not_understood(&error))
}

/// Reads an answer that was fetched as JSON.
pub(crate) fn read_answer<T: DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| not_understood(&error))
}

fn not_understood(error: &serde_json::Error) -> Failure {
    Failure::new(format!("the server's answer is not understood: {error}"))
        .hint("is it an Arenite server, and of this version? compare with: arenite --version")
}

/// The cursor of the page after this one.
fn next_cursor(page: &Value) -> Option<String> {
    page.get("next_cursor")?.as_str().map(str::to_owned)
}

/// The failure in an error body of any dialect.
pub(crate) fn refusal(status: StatusCode, body: &[u8]) -> Failure {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).filter(|t| !t.is_empty());
    let message = ["/detail", "/error/message", "/message", "/error", "/data/message"].into_iter().find_map(text);
    let message = message.map_or_else(
        || match String::from_utf8_lossy(body).lines().next().map(str::trim) {
            Some(line) if !line.is_empty() && value.is_null() => {
                format!("the server answered {status}: {}", line.chars().take(200).collect::<String>())
            }
            _ => format!("the server answered {status}"),
        },
        str::to_owned,
    );
    let hint = match status {
        StatusCode::UNAUTHORIZED => Some("the server asks for a key: set ARENITE_API_KEY, or pass --api-key".to_owned()),
        _ => ["/error/hint", "/hint"].into_iter().find_map(text).map(str::to_owned),
    };
    Failure::new(message).maybe_hint(hint).of_status(status.as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_of_every_dialect_give_their_message() {
        for body in [
            r#"{"error":{"code":"not_found","message":"there is no sandbox x"}}"#,
            r#"{"success":false,"message":"there is no sandbox x","data":null}"#,
            r#"{"code":"404","error":"there is no sandbox x"}"#,
            r#"{"type":"/api/v2/docs/errors#not_found","title":"Not found","status":404,"detail":"there is no sandbox x"}"#,
            r#"{"success":false,"message":"there is no sandbox x","detail":[{"loc":["body"],"msg":"field required"}]}"#,
        ] {
            assert_eq!(refusal(StatusCode::NOT_FOUND, body.as_bytes()).to_string(), "there is no sandbox x");
        }
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"").to_string(), "the server answered 502 Bad Gateway");
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"<html>\nx").to_string(), "the server answered 502 Bad Gateway: <html>");
    }

    #[test]
    fn addresses_that_could_not_work_are_refused_before_anything_is_sent() {
        for bad in ["127.0.0.1:8080", "ftp://x", "http://u@x", "http://x/?q", "", "http://a b"] {
            assert!(Client::new(bad, None).is_err(), "{bad}");
        }
        let client = Client::new("http://localhost:1/prefix/", None).unwrap();
        assert_eq!(client.websocket("/v1").unwrap().uri(), "ws://localhost:1/prefix/v1");
        assert_eq!(encoded("/a b&c=ä"), "%2Fa%20b%26c%3D%C3%A4");
    }
}
