//! `mcp`: passes messages of MCP clients from standard input to a server, and its answers to standard output.
//!
//! One message per line, as desktop clients send them. This process has the session with the server. If the server was
//! restarted meanwhile, the session restarts with the client's own first message.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::cli::McpArgs;
use crate::client::Client;
use crate::failure::{Failure, Outcome};

/// Maximum number of concurrent requests; further ones wait.
const MAX_REQUESTS: usize = 256;
/// Maximum number of answers that wait to be written.
const WAITING: usize = 64;
/// Maximum size of a message from the server, in bytes.
const MAX_MESSAGE: usize = 64 << 20;
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The used fields of a message.
#[derive(Debug, Deserialize)]
struct Glimpse<'a> {
    method: Option<String>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The parameters of a cancellation.
#[derive(Debug, Deserialize)]
struct Cancelled {
    #[serde(rename = "requestId")]
    request_id: Value,
}

/// The result of the handshake.
#[derive(Debug, Clone, Default)]
struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

struct Relay {
    client: Client,
    path: String,
    out: mpsc::Sender<Bytes>,
    session: Mutex<Session>,
    /// The client's first message, for a restart of the session.
    hello: std::sync::OnceLock<Bytes>,
}

pub(crate) async fn mcp(args: McpArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let path = args.sandbox.map_or_else(|| "/mcp".to_owned(), |name| format!("/sandbox/{name}/mcp"));
    let (out, answers) = mpsc::channel(WAITING);
    let relay = Arc::new(Relay { client, path, out, session: Mutex::default(), hello: std::sync::OnceLock::new() });
    let writer = tokio::spawn(write(answers));
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut requests = JoinSet::new();
    let mut under_way: HashMap<String, AbortHandle> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).split(b'\n');
    while let Some(line) = lines.next_segment().await.map_err(|error| Failure::new(format!("standard input: {error}")))? {
        let line = Bytes::from(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let glimpse = serde_json::from_slice::<Glimpse<'_>>(&line).ok();
        let method = glimpse.as_ref().and_then(|m| m.method.as_deref()).unwrap_or_default();
        let request = glimpse.as_ref().and_then(|m| m.id).filter(|_| !matches!(method, "" | "initialize"));
        if let Some(id) = request {
            let id = id.get().to_owned();
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let relay = Arc::clone(&relay);
            let request = requests.spawn(async move {
                relay.pass(line).await;
                drop(permit);
            });
            while requests.try_join_next().is_some() {}
            under_way.retain(|_, request| !request.is_finished());
            under_way.insert(id, request);
        } else if method == "notifications/cancelled" && relay.session.lock().await.id.is_none() {
            // Without a session, the server notices it by the end of the request's connection.
            let cancelled =
                glimpse.and_then(|m| m.params).and_then(|params| serde_json::from_str::<Cancelled>(params.get()).ok());
            if let Some(request) = cancelled.and_then(|cancelled| under_way.remove(&cancelled.request_id.to_string())) {
                request.abort();
            }
        } else {
            // In order: later messages depend on them.
            relay.pass(line).await;
        }
        if relay.out.is_closed() {
            break;
        }
    }
    // Requests get their answers, also after the end of the input.
    while requests.join_next().await.is_some() {}
    relay.end().await;
    drop(relay);
    drop(writer.await);
    Ok(std::process::ExitCode::SUCCESS)
}

async fn write(mut answers: mpsc::Receiver<Bytes>) {
    let mut stdout = tokio::io::stdout();
    while let Some(message) = answers.recv().await {
        let written = async {
            stdout.write_all(&message).await?;
            stdout.write_all(b"\n").await?;
            stdout.flush().await
        };
        if written.await.is_err() {
            // The reader is gone.
            return;
        }
    }
}

impl Relay {
    /// Passes a message on, and writes the answer. Failures are answered as errors of the protocol.
    async fn pass(&self, message: Bytes) {
        if let Err(why) = self.try_pass(&message).await {
            let id = serde_json::from_slice::<Glimpse<'_>>(&message).ok().and_then(|m| m.id.map(|id| id.get().to_owned()));
            match id {
                Some(id) => {
                    let id: Value = serde_json::from_str(&id).unwrap_or_default();
                    let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": why}});
                    self.say(error.to_string().into()).await;
                }
                None => eprintln!("arenite mcp: {why}"),
            }
        }
    }

