//! One command: its process, its streams, and its end.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::{SpawnError, Stage};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::session::Session;
use super::types::CommandStatus;
use arenite_guest_runtime::process::{self, Budget, Child, Exit, Piece, Processes, Retained, Signal};
use arenite_guest_runtime::shells::CommandShell;
use arenite_guest_runtime::until;
use arenite_guest_runtime::users::User;

/// Longer commands are passed to bash over standard input: an argument may have 128 KiB, a message to the spawner 160.
const MAX_INLINE: usize = 32 << 10;
/// How long `write` waits for a process to read its standard input.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
const READ_BUFFER: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: CommandStatus,
    pub(super) exit_code: Option<i32>,
}

/// The id of a command, which the service generates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandId(String);

impl CommandId {
    pub(super) fn random() -> Self {
        Self(arenite_guest_runtime::random_id())
    }

    /// The id that a call gives; none if no command can have it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_valid.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: CommandId,
    pub(super) text: String,
    stdout: Arc<Mutex<Retained>>,
    stderr: Arc<Mutex<Retained>>,
    end: watch::Sender<Option<End>>,
    /// Output arrived, or the command ended.
    pub(super) changed: Notify,
    stdin: Arc<tokio::sync::Mutex<Option<Sender>>>,
    leader: i32,
    marker: String,
    kill_requested: AtomicBool,
}

/// How to start a command.
pub(super) struct Plan<'a> {
    pub(super) text: String,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: String,
    pub(super) user: &'a User,
    /// Clients may write to standard input; otherwise it is empty from the start.
    pub(super) writable: bool,
    /// `BASH_ENV` names the session's snapshot.
    pub(super) snapshot: bool,
    pub(super) shell: CommandShell,
}

/// The process and the pipes, which [`Command::drive`] takes over.
pub(super) struct Driven {
    child: Child,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
}

/// Counts of two kinds of commands.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) running: AtomicUsize,
    /// The process has ended, but a process that it started still holds a pipe open.
    lingering: AtomicUsize,
}

/// Beyond this number, the pipes of the next one are closed: a process that writes to one gets `SIGPIPE`.
const MAX_LINGERING: usize = 128;

#[derive(Debug, Error)]
pub(super) enum WriteError {
    #[error("it has ended or has no standard input to write to")]
    Closed,
    #[error("it reads no input: {written} of {length} bytes were taken within {} s", WRITE_PATIENCE.as_secs())]
    Stuck { written: usize, length: usize },
}

