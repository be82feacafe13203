//! Calls and their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::session::{Event, Events, Session};
use super::socket::{self, Socket};

/// Default timeout for an answer.
pub const CALL_TIME: Duration = Duration::from_secs(30);
/// Maximum calls without an answer yet; further calls are refused.
const MAX_CALLS: usize = 1024;
/// Maximum queued messages; a further call waits.
const MAX_QUEUED: usize = 64;
/// Maximum events that a listener may be behind. Beyond it, the oldest are dropped and the listener is notified.
const MAX_EVENTS: usize = 2048;

#[derive(Debug, Error)]
pub enum CdpError {
    #[error("the browser could not be reached: {0}")]
    NotConnected(String),
    #[error("the browser has ended")]
    Closed,
    #[error("{MAX_CALLS} calls wait for the browser already")]
    TooManyCalls,
    #[error("the browser did not answer within {seconds} s")]
    TimedOut { method: &'static str, seconds: f64 },
    /// The document that a call was sent to was replaced, and the answer is lost.
    #[error("the page went to another document before it answered")]
    Superseded { method: &'static str },
    /// The browser's own message. `code` is JSON-RPC's; -32000 and -32001 usually mean that the target or session is gone.
    #[error("{message}")]
    Refused { method: &'static str, code: i64, message: String },
    #[error("the browser's answer can't be read: {source}")]
    Unreadable { method: &'static str, source: serde_json::Error },
}

/// A connection to the browser; cheap to clone. It closes when the last clone and all sessions are dropped.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    outgoing: mpsc::Sender<Utf8Bytes>,
    _connection: DropGuard,
}

#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    calls: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    events: broadcast::Sender<Arc<Event>>,
    closed: CancellationToken,
}

type Answer = Result<Box<RawValue>, Refusal>;

/// A target that can be attached to; `type` is the protocol's, such as `page` or `worker`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub target_id: String,
    pub r#type: String,
    pub url: String,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    code: i64,
    message: String,
    /// Additional text, which some refusals have.
    data: Option<Value>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: u64,
    method: &'a str,
    params: Value,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
}

/// An incoming message: an answer has an id, an event a method.
#[derive(Deserialize)]
struct Incoming {
    id: Option<u64>,
    #[serde(rename = "sessionId")]
    session: Option<String>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<Refusal>,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, session: Option<Arc<str>>) -> Events {
        Events::new(self.events.subscribe(), self.closed.clone(), session)
    }

    fn receive(&self, text: &str) {
        let Ok(incoming) = serde_json::from_str::<Incoming>(text) else {
            return tracing::warn!(bytes = text.len(), "the browser sent what is no message");
        };
        if let Some(id) = incoming.id {
            let Some(reply) = self.calls().remove(&id) else { return };
            let answer = match (incoming.error, incoming.result) {
                (Some(refusal), _) => Err(refusal),
                (None, result) => Ok(result.unwrap_or_else(null)),
            };
            // The caller may have given up.
            drop(reply.send(answer));
        } else if let Some(method) = incoming.method {
            let params = incoming.params.unwrap_or_else(null);
            // There may be no listeners.
            drop(self.events.send(Arc::new(Event { session: incoming.session, method, params })));
        }
    }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// Removes a call that was dropped.
struct Noted<'a>(&'a Shared, u64);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.calls().remove(&self.1);
    }
}

impl Client {
    /// Connects to a browser on loopback, by its port and the path of its WebSocket.
    pub async fn connect(port: u16, path: &str) -> Result<Self, CdpError> {
        let socket = socket::open(port, path).await.map_err(|error| CdpError::NotConnected(error.to_string()))?;
        Ok(Self::over(socket))
    }

    fn over(socket: Socket) -> Self {
        let shared = Arc::new(Shared {
            next: AtomicU64::new(1),
            calls: Mutex::default(),
            events: broadcast::Sender::new(MAX_EVENTS),
            closed: CancellationToken::new(),
        });
        let (outgoing, queue) = mpsc::channel(MAX_QUEUED);
        let wanted = CancellationToken::new();
        tokio::spawn(run(socket, queue, shared.clone(), wanted.clone()));
        Self(Arc::new(Inner { shared, outgoing, _connection: wanted.drop_guard() }))
    }

