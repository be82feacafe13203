//! A session's terminal over a WebSocket, and the address of the page that shows it.
//!
//! Text frames hold JSON: `{"type": …, "data": …}`. The guest sends `session_id`, `ready`, `output` (text as the terminal gets
//! it), `error` and `ping`. The client sends `input`, `resize` (`{"cols", "rows"}`, in `data` or beside `type`) and `pong`.
//! Anything else, including binary frames, is typed unchanged.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at, timeout};

use super::attached;
use super::service::{Viewer, session_id};
use super::session::Message;
use crate::shell::ShellService;
use arenite_guest_runtime::http::{Address, ApiError, QueryArgs};

/// Time between two pings.
pub(super) const PING: Duration = Duration::from_secs(30);
/// Time for a viewer to accept one frame. Then it is dropped.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of one frame from a viewer.
pub(super) const MAX_FRAME: usize = 1 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct Query {
    session_id: Option<String>,
    /// Arenite's extension: a terminal for one command, see [`attached`].
    once: Option<bool>,
    pub(super) command: Option<String>,
    pub(super) exec_dir: Option<String>,
    pub(super) cols: Option<u16>,
    pub(super) rows: Option<u16>,
}

/// `GET /v1/shell/ws`. An unknown session is refused at the handshake.
pub(super) async fn connect(
    State(shell): State<Arc<ShellService>>,
    QueryArgs(query): QueryArgs<Query>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    if query.once == Some(true) {
        return attached::connect(&shell.runtime, query, upgrade).await;
    }
    let id = query.session_id.as_deref().filter(|id| !id.is_empty()).map(session_id).transpose()?;
    let viewer = shell.attach(id.as_ref()).await?;
    Ok(upgrade.max_message_size(MAX_FRAME).max_frame_size(MAX_FRAME).on_upgrade(move |socket| serve(socket, viewer)))
}

async fn serve(mut socket: WebSocket, viewer: Viewer) {
    let Viewer { session, mut output, counted: _counted } = viewer;
    let hello = [json!({"type": "session_id", "data": session.id}), json!({"type": "ready", "data": {"session_id": session.id}})];
    for frame in hello {
        if !send(&mut socket, frame).await {
            return;
        }
    }
    let mut pings = interval_at(Instant::now() + PING, PING);
    loop {
        tokio::select! {
            piece = output.recv() => {
                let Some(piece) = piece else {
                    let why = "the session has ended, or this terminal was too slow";
                    if send(&mut socket, json!({"type": "error", "data": why})).await {
                        close(&mut socket).await;
                    }
                    return;
                };
                if !send(&mut socket, json!({"type": "output", "data": &*piece})).await {
                    return;
                }
            }
            _ = pings.tick() => {
                if !send(&mut socket, ping()).await {
                    return;
                }
            }
            frame = socket.recv() => {
                let message = match frame {
                    Some(Ok(Frame::Text(text))) => read(&text),
                    Some(Ok(Frame::Binary(bytes))) => Some(typed(bytes.to_vec())),
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => None,
                    Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
                };
                session.touch();
                if let Some(message) = message && !session.send(message).await {
                    return;
                }
            }
        }
    }
}

pub(super) fn ping() -> Value {
    let timestamp = jiff::Timestamp::now().as_millisecond();
    json!({"type": "ping", "timestamp": timestamp, "data": {"timestamp": timestamp}})
}

pub(super) async fn close(socket: &mut WebSocket) {
    // The connection ends either way.
    drop(timeout(PATIENCE, socket.send(Frame::Close(None))).await);
}

pub(super) async fn send(socket: &mut WebSocket, frame: Value) -> bool {
    let sending = socket.send(Frame::text(frame.to_string()));
    matches!(timeout(PATIENCE, sending).await, Ok(Ok(())))
}

pub(super) fn typed(bytes: Vec<u8>) -> Message {
    Message::Type { bytes, reply: None }
}

/// The request in a text frame; `None` for the answer to a ping.
pub(super) fn read(text: &str) -> Option<Message> {
    let raw = || Some(typed(text.as_bytes().to_vec()));
    let Ok(Value::Object(frame)) = serde_json::from_str(text) else {
        return raw();
    };
    let data = frame.get("data");
    match frame.get("type").and_then(Value::as_str) {
        Some("input") => match data.and_then(Value::as_str) {
            Some(input) => Some(typed(input.as_bytes().to_vec())),
            None => raw(),
        },
        Some("resize") => {
            let side = |name| {
                let value = data.and_then(|d| d.get(name)).or(frame.get(name));
                value.and_then(Value::as_u64).map(|n| u16::try_from(n).unwrap_or(u16::MAX))
            };
            match (side("cols"), side("rows")) {
                (Some(columns), Some(rows)) => Some(Message::Resize { columns, rows }),
                _ => None,
            }
        }
        Some("ping" | "pong") => None,
        _ => raw(),
    }
}

/// The URL of the page that shows a session's terminal, as the caller sees this server.
pub(super) fn url(headers: &HeaderMap, session_id: &str) -> String {
    Address::from_headers(headers).http(&format!("/terminal?session_id={session_id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_nobody_knows_are_typed() {
        let bytes = |text| match read(text) {
            Some(Message::Type { bytes, .. }) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes(r#"{"type":"input","data":"ls\r"}"#), "ls\r");
        for raw in ["ls\r", "42", r#"{"a":1}"#, r#"{"type":"other"}"#] {
            assert_eq!(bytes(raw), raw);
        }
        for resize in [r#"{"type":"resize","data":{"cols":80,"rows":24}}"#, r#"{"type":"resize","cols":80,"rows":24}"#] {
            let size = read(resize);
            assert!(matches!(size, Some(Message::Resize { columns: 80, rows: 24 })));
        }
        assert!(read(r#"{"type":"pong","data":{"timestamp":1}}"#).is_none());
    }
}
