//! A session: a default directory, a snapshot, and the last commands.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::command::{Command, CommandId, Stream};
use super::log::Log;
use super::types::{BashSessionInfo, SessionStatus};
use arenite_guest_runtime::sessions::SessionId;

/// The most commands of one session that can be queried. The oldest ended command is forgotten first.
const MAX_COMMANDS: usize = 100;
/// Characters of a command in the list of sessions.
const SHOWN_COMMAND: usize = 1000;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) snapshot: Option<String>,
    state: Mutex<State>,
    stdout: Mutex<Log>,
    stderr: Mutex<Log>,
    /// Output of any of its commands arrived, or a command ended.
    pub(super) changed: Notify,
}

#[derive(Debug)]
struct State {
    working_dir: String,
    created_at: Timestamp,
    last_used_at: Timestamp,
    last_used: Instant,
    commands: VecDeque<Arc<Command>>,
    started: u64,
}

impl Session {
    pub(super) fn new(id: SessionId, working_dir: String, snapshot: Option<String>) -> Self {
        Self {
            id,
            snapshot,
            state: Mutex::new(State {
                working_dir,
                created_at: Timestamp::now(),
                last_used_at: Timestamp::now(),
                last_used: Instant::now(),
                commands: VecDeque::new(),
                started: 0,
            }),
            stdout: Mutex::default(),
            stderr: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn log(&self, stream: Stream) -> MutexGuard<'_, Log> {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn touch(&self) {
        let mut state = self.state();
        state.last_used_at = Timestamp::now();
        state.last_used = Instant::now();
    }

    pub(super) fn last_used(&self) -> Instant {
        self.state().last_used
    }

    pub(super) fn working_dir(&self) -> String {
        self.state().working_dir.clone()
    }

    pub(super) fn set_working_dir(&self, dir: String) {
        self.state().working_dir = dir;
    }

    pub(super) fn add(&self, command: Arc<Command>) {
        let mut state = self.state();
        state.started += 1;
        state.commands.push_back(command);
        if state.commands.len() > MAX_COMMANDS {
            let oldest = state.commands.iter().position(|c| !c.is_running());
            // If all of them run, all are kept: the service bounds the number of running commands.
            if let Some(at) = oldest {
                state.commands.remove(at);
            }
        }
    }

    pub(super) fn command(&self, id: &CommandId) -> Option<Arc<Command>> {
        self.state().commands.iter().find(|c| c.id == *id).cloned()
    }

    /// The latest running command, else the latest.
    pub(super) fn current(&self) -> Option<Arc<Command>> {
        let state = self.state();
        let running = state.commands.iter().rev().find(|c| c.is_running());
        running.or(state.commands.back()).cloned()
    }

    pub(super) fn running(&self) -> Vec<Arc<Command>> {
        let state = self.state();
        let running = state.commands.iter().filter(|c| c.is_running());
        running.cloned().collect()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.state().commands.iter().any(|c| c.is_running())
    }

    /// Kills all its processes, including those that finished commands left behind.
    pub(super) fn close(&self) {
        let commands: Vec<_> = self.state().commands.iter().cloned().collect();
        for command in commands {
            command.end_all();
        }
    }

    pub(super) fn info(&self) -> BashSessionInfo {
        let current = self.current().filter(|c| c.is_running());
        let state = self.state();
        BashSessionInfo {
            session_id: self.id.to_string(),
            status: SessionStatus::Ready,
            working_dir: state.working_dir.clone(),
            created_at: state.created_at,
            last_used_at: state.last_used_at,
            current_command: current.map(|c| c.text.chars().take(SHOWN_COMMAND).collect()),
            command_count: state.started,
        }
    }
}
