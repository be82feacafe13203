//! Stopping a command: ^C, then TERM, then KILL for its processes, and in the end a new shell.

use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::types::ShellStatus;
use crate::process::{self, Moment};

/// Between one means and the next.
const PATIENCE: Duration = Duration::from_secs(1);

const KILL_ROUNDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// ^C: the processes in the foreground; a shell leaves its loop.
    Interrupt,
    /// To every process of the command.
    Terminate,
    Kill,
    /// The shell itself, which for example ignores ^C in its own loop.
    KillShell,
}

#[derive(Debug)]
pub(super) struct Stop {
    /// What the command's status becomes.
    pub(super) status: ShellStatus,
    /// What comes next, and when. None: the command has not begun yet, so there is nothing to stop.
    pub(super) next: Option<(Means, Instant)>,
    /// Who waits for the end.
    pub(super) replies: Vec<oneshot::Sender<()>>,
}

impl Stop {
    pub(super) fn new(status: ShellStatus) -> Self {
        Self { status, next: None, replies: Vec::new() }
    }

    /// The next means, if it is its time; the one after it is due a little later.
    pub(super) fn due(&mut self, now: Instant) -> Option<Means> {
        let (means, at) = self.next?;
        if at > now {
            return None;
        }
        let then = match means {
            Means::Interrupt => Means::Terminate,
            Means::Terminate => Means::Kill,
            Means::Kill | Means::KillShell => Means::KillShell,
        };
        self.next = Some((then, now + PATIENCE));
        Some(means)
    }
}

/// The processes of a command.
#[derive(Debug)]
pub(super) struct Target {
    /// Its shell, and the mark of that.
    pub(super) shell: i32,
    pub(super) marker: String,
    /// The process group that has the keyboard; none: the command is over, and its shell is to be left alone.
    pub(super) foreground: Option<i32>,
    /// When it began.
    pub(super) since: Moment,
}

impl Target {
    /// Sends them a signal. It blocks.
    pub(super) fn send(&self, signal: Signal) {
        // Again and again, since one that dies later may start another first.
        let rounds = if signal == Signal::KILL { KILL_ROUNDS } else { 1 };
        for _ in 0..rounds {
            let members = process::members_since(self.shell, &self.marker, self.foreground, self.since);
            let found = process::send(&members, signal);
            if self.foreground.is_some() {
                // So that a loop of the shell does not start the next process.
                process::send(&[self.shell], Signal::INT);
            }
            if !found {
                break;
            }
        }
    }
}
