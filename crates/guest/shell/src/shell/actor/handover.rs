//! The stages of a command: from the queue to the shell, and back by its marks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::ending::SignalScope;
use super::{ANSWER_PATIENCE, ATTEMPTS, Actor, CLEAR_AGAIN, MAX_SETTLE, SETTLE, Stage};
use crate::shell::driver;
use crate::shell::marks::{Mark, Token};
use crate::shell::run::{Phase, Run};
use crate::shell::session::shown;
use crate::shell::stop::Means;
use crate::shell::types::ShellStatus;
use arenite_guest_runtime::process::Moment;

impl Actor {
    /// Hands the next command to the shell, if both are ready.
    pub(super) fn start_next(&mut self) {
        if self.stage != Stage::Idle {
            return;
        }
        {
            let queue = &mut self.session.state().queue;
            // Some may have been withdrawn.
            queue.retain(|run| run.phase() == Phase::Queued);
            if queue.is_empty() {
                return;
            }
        }
        let (Some(pty), Some(child)) = (&self.pty, &self.child) else {
            return;
        };
        let in_foreground = pty.foreground().map(|group| group.as_raw_nonzero().get());
        if in_foreground.is_some_and(|group| group != child.pid) {
            // Another program runs in the foreground, although the shell did not report it. Its end brings a prompt.
            return;
        }
        if self.dirty {
            self.clear_prompt();
            return;
        }
        let run = {
            let mut state = self.session.state();
            let run = state.queue.pop_front();
            state.current.clone_from(&run);
            run
        };
        let Some(run) = run else {
            return;
        };
        let dir = run.dir.as_ref().map(|(dir, keep)| (dir.as_str(), *keep));
        let (line, pieces) = match &self.letterbox {
            None => {
                let letter = driver::letter(dir, &run.command, self.exit_code);
                (letter.line, letter.pieces)
            }
            Some(letterbox) => match letterbox.leave(dir, &run.command, self.exit_code) {
                Ok(line) => (line, VecDeque::new()),
                Err(error) => {
                    self.current = Some(run);
                    let hint = format!("not started: the shell could not get the command: {error}");
                    self.finish(ShellStatus::Terminated, None, Some(hint));
                    return self.start_next();
                }
            },
        };
        self.outbox.extend_from_slice(line.as_bytes());
        self.pieces = pieces;
        self.since = Moment::now();
        self.current = Some(run);
        self.enter(Stage::Asking, Some(ANSWER_PATIENCE));
    }

    pub(super) fn clear_prompt(&mut self) {
        self.outbox.push(0x03);
        self.cleared = Instant::now();
        self.dirty = false;
        self.typed.clear();
        self.enter(Stage::Clearing, Some(CLEAR_AGAIN));
    }

    pub(super) fn enter(&mut self, stage: Stage, limit: Option<Duration>) {
        self.stage = stage;
        self.stage_ends = limit.map(|limit| Instant::now() + limit);
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let Some(mut marks) = self.marks.take() else {
            return;
        };
        marks.feed(bytes, |token| match token {
            Token::Text(text) => self.text(text),
            Token::Mark(mark) => self.mark(mark),
        });
        self.marks = Some(marks);
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        match self.stage {
            Stage::Down | Stage::Booting | Stage::Asking | Stage::Starting => return,
            // Only up to a limit: a background job may print without end.
            Stage::Settling if self.cleared.elapsed() < MAX_SETTLE => {
                self.enter(Stage::Settling, Some(SETTLE));
            }
            Stage::Running | Stage::Typed => {
                if let Some(run) = &self.current {
                    run.push(text);
                    if run.is_hidden {
                        return;
                    }
                }
            }
            Stage::Idle | Stage::Clearing | Stage::Settling => {}
        }
        self.viewers.show(text);
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        match (mark, self.stage) {
            (Mark::Go, Stage::Asking | Stage::Starting) => {
                let piece = self.pieces.pop_front().unwrap_or_default();
                self.outbox.extend_from_slice(piece.as_bytes());
                self.enter(Stage::Starting, Some(ANSWER_PATIENCE));
            }
            (Mark::Start, Stage::Asking | Stage::Starting) => self.begin_run(),
            (Mark::Typed, Stage::Idle) => self.begin_typed(),
            (Mark::Prompt { exit_code, dir }, stage) => {
                self.session.state().working_dir = dir;
                self.prompt(exit_code, stage);
            }
            _ => {}
        }
    }

