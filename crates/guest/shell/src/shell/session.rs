//! A session as other tasks see it: its state, and the way to its task.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::actor::MAX_QUEUED;
use super::run::{Phase, Run};
use super::service::ShellError;
use super::types::{ConsoleRecord, ShellSessionInfo, ShellStatus};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::SessionId;

/// The most characters of output in cut answers, in views and in the console.
pub(super) const SHOWN_CHARS: usize = 30_000;
/// The most commands in the console.
const CONSOLE_RECORDS: usize = 100;
/// The most bytes of all its texts. The oldest records are dropped first.
const CONSOLE_BYTES: usize = 256 << 10;
/// The most bytes of a command in the console and in lists.
const SHOWN_COMMAND: usize = 4 << 10;
const PROMPT: &str = "$ ";
/// Messages on their way to the task. When it is full, senders wait.
pub(super) const MAILBOX: usize = 64;

/// A request to the session's task.
#[derive(Debug)]
pub(super) enum Message {
    /// Check the queue: a command was added.
    Look,
    /// Type input. The answer is false if too much earlier input is unread.
    Type {
        bytes: Vec<u8>,
        reply: Option<oneshot::Sender<bool>>,
    },
    /// Stop the current command, and answer when it has ended.
    Stop(oneshot::Sender<()>),
    Resize {
        columns: u16,
        rows: u16,
    },
    /// Attach a viewer: it gets the terminal's recent output, then the new output.
    Attach(mpsc::Sender<Arc<str>>),
    /// End the session: with all its processes, or only the shell.
    Close {
        all_processes: bool,
        reply: oneshot::Sender<()>,
    },
}

/// Why a session has no shell.
#[derive(Debug, Clone, Error)]
pub(super) enum NotOpened {
    #[error("{}", Requirement::SHELL.message())]
    NoShell,
    #[error("{0}")]
    Failed(String),
}

impl From<NotOpened> for ShellError {
    fn from(reason: NotOpened) -> Self {
        match reason {
            NotOpened::NoShell => Self::NoShell,
            NotOpened::Failed(reason) => Self::NotStarted(reason),
        }
    }
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Created by a call without an id: the first to end beyond the maximum.
    pub(super) made_by_call: bool,
    /// Lines that each of its shells runs at its start: the environment of a fork's parent.
    pub(super) carried: String,
    pub(super) mailbox: mpsc::Sender<Message>,
    /// Whether its first shell has started; `None` while it starts.
    pub(super) opened: watch::Sender<Option<Result<(), NotOpened>>>,
    state: Mutex<State>,
    /// Each viewer holds one more reference.
    viewers: Arc<()>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) working_dir: String,
    created_at: Timestamp,
    last_used_at: Timestamp,
    pub(super) last_used: Instant,
    /// None: never.
    pub(super) no_change_timeout: Option<Duration>,
    pub(super) current: Option<Arc<Run>>,
    /// Queued commands.
    pub(super) queue: VecDeque<Arc<Run>>,
    /// Its task has ended.
    pub(super) closed: bool,
    pub(super) shell: Option<i32>,
    pub(super) is_bash: bool,
    pub(super) last: Option<Last>,
    /// Why the shell was replaced, for the next answer to report.
    pub(super) renewed: Option<String>,
    console: VecDeque<ConsoleRecord>,
    console_bytes: usize,
}

