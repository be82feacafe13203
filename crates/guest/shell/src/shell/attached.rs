//! One command on its own terminal, while a viewer is connected: `arenite exec` uses it on a terminal.
//!
//! `WS /v1/shell/ws?once=true` takes optional `command` (a line for the shell; absent: an interactive shell), `exec_dir`, `cols` and
//! `rows`. The frames are those of a session's terminal, and `exit` (`{"code": n}`) comes before the close. No session is
//! created. When the viewer disconnects, the terminal hangs up, as on a lost line.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::ws::{Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at};

use super::pty::{COLUMNS, Pty, ROWS};
use super::service::ShellError;
use super::session::Message;
use super::terminal::{self, MAX_FRAME, PING, Query};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::{Child, Command, incomplete_end};
use arenite_guest_runtime::shells::CommandShell;

/// The most such terminals. Further ones are refused.
const MAX_ATTACHED: usize = 32;
/// Typed bytes that the terminal has not accepted yet. Beyond it, the viewer's frames are left on the socket.
const MAX_TYPED: usize = 256 << 10;
/// The most bytes of the command's line: an argument may have 128 KiB.
const MAX_LINE: usize = 100 << 10;
const READ_BUFFER: usize = 32 << 10;

static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// One of the slots for such terminals.
struct TerminalSlot;

impl TerminalSlot {
    fn take() -> Option<Self> {
        let next = |n: usize| (n < MAX_ATTACHED).then_some(n + 1);
        ATTACHED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(|_| Self)
    }
}

impl Drop for TerminalSlot {
    fn drop(&mut self) {
        ATTACHED.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn connect(runtime: &Runtime, query: Query, upgrade: WebSocketUpgrade) -> Result<Response, ApiError> {
    let slot = TerminalSlot::take().ok_or(ShellError::TooManyAttached)?;
    let terminal = (!runtime.config().env.contains_key("TERM")).then(|| ("TERM".to_owned(), "xterm-256color".to_owned()));
    let terminal: Vec<_> = terminal.into_iter().collect();
    let env = runtime.environment(&runtime.user, &terminal);
    let shell = CommandShell::find(&env).ok_or(ShellError::NoShell)?;
    let mut argv = vec![shell.name().to_owned()];
    if let Some(line) = query.command {
        match line {
            line if line.contains('\0') => return Err(ShellError::Nul.into()),
            line if line.len() > MAX_LINE => {
                let message =
                    format!("the command has {} bytes; the most is {MAX_LINE}; write it to a file and run that", line.len());
                return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
            }
            line => argv.extend(["-c".to_owned(), line]),
        }
    }
    let cwd = query.exec_dir.filter(|dir| !dir.is_empty()).unwrap_or_else(|| runtime.default_dir().display().to_string());
    if !std::path::Path::new(&cwd).is_dir() {
        return Err(ShellError::NoDirectory(cwd).into());
    }
    let not_started = |error: &dyn std::fmt::Display| ShellError::NotStarted(error.to_string());
    let (pty, slave) = Pty::open(&runtime.user).map_err(|e| not_started(&e))?;
    pty.resize(query.cols.unwrap_or(COLUMNS), query.rows.unwrap_or(ROWS));
    let again = || slave.try_clone().map_err(|e| not_started(&e));
    let command = Command { argv, env, cwd, user: &runtime.user, stdio: [again()?, again()?, slave], controlling_tty: true };
    let child = runtime.processes.spawn(command).await.map_err(|e| not_started(&e))?;
    let upgrade = upgrade.max_message_size(MAX_FRAME).max_frame_size(MAX_FRAME);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, pty, child, slot)))
}

async fn serve(mut socket: WebSocket, mut pty: Pty, mut child: Child, _slot: TerminalSlot) {
    if !terminal::send(&mut socket, json!({"type": "ready", "data": {}})).await {
        return;
    }
    let mut pings = interval_at(Instant::now() + PING, PING);
    let mut buffer = vec![0; READ_BUFFER];
    let mut output = Output::default();
    let mut typed: VecDeque<u8> = VecDeque::new();
    let exit = loop {
        tokio::select! {
            // Output that precedes the end comes first.
            biased;
            n = pty.read(&mut buffer), if pty.is_open() => {
                if n == 0 {
                    pty.close_input();
                } else if !output.send(&mut socket, &buffer[..n]).await {
                    return;
                }
            }
            exit = child.wait() => break exit,
            n = pty.write(typed.as_slices().0), if !typed.is_empty() => drop(typed.drain(..n)),
            frame = socket.recv(), if typed.len() < MAX_TYPED => {
                let message = match frame {
                    Some(Ok(Frame::Text(text))) => terminal::read(&text),
                    Some(Ok(Frame::Binary(bytes))) => Some(terminal::typed(bytes.to_vec())),
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => None,
                    Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
                };
                match message {
                    Some(Message::Type { bytes, .. }) => typed.extend(bytes),
                    Some(Message::Resize { columns, rows }) => pty.resize(columns, rows),
                    _ => {}
                }
            }
            _ = pings.tick() => {
                if !terminal::send(&mut socket, terminal::ping()).await {
                    return;
                }
            }
        }
    };
    // A background job may go on printing; the command's output is what is there now.
    loop {
        match pty.read_now(&mut buffer) {
            0 => break,
            n if !output.send(&mut socket, &buffer[..n]).await => return,
            _ => {}
        }
    }
    if terminal::send(&mut socket, json!({"type": "exit", "data": {"code": exit.shell_code()}})).await {
        terminal::close(&mut socket).await;
    }
}

/// Splits output into frames of whole characters.
#[derive(Debug, Default)]
struct Output {
    /// The first bytes of a character that is not complete yet.
    partial: Vec<u8>,
}

impl Output {
    async fn send(&mut self, socket: &mut WebSocket, bytes: &[u8]) -> bool {
        self.partial.extend_from_slice(bytes);
        let cut = self.partial.len() - incomplete_end(&self.partial);
        if cut == 0 {
            return true;
        }
        let text = Value::from(String::from_utf8_lossy(&self.partial[..cut]));
        self.partial.drain(..cut);
        terminal::send(socket, json!({"type": "output", "data": text})).await
    }
}
