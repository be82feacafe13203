//! Stops a command: ^C, then TERM, then KILL for its processes, and finally a new shell.

use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::types::ShellStatus;
use arenite_guest_runtime::process::{self, Moment};

/// Time between one step and the next.
const PATIENCE: Duration = Duration::from_secs(1);

const KILL_ROUNDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// ^C to the foreground processes; a shell leaves its loop.
    Interrupt,
    /// TERM to every process of the command.
    Terminate,
    Kill,
    /// KILL to the shell itself, which may ignore ^C in its own loop.
    KillShell,
}

#[derive(Debug)]
pub(super) struct Stop {
    /// The resulting status of the command.
    pub(super) status: ShellStatus,
    /// The next step and its time. None: the command has not started yet, so there is nothing to stop.
    pub(super) next: Option<(Means, Instant)>,
    /// Callers that wait for the end.
    pub(super) replies: Vec<oneshot::Sender<()>>,
}

impl Stop {
    pub(super) fn new(status: ShellStatus) -> Self {
        Self { status, next: None, replies: Vec::new() }
    }

    /// The next step, if it is due. The one after it is due a little later.
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

/// The processes of a command, as the target of a signal.
#[derive(Debug)]
pub(super) struct Target {
    /// Its shell and the shell's mark.
    pub(super) shell: i32,
    pub(super) marker: String,
    /// The foreground process group; none: the command has ended, and its shell is left alone.
    pub(super) foreground: Option<i32>,
    /// When it started.
    pub(super) since: Moment,
}

impl Target {
    /// Sends a signal to the processes. It blocks.
    pub(super) fn send(&self, signal: Signal) {
        // Repeated, since a process that dies later may start another first.
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
