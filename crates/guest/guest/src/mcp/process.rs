//! A server's process: runs as the sandbox's user. Its standard error is kept for error messages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::{SpawnError, Stage};
use rustix::fs::{Gid, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Child, Command, Exit, Signal};
use arenite_guest_runtime::until;

/// Bytes kept of standard error: the last ones.
const KEPT_STDERR: usize = 8 << 10;
/// How long a server may take to end when its input is closed, and again after `TERM`.
const GRACE: Duration = Duration::from_secs(2);

type Tail = Arc<Mutex<VecDeque<u8>>>;

/// A running server. Dropping it ends the process and what it started.
#[derive(Debug)]
pub(super) struct Process {
    stderr: Tail,
    ended: watch::Receiver<Option<Exit>>,
    _stop: oneshot::Sender<()>,
}

/// The guest's ends of the pipes.
pub(super) struct Streams {
    pub(super) stdout: Receiver,
    pub(super) stdin: Sender,
}

impl Process {
    pub(super) async fn start(
        runtime: &Runtime,
        name: &str,
        argv: Vec<String>,
        env: &[(String, String)],
        cwd: String,
    ) -> Result<(Self, Streams), SpawnError> {
        let user = &runtime.user;
        let pipes = || -> io::Result<_> {
            let (stdin, to_stdin) = pipe_with(PipeFlags::CLOEXEC)?;
            let (from_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
            let (from_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
            if user.uid != 0 && geteuid().is_root() {
                // A pipe belongs to its creator; without this, the server could not open /dev/stderr.
                for pipe in [&stdin, &stdout, &stderr] {
                    fchown(pipe, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
                }
            }
            let streams = Streams { stdout: Receiver::from_owned_fd(from_stdout)?, stdin: Sender::from_owned_fd(to_stdin)? };
            Ok(([stdin, stdout, stderr], streams, Receiver::from_owned_fd(from_stderr)?))
        };
        let failed = |source| SpawnError::Failed {
            program: argv.first().cloned().unwrap_or_default(),
            cwd: cwd.clone(),
            stage: Stage::Descriptors,
            source,
        };
        let (stdio, streams, from_stderr): ([OwnedFd; 3], _, _) = pipes().map_err(failed)?;
        let env = runtime.environment(user, env);
        let command = Command { argv, env, cwd, user, stdio, controlling_tty: false };
        let child = runtime.processes.spawn(command).await?;
        let stderr = Tail::default();
        let (end, ended) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let said = Stderr { name: name.to_owned(), tail: stderr.clone(), line: Vec::new() };
        tokio::spawn(keep(child, from_stderr, said, end, stopped));
        Ok((Self { stderr, ended, _stop: stop }, streams))
    }

    pub(super) fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// How the process ended, if it did, and its last standard error, for an error message.
    pub(super) async fn account(&self) -> String {
        // The output and the exit may arrive later than the failure that they explain.
        let mut ended = self.ended.clone();
        let _ = timeout(Duration::from_millis(200), ended.wait_for(Option::is_some)).await;
        let exit = *self.ended.borrow();
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&tail.iter().copied().collect::<Vec<u8>>()).trim().to_owned();
        let mut account = match exit {
            Some(Exit::Code(code)) => format!("; it ended with code {code}"),
            Some(Exit::Signal(signal)) => format!("; it was ended by signal {signal}"),
            None => String::new(),
        };
        if !said.is_empty() {
            account = format!("{account}; its standard error ends with: {said}");
        }
        account
    }
}

/// Follows the process to its end. Ends it when the handle is dropped.
async fn keep(
    mut child: Child,
    mut from_stderr: Receiver,
    mut stderr: Stderr,
    end: watch::Sender<Option<Exit>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut buffer = vec![0; 4096];
    let mut open = true;
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut deadline = None;
    let exit = loop {
        tokio::select! {
            exit = child.wait() => break exit,
            read = from_stderr.read(&mut buffer), if open => match read {
                Ok(0) | Err(_) => open = false,
                Ok(n) => stderr.note(&buffer[..n]),
            },
            _ = &mut stopped, if deadline.is_none() => deadline = Some(tokio::time::Instant::now() + GRACE),
            () = until(deadline) => {
                let signal = signals.next().unwrap_or(Signal::KILL);
                let (leader, marker) = (child.pid, child.marker.clone());
                tokio::task::spawn_blocking(move || process::kill_members(Some(leader), &marker, signal));
                deadline = Some(tokio::time::Instant::now() + GRACE);
            }
        }
    };
    while let Ok(n @ 1..) = from_stderr.try_read(&mut buffer) {
        stderr.note(&buffer[..n]);
    }
    stderr.log();
    end.send_replace(Some(exit));
    // Processes that it leaves behind may hold its output open, but have no client.
    tokio::task::spawn_blocking(move || process::kill_members(None, &child.marker, Signal::KILL));
}

/// Standard error of a server: logs its lines and keeps the last of them.
struct Stderr {
    name: String,
    tail: Tail,
    /// The line that is not finished yet.
    line: Vec<u8>,
}

impl Stderr {
    fn note(&mut self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(bytes);
        let excess = tail.len().saturating_sub(KEPT_STDERR);
        tail.drain(..excess);
        drop(tail);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= KEPT_STDERR {
                self.log();
            }
        }
    }

    fn log(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if !line.trim().is_empty() {
            tracing::warn!(server = self.name, "an MCP server says: {}", line.trim_end());
        }
        self.line.clear();
    }
}