impl Command {
    /// Starts a command. The caller spawns [`Command::drive`].
    pub(super) async fn start(
        id: CommandId,
        plan: Plan<'_>,
        processes: &Processes,
        budget: &Arc<Budget>,
    ) -> Result<(Arc<Self>, Driven), SpawnError> {
        if plan.text.contains('\0') {
            return Err(SpawnError::Nul);
        }
        // The snapshot is read through BASH_ENV before the command's first line; scripts that the command starts must not read it
        // again.
        let prefix = match plan.shell {
            _ if !plan.snapshot => "",
            CommandShell::Bash => "unset BASH_ENV;",
            // Other shells don't read it by themselves.
            CommandShell::Sh => ". \"$BASH_ENV\";unset BASH_ENV;",
        };
        let script = format!("{prefix}{}", plan.text);
        // Other shells can't read that many characters and leave the rest of standard input to the command.
        let by_stdin = plan.shell == CommandShell::Bash && script.len() > MAX_INLINE;
        let length = script.len();
        let argument = match by_stdin {
            // In the C locale a character is a byte. `eval` expands the text before `c` is unset.
            true => format!("LC_ALL=C IFS= read -r -N {length} c || :;eval \"unset -v c;$c\""),
            false => script.clone(),
        };
        let pipes = || -> io::Result<_> {
            let (stdin, to_stdin) = match plan.writable || by_stdin {
                true => {
                    let (read, write) = process::input_pipe(plan.user)?;
                    (read, Some(write))
                }
                false => (process::dev_null()?, None),
            };
            let (from_stdout, stdout) = process::output_pipe(plan.user)?;
            let (from_stderr, stderr) = process::output_pipe(plan.user)?;
            Ok(([stdin, stdout, stderr], to_stdin, from_stdout, from_stderr))
        };
        let (stdio, to_stdin, from_stdout, from_stderr) = pipes().map_err(|source| SpawnError::Failed {
            program: plan.shell.name().to_owned(),
            cwd: plan.cwd.clone(),
            stage: Stage::Descriptors,
            source,
        })?;
        let child = processes
            .spawn(process::Command {
                argv: plan.shell.run(argument),
                env: plan.env,
                cwd: plan.cwd,
                user: plan.user,
                stdio,
                controlling_tty: false,
            })
            .await?;
        let stdin = Arc::new(tokio::sync::Mutex::new(None));
        if let Some(mut sender) = to_stdin {
            let mut slot = Arc::clone(&stdin).lock_owned().await;
            if by_stdin {
                // The slot stays locked meanwhile, so that no input overtakes the script.
                tokio::spawn(async move {
                    let sent = sender.write_all(script.as_bytes()).await;
                    if sent.is_ok() && plan.writable {
                        *slot = Some(sender);
                    }
                });
            } else {
                *slot = Some(sender);
            }
        }
        let command = Arc::new(Self {
            id,
            text: plan.text,
            stdout: Arc::new(Mutex::new(Retained::new(budget))),
            stderr: Arc::new(Mutex::new(Retained::new(budget))),
            end: watch::Sender::new(None),
            changed: Notify::new(),
            stdin,
            leader: child.pid,
            marker: child.marker.clone(),
            kill_requested: AtomicBool::new(false),
        });
        let driven = Driven { child, stdout: Some(from_stdout), stderr: Some(from_stderr) };
        Ok((command, driven))
    }

    /// Drives the command to its end, and its pipes to theirs.
    pub(super) async fn drive(
        self: Arc<Self>,
        driven: Driven,
        session: Arc<Session>,
        hard_timeout: Option<Duration>,
        budget: Arc<Budget>,
        load: Arc<Load>,
    ) {
        load.running.fetch_add(1, Ordering::Relaxed);
        let Driven { mut child, mut stdout, mut stderr } = driven;
        let mut buffer = Vec::new();
        let deadline = hard_timeout.and_then(|limit| Instant::now().checked_add(limit));
        let mut timed_out = false;
        let exit = loop {
            tokio::select! {
                exit = child.wait() => break exit,
                () = readable(&stdout) => self.take(&session, Stream::Stdout, &mut stdout, &mut buffer),
                () = readable(&stderr) => self.take(&session, Stream::Stderr, &mut stderr, &mut buffer),
                () = until(deadline), if !timed_out => {
                    timed_out = true;
                    self.signal(Signal::KILL);
                }
            }
        };
        // The command's output is in the pipes now. Only that is read: a background child may write for ever.
        for (stream, pipe) in [(Stream::Stdout, &mut stdout), (Stream::Stderr, &mut stderr)] {
            if let Some(receiver) = pipe {
                let rest = process::read_rest(receiver);
                self.note(&session, stream, &rest);
            }
        }
        load.running.fetch_sub(1, Ordering::Relaxed);
        self.finish(exit, timed_out, &session);
        if let Ok(mut stdin) = self.stdin.try_lock() {
            *stdin = None;
        }
        if load.lingering.fetch_add(1, Ordering::Relaxed) < MAX_LINGERING {
            while stdout.is_some() || stderr.is_some() {
                tokio::select! {
                    () = readable(&stdout), if stdout.is_some() => self.take(&session, Stream::Stdout, &mut stdout, &mut buffer),
                    () = readable(&stderr), if stderr.is_some() => self.take(&session, Stream::Stderr, &mut stderr, &mut buffer),
                }
            }
        }
        load.lingering.fetch_sub(1, Ordering::Relaxed);
        budget.ended(&self.stdout);
        budget.ended(&self.stderr);
    }