    pub(super) fn begin_run(&mut self) {
        self.enter(Stage::Running, None);
        self.attempts = 0;
        let Some(run) = self.current.clone() else {
            return;
        };
        if !run.is_hidden {
            let text = shown(&run.command).replace('\n', "\r\n");
            self.viewers.show(text.as_bytes());
            self.viewers.show(b"\r\n");
        }
        run.begin();
        self.release_held();
        if let Some(stop) = &mut self.stop {
            stop.next = Some((Means::Interrupt, Instant::now()));
        }
    }

    pub(super) fn begin_typed(&mut self) {
        self.dirty = false;
        let typed = std::mem::take(&mut self.typed);
        let typed = String::from_utf8_lossy(&typed);
        let mut lines = typed.split(['\r', '\n']).map(str::trim);
        let line = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
        let run = Run::new(line.to_owned(), None, None, &self.budget);
        run.begin();
        self.session.state().current = Some(Arc::clone(&run));
        self.current = Some(run);
        self.session.touch();
        self.enter(Stage::Typed, None);
    }

    pub(super) fn prompt(&mut self, exit_code: i32, stage: Stage) {
        match stage {
            Stage::Running | Stage::Typed => {
                self.exit_code = exit_code;
                self.dirty = std::mem::take(&mut self.typed_ahead);
                if !self.dirty {
                    self.typed.clear();
                }
                let status = match &self.stop {
                    Some(stop) => stop.status,
                    None => ShellStatus::Completed,
                };
                if self.stop.is_some() {
                    // Its leftovers belong to the stopped command.
                    self.signal_command(Signal::KILL, SignalScope::Leftovers);
                    // A signal may still be on its way to the shell, and must not reach the next command.
                    self.cleared = Instant::now();
                    self.enter(Stage::Settling, Some(SETTLE));
                } else {
                    self.enter(Stage::Idle, None);
                }
                self.finish(status, Some(exit_code), None);
                self.since = Moment::now();
            }
            Stage::Booting => {
                self.failures = 0;
                self.since = Moment::now();
                self.enter(Stage::Idle, None);
                self.release_held();
            }
            Stage::Clearing | Stage::Settling => self.enter(Stage::Settling, Some(SETTLE)),
            // The line was read without its function running: something else interfered.
            Stage::Asking => {
                self.put_back();
                self.clear_prompt();
            }
            // ^C while the command was being read. Its rest may still be in the terminal.
            Stage::Starting => {
                self.outbox.clear();
                self.sent = 0;
                let status = match &self.stop {
                    Some(stop) => stop.status,
                    None => ShellStatus::Terminated,
                };
                self.finish(status, None, Some("interrupted before it began".to_owned()));
                self.clear_prompt();
            }
            Stage::Idle | Stage::Down => {}
        }
    }

    /// The shell did not read the current command: it returns to the head of the queue, or ends after some attempts.
    pub(super) fn put_back(&mut self) {
        self.pieces.clear();
        self.attempts += 1;
        if self.attempts < ATTEMPTS && self.stop.is_none() {
            let mut state = self.session.state();
            state.current = None;
            if let Some(run) = self.current.take() {
                state.queue.push_front(run);
            }
        } else {
            self.attempts = 0;
            let status = match &self.stop {
                Some(stop) => stop.status,
                None => ShellStatus::Terminated,
            };
            self.finish(status, None, Some("not started: the shell did not answer".to_owned()));
        }
    }

    pub(super) fn finish(&mut self, status: ShellStatus, exit_code: Option<i32>, hint: Option<String>) {
        if let Some(run) = self.current.take() {
            run.end(status, exit_code, hint);
            self.session.ended(&run);
        }
        if let Some(stop) = self.stop.take() {
            for reply in stop.replies {
                // The caller may have left.
                let _ = reply.send(());
            }
        }
    }
}
