//! The end of a stopped command, of a shell, and of all shells, and the start of the next shell.

use arenite_isolation::spawner::SpawnError;
use rustix::process::Signal;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{ATTEMPTS, Actor, BOOT_PATIENCE, MAX_MARKERS, Stage};
use crate::shell::session::NotOpened;
use crate::shell::start::{self, Shell, StartError};
use crate::shell::stop::{self, Means, Stop};
use crate::shell::types::ShellStatus;
use arenite_guest_runtime::process::{self, Exit};

/// The target processes of a signal.
pub(super) enum SignalScope {
    /// The foreground processes and others that the command started; its shell gets ^C.
    WholeCommand,
    /// Processes that are left after the command's end.
    Leftovers,
}

const NEW_SHELL: &str = "the session goes on with a new shell in the same directory; variables, functions and options are gone";

impl Actor {
    pub(super) fn begin_stop(&mut self, status: ShellStatus) -> &mut Stop {
        let has_begun = matches!(self.stage, Stage::Running | Stage::Typed);
        let stop = self.stop.get_or_insert_with(|| Stop::new(status));
        if has_begun && stop.next.is_none() {
            stop.next = Some((Means::Interrupt, Instant::now()));
        }
        stop
    }

    pub(super) fn apply(&mut self, means: Means) {
        match means {
            Means::Interrupt => {
                if let Some(pty) = &self.pty {
                    pty.interrupt();
                }
            }
            Means::Terminate => self.signal_command(Signal::TERM, SignalScope::WholeCommand),
            Means::Kill => self.signal_command(Signal::KILL, SignalScope::WholeCommand),
            Means::KillShell => self.kill_shell(),
        }
    }

    pub(super) fn signal_command(&mut self, signal: Signal, scope: SignalScope) {
        let (Some(pty), Some(child)) = (&self.pty, &self.child) else {
            return;
        };
        let command = stop::Target {
            shell: child.pid,
            marker: child.marker.clone(),
            foreground: match scope {
                SignalScope::WholeCommand => pty.foreground().map(|group| group.as_raw_nonzero().get()),
                SignalScope::Leftovers => None,
            },
            since: self.since,
        };
        let before = self.killing.take();
        self.killing = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // It only sends signals; if it panics, it has ended too.
                drop(before.await);
            }
            drop(spawn_blocking(move || command.send(signal)).await);
        }));
    }

    pub(super) fn replace_shell(&self) {
        let (id, stage) = (&self.session.id, self.stage);
        tracing::warn!(%id, ?stage, "a shell does not answer and is replaced");
        self.kill_shell();
    }

    pub(super) fn kill_shell(&self) {
        if let Some(child) = &self.child {
            process::send(&[child.pid], Signal::KILL);
        }
    }

    /// Handles the end of the shell's process. The current command ends with it.
    pub(super) fn shell_ended(&mut self, exit: Exit) {
        self.child = None;
        self.letterbox = None;
        if let Some(pty) = self.pty.take() {
            let mut buffer = std::mem::take(&mut self.buffer);
            // Bounded to what is in the terminal now: a background job may go on printing.
            for _ in 0..64 {
                match pty.read_now(&mut buffer) {
                    0 => break,
                    n => self.feed(&buffer[..n]),
                }
            }
            self.buffer = buffer;
        }
        self.outbox.clear();
        self.sent = 0;
        (self.dirty, self.typed_ahead) = (false, false);
        self.typed.clear();
        if !matches!(self.stage, Stage::Booting) {
            let how = match exit {
                Exit::Code(code) => format!("had ended with exit code {code}"),
                Exit::Signal(signal) => format!("had been killed by signal {signal}"),
            };
            self.session.state().renewed = Some(format!("the session's shell {how}; {NEW_SHELL}"));
        }
        match self.stage {
            Stage::Running | Stage::Typed => self.end_with_shell(exit),
            Stage::Asking | Stage::Starting => self.put_back(),
            Stage::Booting => {
                self.failures += 1;
                self.plain = true;
            }
            Stage::Down | Stage::Idle | Stage::Clearing | Stage::Settling => {}
        }
        self.exit_code = 0;
        self.enter(Stage::Down, None);
        self.viewers.show(b"\r\n[the shell has ended]\r\n");
    }

    pub(super) fn end_with_shell(&mut self, exit: Exit) {
        if let Some(stop) = &self.stop {
            let status = stop.status;
            let hint = format!("it could only be stopped by ending its shell; {NEW_SHELL}");
            self.finish(status, None, Some(hint));
            return;
        }
        if let Some(run) = &self.current {
            run.ends_with_exit();
        }
        match exit {
            Exit::Code(code) => {
                let hint = format!("the command ended its shell; {NEW_SHELL}");
                self.finish(ShellStatus::Completed, Some(code), Some(hint));
            }
            Exit::Signal(signal) => {
                let hint = format!("the shell was killed by signal {signal}; {NEW_SHELL}");
                self.finish(ShellStatus::Terminated, None, Some(hint));
            }
        }
    }

    pub(super) async fn start_shell(&mut self) -> Result<(), NotOpened> {
        if self.failures >= ATTEMPTS {
            return Err(NotOpened::Failed(format!("{ATTEMPTS} shells in a row ended at their start")));
        }
        let dir = self.session.state().working_dir.clone();
        let mut started = start::start(&self.service.runtime, &dir, self.keep_links, self.plain, &self.session.carried).await;
        for _ in 1..ATTEMPTS {
            if !matches!(started, Err(StartError::NotSpawned(SpawnError::Gone(_)))) {
                break;
            }
            started = start::start(&self.service.runtime, &dir, self.keep_links, self.plain, &self.session.carried).await;
        }
        let shell = started.map_err(|e| {
            tracing::warn!(error = %e, "could not start a shell");
            match e {
                StartError::NoShell => NotOpened::NoShell,
                StartError::NotSpawned(e) => NotOpened::Failed(e.to_string()),
            }
        })?;
        let first_line = shell.first_line();
        let Shell { pty, child, marks, dir, letterbox } = shell;
        self.markers.push_back(child.marker.clone());
        if self.markers.len() > MAX_MARKERS {
            self.markers.pop_front();
        }
        {
            let mut state = self.session.state();
            state.working_dir = dir;
            state.shell = Some(child.pid);
            state.is_bash = letterbox.is_none();
        }
        (self.pty, self.child, self.marks) = (Some(pty), Some(child), Some(marks));
        self.letterbox = letterbox;
        self.outbox.extend_from_slice(first_line.as_bytes());
        self.enter(Stage::Booting, Some(BOOT_PATIENCE));
        Ok(())
    }

    /// Kills the shell, or all processes of all shells that this session had.
    pub(super) async fn kill_shells(&mut self, all_processes: bool) {
        let leader = self.child.as_ref().map(|c| c.pid);
        if !all_processes {
            self.kill_shell();
            return;
        }
        let markers = std::mem::take(&mut self.markers);
        let killing = spawn_blocking(move || {
            let newest = markers.len().saturating_sub(1);
            for (at, marker) in markers.iter().enumerate() {
                let leader = leader.filter(|_| at == newest);
                process::kill_members(leader, marker, Signal::KILL);
            }
        });
        if let Err(error) = killing.await {
            tracing::error!(%error, "could not end a session's processes");
        }
    }
}