    async fn try_pass(&self, message: &Bytes) -> Result<(), String> {
        let is_hello = serde_json::from_slice::<Glimpse<'_>>(message).is_ok_and(|m| m.method.as_deref() == Some("initialize"));
        if is_hello {
            *self.session.lock().await = Session::default();
            // A client sends it once.
            drop(self.hello.set(message.clone()));
        }
        let session = self.session.lock().await.clone();
        let mut answer = self.send(message.clone(), &session).await?;
        if answer.status() == StatusCode::NOT_FOUND && session.id.is_some() {
            let session = self.restart_session(&session).await?;
            answer = self.send(message.clone(), &session).await?;
        }
        let id = answer.headers().get(SESSION).cloned();
        let mut first = None;
        self.read(answer, |text| {
            if is_hello && first.is_none() {
                first = Some(text.clone());
            }
            Some(text)
        })
        .await?;
        if let Some(first) = first {
            *self.session.lock().await = Session { id, version: agreed(&first) };
        }
        Ok(())
    }

    /// The server lost the session: repeats the client's hello. Another request may have done so meanwhile.
    async fn restart_session(&self, lost: &Session) -> Result<Session, String> {
        let mut session = self.session.lock().await;
        if session.id != lost.id {
            return Ok(session.clone());
        }
        let hello = self.hello.get().ok_or("the session was lost")?.clone();
        let answer = self.send(hello, &Session::default()).await?;
        let id = answer.headers().get(SESSION).cloned();
        let mut first = None;
        self.read(answer, |text| {
            first.get_or_insert(text);
            None
        })
        .await?;
        *session = Session { id, version: first.as_ref().and_then(agreed) };
        let ready = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        self.send(ready, &session).await?;
        Ok(session.clone())
    }

    async fn send(&self, message: Bytes, session: &Session) -> Result<Response<Incoming>, String> {
        let newest = newest(&message);
        let mut request = Request::new(message);
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.extend(session.id.clone().map(|id| (SESSION, id)));
        headers.extend(session.version.clone().map(|version| (VERSION, version)));
        headers.extend(newest);
        self.client.raw(&self.path, request).await.map_err(|failure| failure.whole())
    }

    /// Reads an answer: passes its messages through `look`, and writes what that returns.
    async fn read(&self, answer: Response<Incoming>, mut look: impl FnMut(Bytes) -> Option<Bytes>) -> Result<(), String> {
        let status = answer.status();
        let is_stream = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let broke = |error: hyper::Error| format!("the server's answer broke off: {error}");
        let mut body = answer.into_body().into_data_stream();
        let (mut held, mut data) = (BytesMut::new(), BytesMut::new());
        while let Some(piece) = body.try_next().await.map_err(broke)? {
            held.extend_from_slice(&piece);
            while is_stream && let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                let line = held.split_to(end + 1);
                match line.trim_ascii_end() {
                    [] => {
                        if let Some(message) = Some(data.split().freeze()).filter(|m| !m.is_empty()).and_then(&mut look) {
                            self.say(message).await;
                        }
                    }
                    line => data.extend_from_slice(line.strip_prefix(b"data:").unwrap_or_default().trim_ascii_start()),
                }
            }
            if held.len() + data.len() > MAX_MESSAGE {
                return Err(format!("the server's answer is longer than {MAX_MESSAGE} bytes"));
            }
        }
        let whole = held.freeze();
        let is_message = serde_json::from_slice::<Value>(&whole).is_ok_and(|value| value.get("jsonrpc").is_some());
        if is_message {
            if let Some(message) = look(whole) {
                self.say(message).await;
            }
        } else if !status.is_success() {
            return Err(crate::client::refusal(status, &whole).whole());
        }
        Ok(())
    }

    async fn say(&self, message: Bytes) {
        // A disconnected client is noticed where its next message would be read.
        drop(self.out.send(message).await);
    }

    /// Ends the session on the server.
    async fn end(&self) {
        let Some(id) = self.session.lock().await.id.clone() else { return };
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = Method::DELETE;
        request.headers_mut().insert(SESSION, id);
        // It would expire by itself.
        drop(self.client.raw(&self.path, request).await);
    }
}

/// The fields that a message of the newest protocol, which has no sessions, repeats in headers.
fn newest(message: &Bytes) -> Vec<(HeaderName, HeaderValue)> {
    let message: Value = serde_json::from_slice(message).unwrap_or_default();
    let text = |pointer: &str| HeaderValue::from_str(message.pointer(pointer)?.as_str()?).ok();
    let Some(version) = text("/params/_meta/io.modelcontextprotocol~1protocolVersion") else { return Vec::new() };
    let said = [("mcp-method", text("/method")), ("mcp-name", text("/params/name"))];
    let said = said.into_iter().filter_map(|(name, value)| Some((HeaderName::from_static(name), value?)));
    said.chain([(VERSION, version)]).collect()
}

/// The version that the server's hello names.
fn agreed(hello: &Bytes) -> Option<HeaderValue> {
    let hello: Value = serde_json::from_slice(hello).ok()?;
    HeaderValue::from_str(hello.pointer("/result/protocolVersion")?.as_str()?).ok()
}