/// The result of the last command.
#[derive(Debug, Clone)]
pub(super) struct Last {
    pub(super) command: String,
    pub(super) status: ShellStatus,
    pub(super) exit_code: Option<i32>,
    pub(super) output: String,
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        made_by_call: bool,
        working_dir: String,
        carried: String,
        no_change_timeout: Option<Duration>,
    ) -> (Arc<Self>, mpsc::Receiver<Message>) {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let session = Self {
            id,
            made_by_call,
            carried,
            mailbox,
            opened: watch::Sender::new(None),
            state: Mutex::new(State {
                working_dir,
                created_at: Timestamp::now(),
                last_used_at: Timestamp::now(),
                last_used: Instant::now(),
                no_change_timeout,
                current: None,
                queue: VecDeque::new(),
                closed: false,
                shell: None,
                is_bash: false,
                last: None,
                renewed: None,
                console: VecDeque::new(),
                console_bytes: 0,
            }),
            viewers: Arc::default(),
        };
        (Arc::new(session), messages)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a viewer for as long as the result lives.
    pub(super) fn add_viewer(&self) -> Arc<()> {
        Arc::clone(&self.viewers)
    }

    /// The number of viewers that are connected now. The shell's task learns of one that left only with its next output.
    pub(super) fn viewers(&self) -> usize {
        Arc::strong_count(&self.viewers) - 1
    }

    pub(super) fn touch(&self) {
        let mut state = self.state();
        state.last_used_at = Timestamp::now();
        state.last_used = Instant::now();
    }

    /// Sends the task a message. False: it has ended.
    pub(super) async fn send(&self, message: Message) -> bool {
        self.mailbox.send(message).await.is_ok()
    }

    /// Adds a command to the end of the queue.
    pub(super) fn submit(&self, run: Arc<Run>) -> Result<(), ShellError> {
        {
            let mut state = self.state();
            state.last_used = Instant::now();
            state.last_used_at = Timestamp::now();
            if state.closed {
                return Err(match &*self.opened.borrow() {
                    Some(Err(reason)) => reason.clone().into(),
                    _ => ShellError::SessionNotFound(self.id.to_string()),
                });
            }
            if state.queue.len() >= MAX_QUEUED {
                return Err(ShellError::QueueFull(self.id.clone()));
            }
            state.queue.push_back(run);
        }
        // A full mailbox is no problem: the task checks the queue after each message.
        drop(self.mailbox.try_send(Message::Look));
        Ok(())
    }

    pub(super) fn is_busy(&self) -> bool {
        let state = self.state();
        state.current.is_some() || !state.queue.is_empty()
    }

    /// The time of the last change that a waiting command may depend on.
    pub(super) fn changed(&self) -> Option<Instant> {
        let current = self.state().current.clone();
        current.map(|run| run.changed())
    }

    pub(super) fn console(&self) -> Vec<ConsoleRecord> {
        self.state().console.iter().cloned().collect()
    }

    /// Records the end of a command.
    pub(super) fn ended(&self, run: &Run) {
        let Phase::Ended(status) = run.phase() else {
            return;
        };
        if run.is_hidden {
            self.state().current = None;
            return;
        }
        let last =
            Last { command: run.command.clone(), status, exit_code: run.exit_code(), output: run.output(Some(SHOWN_CHARS)) };
        let record =
            ConsoleRecord { ps1: PROMPT.to_owned(), command: shown(&run.command).to_owned(), output: last.output.clone() };
        self.touch();
        let mut state = self.state();
        state.console_bytes += size(&record);
        state.console.push_back(record);
        while state.console.len() > CONSOLE_RECORDS || (state.console_bytes > CONSOLE_BYTES && state.console.len() > 1) {
            let gone = state.console.pop_front();
            state.console_bytes -= gone.as_ref().map_or(0, size);
        }
        state.last = Some(last);
        state.current = None;
    }

    pub(super) fn info(&self) -> ShellSessionInfo {
        let state = self.state();
        let age = Timestamp::now().duration_since(state.created_at);
        ShellSessionInfo {
            working_dir: state.working_dir.clone(),
            created_at: state.created_at,
            last_used_at: state.last_used_at,
            age_seconds: u64::try_from(age.as_secs()).unwrap_or(0),
            status: match state.current {
                Some(_) => "running".to_owned(),
                None => "idle".to_owned(),
            },
            current_command: state.current.as_ref().filter(|run| !run.is_hidden).map(|run| shown(&run.command).to_owned()),
        }
    }

    pub(super) fn status(&self) -> ShellStatus {
        let state = self.state();
        if state.current.is_some() || !state.queue.is_empty() {
            return ShellStatus::Running;
        }
        state.last.as_ref().map_or(ShellStatus::Completed, |last| last.status)
    }
}

fn size(record: &ConsoleRecord) -> usize {
    record.command.len() + record.output.len()
}

/// The first part of a long command.
pub(super) fn shown(command: &str) -> &str {
    let mut end = command.len().min(SHOWN_COMMAND);
    while !command.is_char_boundary(end) {
        end -= 1;
    }
    &command[..end]
}
