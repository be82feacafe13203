//! `exec` on a terminal: this terminal and one in the sandbox, joined by a WebSocket.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use arenite_model::SandboxName;
use futures_util::{SinkExt, StreamExt};
use rustix::termios::{self, OptionalActions, Termios};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio_tungstenite::tungstenite::{self, Message};

use super::exec::Characters;
use super::quoted;
use crate::client::{Client, encoded, refusal};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

/// What to run on the sandbox's terminal.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) sandbox: SandboxName,
    /// None: the user's shell.
    pub(crate) line: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
}

impl Session {
    /// The line for the terminal's bash, preceded by settings that the socket has no field for.
    fn command(&self) -> Option<String> {
        if self.line.is_none() && self.env.is_empty() && self.timeout.is_none() {
            return None;
        }
        let mut line = String::new();
        for (key, value) in &self.env {
            line += &format!("export {key}={}; ", quoted(value));
        }
        let inner = self.line.as_deref().unwrap_or("exec bash -l");
        match self.timeout {
            Some(limit) => line += &format!("exec timeout --foreground -s KILL {} bash -c {}", limit.as_secs(), quoted(inner)),
            None => line += inner,
        }
        Some(line)
    }

    fn path(&self, size: (u16, u16)) -> String {
        let mut path = format!("/sandbox/{}/v1/shell/ws?once=true&cols={}&rows={}", self.sandbox, size.0, size.1);
        if let Some(line) = self.command() {
            path += &format!("&command={}", encoded(&line));
        }
        if let Some(dir) = &self.workdir {
            path += &format!("&exec_dir={}", encoded(dir));
        }
        path
    }
}

/// A message from the server. Unknown kinds are ignored.
#[derive(Debug, Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    timestamp: Value,
}

/// Runs it on this process's terminal until it ends.
pub(crate) async fn attach(client: &Client, session: Session) -> Outcome {
    let request = client.websocket(&session.path(size()))?;
    let (socket, _) = match tokio_tungstenite::client_async(request, client.dial().await?).await {
        Ok(connected) => connected,
        Err(tungstenite::Error::Http(answer)) => {
            let failure = refusal(answer.status(), answer.body().as_deref().unwrap_or_default());
            return Err(client.suggest(failure, &session.path(size()), None).await);
        }
        Err(tungstenite::Error::Io(_)) => return Err(client.no_answer()),
        Err(error) => return Err(Failure::new(format!("the terminal could not be opened: {error}"))),
    };
    let broken = || Failure::new("the connection broke off");
    let (mut send, mut receive) = socket.split();
    let mut resized = signal(SignalKind::window_change()).attempt(|| "could not watch the terminal's size".into())?;
    let mut stdin = tokio::io::stdin();
    let mut characters = Characters::default();
    let mut typing = true;
    let raw = RawMode::enter()?;
    let end = loop {
        let frame = tokio::select! {
            message = receive.next() => {
                let text = match message {
                    Some(Ok(Message::Text(text))) => text,
                    Some(Ok(Message::Binary(bytes))) => { output::bytes(&bytes); continue }
                    Some(Ok(Message::Close(_))) | None => break Err(Failure::new("the terminal was closed from the other side")),
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => break Err(Failure::new(format!("the connection broke off: {error}"))),
                };
                let Ok(frame) = serde_json::from_str::<Frame>(&text) else { continue };
                match frame.kind.as_str() {
                    "output" => { output::bytes(frame.data.as_str().unwrap_or_default().as_bytes()); continue }
                    "exit" => break Ok(frame.data.get("code").and_then(Value::as_i64).unwrap_or(0)),
                    "error" => break Err(Failure::new(frame.data.as_str().unwrap_or("the terminal failed").to_owned())),
                    "ping" if frame.timestamp.is_null() => json!({"type": "pong", "data": frame.data}),
                    "ping" => json!({"type": "pong", "data": {"timestamp": frame.timestamp}}),
                    _ => continue,
                }
            }
            text = typed(&mut stdin, &mut characters), if typing => match text {
                Ok(Some(text)) => json!({"type": "input", "data": text}),
                // This terminal is gone: the other one gets an end of file.
                Ok(None) | Err(_) => { typing = false; json!({"type": "input", "data": "\u{4}"}) }
            },
            _ = resized.recv() => {
                let (cols, rows) = size();
                json!({"type": "resize", "data": {"cols": cols, "rows": rows}})
            }
        };
        if send.send(Message::text(frame.to_string())).await.is_err() {
            break Err(broken());
        }
    };
    drop(raw);
    let _ = send.close().await;
    Ok(ExitCode::from((end? & 0xff) as u8))
}

/// Columns and rows of this terminal.
fn size() -> (u16, u16) {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}

/// The next piece of typed text; none at the end. Cancelling it loses nothing.
async fn typed(stdin: &mut tokio::io::Stdin, characters: &mut Characters) -> io::Result<Option<String>> {
    loop {
        let mut buffer = [0; 4096];
        let n = stdin.read(&mut buffer).await?;
        if n == 0 {
            return Ok(None);
        }
        let text = characters.take(&buffer[..n]);
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
}

/// The terminal without echo, line editing and signals, until it is dropped.
struct RawMode {
    before: Termios,
}

impl RawMode {
    fn enter() -> Result<Self, Failure> {
        let what = || "the terminal can't be set up".to_owned();
        let before = termios::tcgetattr(io::stdin()).attempt(what)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw).attempt(what)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_a_time_limit_reach_the_terminals_command() {
        let session = Session {
            sandbox: "demo".parse().unwrap(),
            line: Some("echo \"$A\"; exit 3".into()),
            workdir: Some("/tmp/a b".into()),
            env: [("A".to_owned(), "it's".to_owned())].into(),
            timeout: Some(Duration::from_secs(5)),
        };
        let output = std::process::Command::new("bash").args(["-c", &session.command().unwrap()]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"it's\n".as_slice()));
        assert!(session.path((80, 24)).contains("exec_dir=%2Ftmp%2Fa%20b"));
    }
}
