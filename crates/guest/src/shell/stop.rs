//! Stopping a command: ^C, then TERM, then KILL for its processes, and in the end a new shell.

use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::types::ShellStatus;
use crate::process;

/// Between one means and the next.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// ^C: the processes in the foreground; a shell leaves its loop.
    Interrupt,
    /// To every process of the command.
    Terminate,
    Kill,
    /// The shell itself, which for example ignores ^C in a loop of its own.
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
        Self {
            status,
            next: None,
            replies: Vec::new(),
        }
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

/// A shell's processes of the command that it has run for `ran`, or the shell itself.
pub(super) fn apply(
    means: Means,
    shell: i32,
    marker: String,
    foreground: Option<i32>,
    ran: Duration,
) {
    let signal = match means {
        Means::Terminate => Signal::TERM,
        Means::Interrupt | Means::Kill | Means::KillShell => Signal::KILL,
    };
    tokio::task::spawn_blocking(move || {
        if means == Means::KillShell {
            process::send(&[shell], signal);
            return;
        }
        let members = process::members_since(shell, &marker, foreground, ran.as_secs_f64());
        process::send(&members, signal);
        // So that a loop of the shell does not start the next process.
        process::send(&[shell], Signal::INT);
    });
}
