//! The transport of 2024: one stream for all answers, and a second endpoint for requests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::request::Parts;
use ::http::{HeaderValue, Response, StatusCode};
use axum::body::Body;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::StreamExt;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::serve_server_with_ct;
use rmcp::transport::sink_stream::SinkStreamTransport;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, PollSender};

use crate::handler::Handler;
use crate::http::{plain, refusal};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 256;
/// Messages that wait, in each direction.
const WAITING: usize = 64;
/// Time for a message to be accepted.
const PATIENCE: Duration = Duration::from_secs(10);

/// By the connections' ids, with their owners.
type Inboxes = Arc<Mutex<HashMap<String, (Box<str>, mpsc::Sender<ClientJsonRpcMessage>)>>>;

pub(crate) struct Older {
    handler: Handler,
    inboxes: Inboxes,
    stop: CancellationToken,
}

/// A connection. Dropping it ends it and its calls.
struct Connection {
    id: String,
    inboxes: Inboxes,
    end: CancellationToken,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.end.cancel();
    }
}

impl Older {
    pub(crate) fn new(handler: Handler, stop: CancellationToken) -> Self {
        Self { handler, inboxes: Arc::default(), stop }
    }

    /// Opens a client's stream: first the relative address that it posts to, then the answers.
    pub(crate) fn open(&self, messages: &str, owner: &str) -> Response<Body> {
        let (Ok(high), Ok(low)) = (getrandom::u64(), getrandom::u64()) else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "no connection could be made");
        };
        let id = format!("{high:016x}{low:016x}");
        let (inbox, mut incoming) = mpsc::channel::<ClientJsonRpcMessage>(WAITING);
        {
            let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            if inboxes.len() >= MAX_CONNECTIONS {
                return text(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections of older clients; close one");
            }
            inboxes.insert(id.clone(), (owner.into(), inbox));
        }
        let (outbox, outgoing) = mpsc::channel::<ServerJsonRpcMessage>(WAITING);
        let connection = Connection { id, inboxes: Arc::clone(&self.inboxes), end: self.stop.child_token() };
        let first = Event::default().event("endpoint").data(format!("{messages}?session_id={}", connection.id));
        let end = connection.end.clone();
        let handler = self.handler.clone();
        tokio::spawn(async move {
            let incoming = futures_util::stream::poll_fn(move |cx| incoming.poll_recv(cx));
            let transport = SinkStreamTransport::new(PollSender::new(outbox), incoming);
            // A client that never initializes gets no answer.
            if let Ok(server) = serve_server_with_ct(handler, transport, end).await {
                drop(server.waiting().await);
            }
        });
        let answers = futures_util::stream::unfold((outgoing, connection), |(mut outgoing, connection)| async move {
            let message = tokio::select! {
                message = outgoing.recv() => message?,
                () = connection.end.cancelled() => return None,
            };
            // Messages contain only strings and numbers, so this can't fail.
            let text = serde_json::to_string(&message).unwrap_or_default();
            Some((Event::default().event("message").data(text), (outgoing, connection)))
        });
        let events = futures_util::stream::once(std::future::ready(first)).chain(answers).map(Ok::<_, Infallible>);
        Sse::new(events).keep_alive(KeepAlive::default()).into_response()
    }

    /// Accepts one of its requests.
    pub(crate) async fn take(&self, parts: Parts, body: &[u8], owner: &str) -> Response<Body> {
        let query = parts.uri.query().unwrap_or_default().split('&');
        let id = query.filter_map(|pair| pair.split_once('=')).find(|(name, _)| matches!(*name, "session_id" | "sessionId"));
        let Some((_, id)) = id else { return text(StatusCode::BAD_REQUEST, "session_id is missing") };
        let inbox = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        let Some((_, inbox)) = inbox.filter(|(of, _)| **of == *owner) else {
            return text(StatusCode::NOT_FOUND, "there is no such session: open the stream again");
        };
        let mut message: ClientJsonRpcMessage = match serde_json::from_slice(body) {
            Ok(message) => message,
            Err(error) => return refusal(-32700, &format!("the body is not a message: {error}")),
        };
        message.insert_extension(parts);
        match inbox.send_timeout(message, PATIENCE).await {
            Ok(()) => text(StatusCode::ACCEPTED, "Accepted"),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the session takes no more messages at the moment"),
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    plain(status, HeaderValue::from_static("text/plain; charset=utf-8"), text.to_owned())
}