    /// Calls a method of the browser itself.
    ///
    /// # Errors
    /// If the browser is gone, refuses, or does not answer in [`CALL_TIME`].
    pub async fn call<R: DeserializeOwned>(&self, method: &'static str, params: impl Serialize) -> Result<R, CdpError> {
        self.send(None, method, params, CALL_TIME).await
    }

    /// Calls a method, of a session if one is given, and waits up to `patience` for the answer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn send<R: DeserializeOwned>(
        &self,
        session: Option<&str>,
        method: &'static str,
        params: impl Serialize,
        patience: Duration,
    ) -> Result<R, CdpError> {
        let unreadable = |source| CdpError::Unreadable { method, source };
        let params = serde_json::to_value(params).map_err(unreadable)?;
        let result = self.exchange(session, method, params, patience).await?;
        serde_json::from_str(result.get()).map_err(unreadable)
    }

    /// As [`Self::send`], compiled once for all types; returns the result as JSON text.
    pub(crate) async fn exchange(
        &self,
        session: Option<&str>,
        method: &'static str,
        params: Value,
        patience: Duration,
    ) -> Result<Box<RawValue>, CdpError> {
        let shared = &self.0.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let text = serde_json::to_string(&Call { id, method, params, session })
            .map_err(|source| CdpError::Unreadable { method, source })?;
        let (reply, answer) = oneshot::channel();
        {
            let mut calls = shared.calls();
            if calls.len() >= MAX_CALLS {
                return Err(CdpError::TooManyCalls);
            }
            calls.insert(id, reply);
        }
        let _noted = Noted(shared, id);
        let exchange = async {
            self.0.outgoing.send(text.into()).await.map_err(|_| CdpError::Closed)?;
            tokio::select! {
                answer = answer => answer.map_err(|_| CdpError::Closed),
                () = shared.closed.cancelled() => Err(CdpError::Closed),
            }
        };
        let late = |_| {
            tracing::debug!(method, "the browser did not answer");
            CdpError::TimedOut { method, seconds: patience.as_secs_f64() }
        };
        timeout(patience, exchange).await.map_err(late)??.map_err(|refusal| {
            let more = refusal.data.as_ref().and_then(Value::as_str).map_or(String::new(), |data| format!(": {data}"));
            CdpError::Refused { method, code: refusal.code, message: format!("{}{more}", refusal.message) }
        })
    }

    /// Lists all targets that can be attached to now.
    pub async fn targets(&self) -> Result<Vec<Target>, CdpError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Targets {
            target_infos: Vec<Target>,
        }
        let Targets { target_infos } = self.call("Target.getTargets", json!({})).await?;
        Ok(target_infos)
    }

    /// Attaches to a target: a page, a frame, a worker. The session lasts until [`Session::detach`], or the target's end.
    pub async fn attach(&self, target: &str) -> Result<Session, CdpError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Attached {
            session_id: String,
        }
        let attached: Attached = self.call("Target.attachToTarget", json!({"targetId": target, "flatten": true})).await?;
        Ok(self.session(attached.session_id))
    }

    /// Returns a session that the browser created itself, for `Target.attachedToTarget`.
    pub fn session(&self, id: impl Into<Arc<str>>) -> Session {
        Session::new(self.clone(), id.into())
    }

    /// Subscribes to all further events, with and without a session.
    pub fn events(&self) -> Events {
        self.0.shared.listen(None)
    }

    pub(super) fn events_of(&self, session: Arc<str>) -> Events {
        self.0.shared.listen(Some(session))
    }

    pub fn is_closed(&self) -> bool {
        self.0.shared.closed.is_cancelled()
    }

    /// Closes the connection, for all clones.
    pub fn close(&self) {
        self.0.shared.closed.cancel();
    }

    /// Returns when the connection has ended: the browser is gone.
    pub async fn closed(&self) {
        self.0.shared.closed.cancelled().await;
    }
}

async fn run(socket: Socket, mut queue: mpsc::Receiver<Utf8Bytes>, shared: Arc<Shared>, wanted: CancellationToken) {
    let (mut sink, mut stream) = socket.split();
    let write = async {
        while let Some(text) = queue.recv().await {
            if sink.send(Message::Text(text)).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Text(text) = message {
                shared.receive(&text);
            }
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
        () = wanted.cancelled() => {}
        () = shared.closed.cancelled() => {}
    }
    shared.closed.cancel();
    shared.calls().clear();
}
