//! One command of a session, from the queue to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::driver::strip_traces;
use super::transcript::Transcript;
use super::types::ShellStatus;
use arenite_guest_runtime::process::{Budget, Retained};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Queued,
    Running,
    Ended(ShellStatus),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) command: String,
    /// The directory to change to first, and whether to keep its symbolic links.
    pub(super) dir: Option<(String, bool)>,
    pub(super) hard_timeout: Option<Duration>,
    /// Not a client's command: it leaves no trace in views, in the console and at terminals.
    pub(super) is_hidden: bool,
    phase: watch::Sender<Phase>,
    /// Output arrived.
    pub(super) grew: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    transcript: Transcript,
    exit_code: Option<i32>,
    began: Option<Instant>,
    changed: Instant,
    hint: Option<String>,
    /// The shell printed `exit` as its last output.
    said_exit: bool,
}

impl Run {
    pub(super) fn new(
        command: String,
        dir: Option<(String, bool)>,
        hard_timeout: Option<Duration>,
        budget: &Arc<Budget>,
    ) -> Arc<Self> {
        Arc::new(Self::made(command, dir, hard_timeout, false, budget))
    }

    /// A command that is not a client's.
    pub(super) fn hidden(command: String, budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self::made(command, None, None, true, budget))
    }

    fn made(
        command: String,
        dir: Option<(String, bool)>,
        hard_timeout: Option<Duration>,
        is_hidden: bool,
        budget: &Arc<Budget>,
    ) -> Self {
        Self {
            command,
            dir,
            hard_timeout,
            is_hidden,
            phase: watch::Sender::new(Phase::Queued),
            grew: Notify::new(),
            state: Mutex::new(State {
                transcript: Transcript::new(Retained::new(budget)),
                exit_code: None,
                began: None,
                changed: Instant::now(),
                hint: None,
                said_exit: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(super) fn begin(&self) {
        let now = Instant::now();
        let mut state = self.state();
        (state.began, state.changed) = (Some(now), now);
        drop(state);
        self.phase.send_replace(Phase::Running);
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.changed = Instant::now();
        state.transcript.push(bytes);
        drop(state);
        self.grew.notify_waiters();
    }

    /// Ends the command. Returns whether this call ended it.
    pub(super) fn end(&self, status: ShellStatus, exit_code: Option<i32>, hint: Option<String>) -> bool {
        self.phase.send_if_modified(|phase| {
            let lives = !matches!(phase, Phase::Ended(_));
            if lives {
                let mut state = self.state();
                state.transcript.end();
                state.exit_code = exit_code.filter(|_| status == ShellStatus::Completed);
                state.hint = hint;
                *phase = Phase::Ended(status);
            }
            lives
        })
    }

    /// Withdraws the command from the queue, unless it has started.
    pub(super) fn withdraw(&self, hint: String) -> bool {
        self.phase() == Phase::Queued && self.end(ShellStatus::NoChangeTimeout, None, Some(hint))
    }

    /// The last line is the shell's: it prints `exit` when it exits on request.
    pub(super) fn ends_with_exit(&self) {
        self.state().said_exit = true;
    }

    /// When it started or last printed something; in the queue: when it was queued.
    pub(super) fn changed(&self) -> Instant {
        self.state().changed
    }

    pub(super) fn began(&self) -> Option<Instant> {
        self.state().began
    }

    pub(super) fn exit_code(&self) -> Option<i32> {
        self.state().exit_code
    }

    pub(super) fn hint(&self) -> Option<String> {
        self.state().hint.clone()
    }

    pub(super) fn output(&self, limit: Option<usize>) -> String {
        let state = self.state();
        let mut output = state.transcript.text_so_far(limit);
        if matches!(self.phase(), Phase::Ended(_)) {
            strip_traces(&mut output);
            if state.said_exit && (output == "exit" || output.ends_with("\nexit")) {
                output.truncate(output.len() - "exit".len());
            }
            output.truncate(output.trim_end_matches('\n').len());
        }
        output
    }

    /// The lines finished since `offset`, and the next offset.
    pub(super) fn lines_from(&self, offset: u64) -> (String, u64) {
        self.state().transcript.lines_from(offset)
    }
}