    fn finish(&self, exit: Exit, timed_out: bool, session: &Session) {
        let end = if timed_out {
            End { status: CommandStatus::TimedOut, exit_code: None }
        } else if self.kill_requested.load(Ordering::Relaxed) {
            End { status: CommandStatus::Killed, exit_code: None }
        } else {
            End { status: CommandStatus::Completed, exit_code: Some(exit.shell_code()) }
        };
        self.end.send_replace(Some(end));
        session.touch();
        self.changed.notify_waiters();
        session.changed.notify_waiters();
    }

    /// Reads once from a readable pipe and closes it at its end.
    fn take(self: &Arc<Self>, session: &Session, stream: Stream, pipe: &mut Option<Receiver>, buffer: &mut Vec<u8>) {
        buffer.resize(READ_BUFFER, 0);
        let Some(receiver) = pipe else { return };
        match receiver.try_read(buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => self.note(session, stream, &buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => *pipe = None,
        }
    }

    fn note(self: &Arc<Self>, session: &Session, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let at = {
            let mut kept = self.kept(stream);
            let at = kept.total();
            kept.push(bytes);
            at
        };
        session.log(stream).note(self, at, bytes.len() as u64);
        self.changed.notify_waiters();
        session.changed.notify_waiters();
    }

    fn kept(&self, stream: Stream) -> MutexGuard<'_, Retained> {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn total(&self, stream: Stream) -> u64 {
        self.kept(stream).total()
    }

    pub(super) fn read_range(&self, stream: Stream, range: Range<u64>) -> Piece {
        self.kept(stream).read_range(range)
    }

    /// How the command ended; `None` while it runs.
    pub(super) fn end(&self) -> Option<End> {
        *self.end.borrow()
    }

    pub(super) fn is_running(&self) -> bool {
        self.end().is_none()
    }

    /// Waits for the end, for at most `limit`.
    pub(super) async fn wait(&self, limit: Option<Duration>) {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some);
        match limit {
            // Either the command ended or the time is over; the sender lives as long as `self`.
            Some(limit) => drop(timeout(limit, ended).await),
            None => drop(ended.await),
        }
    }

    /// Kills the command on request of a client. Returns whether it was running.
    pub(super) fn kill(&self, signal: Signal) -> bool {
        let running = self.is_running();
        if running {
            self.kill_requested.store(true, Ordering::Relaxed);
            self.signal(signal);
        }
        running
    }

    /// Kills the processes that the command left behind, or all of them while it runs.
    pub(super) fn end_all(&self) {
        if !self.kill(Signal::KILL) {
            let marker = self.marker.clone();
            tokio::task::spawn_blocking(move || {
                process::kill_members(None, &marker, Signal::KILL);
            });
        }
    }

    fn signal(&self, signal: Signal) {
        let (leader, marker) = (self.leader, self.marker.clone());
        tokio::task::spawn_blocking(move || process::kill_members(Some(leader), &marker, signal));
    }

    /// Writes to standard input.
    pub(super) async fn write(&self, input: &[u8], close: bool) -> Result<(), WriteError> {
        let mut written = 0;
        let length = input.len();
        let writing = async {
            let mut stdin = self.stdin.lock().await;
            let sender = stdin.as_mut().ok_or(WriteError::Closed)?;
            while written < length {
                match sender.write(&input[written..]).await {
                    Ok(n) => written += n,
                    Err(_) => {
                        *stdin = None;
                        return Err(WriteError::Closed);
                    }
                }
            }
            if close {
                *stdin = None;
            }
            Ok(())
        };
        let done = timeout(WRITE_PATIENCE, writing).await;
        done.unwrap_or(Err(WriteError::Stuck { written, length }))
    }
}

async fn readable(pipe: &Option<Receiver>) {
    match pipe {
        // The next read returns the error again.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
