//! The service: sessions by id, and the seven calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::{SpawnError, Stage};
use arenite_model::protocol::CarriedSession;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::command::{Command, CommandId, Load, Plan, Stream, WriteError};
use super::log::LogPiece;
use super::session::Session;
use super::types::*;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Budget, Signal, incomplete_end, seconds};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::saved;
use arenite_guest_runtime::sessions::{BadSessionId, SessionId};
use arenite_guest_runtime::shells::CommandShell;

/// The most sessions. Beyond it, the session that was idle longest is forgotten.
pub(super) const MAX_SESSIONS: usize = 256;
/// An idle session is forgotten after this time.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(3600);
/// The most running commands, in all sessions.
pub(super) const MAX_RUNNING: usize = 512;
/// The most bytes of output kept for all commands together. The outputs of the commands that ended first are dropped first.
pub(super) const MAX_RETAINED_BYTES: usize = 64 << 20;
/// Characters of each stream in the answer of `exec`, unless the call sets a limit.
const DEFAULT_OUTPUT_CHARS: i64 = 50_000;
const MAX_WAIT: f64 = 3600.0;

#[derive(Debug, Error)]
pub enum BashError {
    #[error("{}", Requirement::SHELL.message())]
    NoShell,
    #[error("session {0:?} not found")]
    SessionNotFound(String),
    #[error("command {0:?} not found")]
    CommandNotFound(String),
    #[error(transparent)]
    BadId(#[from] BadSessionId),
    #[error("directory {0:?} does not exist or can't be entered")]
    NoDirectory(String),
    #[error("snapshot {0:?} is not a readable file")]
    NoSnapshot(String),
    #[error("{0:?} is not one of SIGTERM, SIGKILL, SIGINT")]
    BadSignal(String),
    #[error("environment variable {0:?} has no valid name")]
    BadVariable(String),
    #[error("{MAX_RUNNING} commands run already; wait for one or kill one")]
    TooManyCommands,
    #[error("{MAX_SESSIONS} sessions run commands already; close one")]
    TooManySessions,
    #[error("nothing runs in session {0:?}")]
    NothingRuns(SessionId),
    #[error("could not write to command {id:?}: {reason}")]
    NotWritten { id: String, reason: String },
    #[error(transparent)]
    NotStarted(#[from] SpawnError),
}

/// All sessions of the guest.
#[derive(Debug)]
pub struct BashService {
    runtime: Arc<Runtime>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    budget: Arc<Budget>,
    load: Arc<Load>,
    /// Whether the task that forgets idle sessions runs. It runs while there are sessions.
    reaper_runs: AtomicBool,
}

impl BashService {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            sessions: Mutex::default(),
            budget: Budget::new(MAX_RETAINED_BYTES),
            load: Arc::default(),
            reaper_runs: AtomicBool::new(false),
        }
    }
}

impl BashService {
    /// Runs a command. It goes on when the client disconnects.
    pub async fn exec(self: &Arc<Self>, request: BashExecRequest) -> Result<BashExecResult, BashError> {
        let known = request.session_id.as_deref().filter(|id| !id.is_empty());
        let session = match known {
            Some(id) => self.session(&session_id(id)?)?,
            None => self.new_session(None, None, None)?,
        };
        session.touch();
        if self.load.running.load(Ordering::Relaxed) >= MAX_RUNNING {
            return Err(BashError::TooManyCommands);
        }
        let dir = request.exec_dir.as_deref().filter(|dir| !dir.is_empty());
        let cwd = match dir {
            Some(dir) => self.runtime.absolute(dir).display().to_string(),
            None => session.working_dir(),
        };
        let is_async = request.async_mode.unwrap_or(false);
        let env = environment(&self.runtime, request.env, session.snapshot.as_deref())?;
        let plan = Plan {
            shell: CommandShell::find(&env).ok_or(BashError::NoShell)?,
            env,
            text: request.command,
            cwd: cwd.clone(),
            user: &self.runtime.user,
            // A call that answers only at the end returns the id of a new session too late to write to it. Then an empty standard
            // input is better than an open one: tools such as ripgrep would wait for its end.
            writable: request.close_stdin != Some(true) && (is_async || request.timeout.is_some() || known.is_some()),
            snapshot: session.snapshot.is_some(),
        };
        let started = Command::start(CommandId::random(), plan, &self.runtime.processes, &self.budget).await;
        let (command, driven) = started.map_err(|e| match e {
            SpawnError::Failed { stage: Stage::Directory, .. } => BashError::NoDirectory(cwd.clone()),
            e => e.into(),
        })?;
        if dir.is_some() {
            session.set_working_dir(cwd);
        }
        session.add(Arc::clone(&command));
        let hard_timeout = request.hard_timeout.filter(|s| *s > 0.0).map(seconds);
        tokio::spawn(Arc::clone(&command).drive(
            driven,
            Arc::clone(&session),
            hard_timeout,
            Arc::clone(&self.budget),
            Arc::clone(&self.load),
        ));
        if !is_async {
            command.wait(request.timeout.map(seconds)).await;
        }
        let limit = match request.max_output_length.unwrap_or(DEFAULT_OUTPUT_CHARS) {
            n if is_async || n <= 0 => None,
            n => usize::try_from(n).ok(),
        };
        Ok(exec_result(&session, &command, limit))
    }

    /// Returns output from the given offsets on. With `wait`, waits for output or the command's end.
    pub async fn output(&self, request: BashOutputRequest) -> Result<BashOutputResult, BashError> {
        let session = self.session(&session_id(&request.session_id)?)?;
        session.touch();
        let wanted = request.command_id.as_deref().filter(|id| !id.is_empty());
        let command = wanted.map(|id| command(&session, id)).transpose()?;
        let from = [request.offset, request.stderr_offset].map(|offset| u64::try_from(offset.unwrap_or(0)).unwrap_or(0));
        let patience = request.wait_timeout.unwrap_or(30.0).clamp(0.0, MAX_WAIT);
        let deadline = Instant::now() + seconds(patience);
        loop {
            // Registered before the check, so that no change in between is missed.
            let changed = match &command {
                Some(command) => command.changed.notified(),
                None => session.changed.notified(),
            };
            tokio::pin!(changed);
            changed.as_mut().enable();
            let result = output_result(&session, command.as_ref(), from);
            let is_running = match &command {
                Some(command) => command.is_running(),
                None => session.is_busy(),
            };
            let has_news = !result.stdout.is_empty() || !result.stderr.is_empty();
            if has_news || !is_running || !request.wait.unwrap_or(false) {
                return Ok(result);
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Ok(result);
            }
        }
    }

    /// Writes to the standard input of a command.
    pub async fn write(&self, request: BashWriteRequest) -> Result<(), BashError> {
        let session = self.session(&session_id(&request.session_id)?)?;
        session.touch();
        let command = match request.command_id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => command(&session, id)?,
            None => session.current().filter(|c| c.is_running()).ok_or_else(|| BashError::NothingRuns(session.id.clone()))?,
        };
        let close = request.close.unwrap_or(false);
        let written = command.write(request.input.as_bytes(), close).await;
        written.map_err(|e: WriteError| BashError::NotWritten { id: command.id.to_string(), reason: e.to_string() })
    }

    /// Sends a signal to all processes of all running commands of a session.
    pub fn kill(&self, request: BashKillRequest) -> Result<BashKillResult, BashError> {
        let session = self.session(&session_id(&request.session_id)?)?;
        let name = request.signal.unwrap_or_else(|| "SIGTERM".to_owned());
        let signal = match name.to_ascii_uppercase().trim_start_matches("SIG") {
            "TERM" | "15" => Signal::TERM,
            "KILL" | "9" => Signal::KILL,
            "INT" | "2" => Signal::INT,
            _ => return Err(BashError::BadSignal(name)),
        };
        session.touch();
        let signalled = session.running().iter().filter(|c| c.kill(signal)).count();
        Ok(BashKillResult { session_id: session.id.to_string(), signal: name, signalled })
    }

    /// Whether a command is running.
    pub fn is_busy(&self) -> bool {
        self.lock().values().any(|session| session.is_busy())
    }

    /// All sessions, the oldest first.
    pub fn sessions(&self) -> Vec<BashSessionInfo> {
        let mut list: Vec<_> = self.lock().values().map(|s| s.info()).collect();
        list.sort_by(|a, b| (a.created_at, &a.session_id).cmp(&(b.created_at, &b.session_id)));
        list
    }

    /// Creates a session. Returns an existing one unchanged.
    pub fn create(self: &Arc<Self>, request: BashSessionCreateRequest) -> Result<BashSessionInfo, BashError> {
        let id = SessionId::given(request.session_id.as_deref())?;
        if let Some(session) = id.as_ref().and_then(|id| self.lock().get(id).cloned()) {
            return Ok(session.info());
        }
        let dir = request.exec_dir.filter(|d| !d.is_empty());
        let snapshot = request.snapshot_path.filter(|p| !p.is_empty());
        Ok(self.new_session(id, dir, snapshot)?.info())
    }

    /// What a fork takes over.
    pub(crate) fn carried(&self) -> Vec<CarriedSession> {
        let sessions = self.lock();
        let carried = sessions.values().map(|session| CarriedSession {
            id: session.id.to_string(),
            dir: session.working_dir(),
            script: session.snapshot.clone(),
            ..CarriedSession::default()
        });
        carried.collect()
    }

    /// Opens a session of this sandbox's parent, unless there is one.
    pub(crate) fn take_over(self: &Arc<Self>, CarriedSession { id, dir, script, .. }: CarriedSession) {
        let request = BashSessionCreateRequest { session_id: Some(id), exec_dir: Some(dir), snapshot_path: script };
        if let Err(error) = self.create(request) {
            tracing::info!(%error, "a session was not taken over");
        }
    }

    /// Forgets a session and kills all its processes.
    pub fn close(&self, id: &SessionId) -> Result<BashSessionInfo, BashError> {
        let session = self.lock().remove(id);
        let session = session.ok_or_else(|| BashError::SessionNotFound(id.to_string()))?;
        session.close();
        Ok(BashSessionInfo { status: SessionStatus::Closed, ..session.info() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, BashError> {
        let found = self.lock().get(id).cloned();
        found.ok_or_else(|| BashError::SessionNotFound(id.to_string()))
    }

    fn new_session(
        self: &Arc<Self>,
        id: Option<SessionId>,
        dir: Option<String>,
        snapshot: Option<String>,
    ) -> Result<Arc<Session>, BashError> {
        let dir = match dir {
            Some(dir) => {
                let dir = self.runtime.absolute(&dir).display().to_string();
                let exists = std::path::Path::new(&dir).is_dir();
                exists.then_some(dir.clone()).ok_or(BashError::NoDirectory(dir))?
            }
            None => self.runtime.default_dir().display().to_string(),
        };
        let snapshot = snapshot.map(|path| self.runtime.absolute(&path).display().to_string());
        if let Some(path) = snapshot.as_ref().filter(|p| !std::path::Path::new(p).is_file()) {
            return Err(BashError::NoSnapshot(path.clone()));
        }
        let session = Arc::new(Session::new(id.unwrap_or_else(SessionId::random), dir, snapshot));
        let mut sessions = self.lock();
        if sessions.len() >= MAX_SESSIONS {
            let idle = sessions.values().filter(|s| !s.is_busy());
            let oldest = idle.min_by_key(|s| s.last_used()).map(|s| s.id.clone());
            sessions.remove(&oldest.ok_or(BashError::TooManySessions)?);
        }
        sessions.insert(session.id.clone(), Arc::clone(&session));
        drop(sessions);
        if !self.reaper_runs.swap(true, Ordering::Relaxed) {
            let service = Arc::downgrade(self);
            tokio::spawn(async move {
                while let Some(next) = service.upgrade().and_then(|service| service.forget_unused()) {
                    tokio::time::sleep_until(next).await;
                }
            });
        }
        Ok(session)
    }

    /// Forgets expired sessions and returns when the next one expires. Without sessions, the reaper stops.
    fn forget_unused(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut sessions = self.lock();
        sessions.retain(|_, s| s.is_busy() || saved::last_use(s.last_used()) + SESSION_TIMEOUT > now);
        let next = sessions
            .values()
            .map(|s| (saved::last_use(s.last_used()) + SESSION_TIMEOUT).max(now + Duration::from_secs(60)))
            .min();
        self.reaper_runs.store(next.is_some(), Ordering::Relaxed);
        next
    }
}

/// The id in a call about an existing session. No session has an invalid one.
pub(super) fn session_id(given: &str) -> Result<SessionId, BashError> {
    given.parse().map_err(|_| BashError::SessionNotFound(given.to_owned()))
}

/// The command of a session that a call names.
fn command(session: &Session, given: &str) -> Result<Arc<Command>, BashError> {
    let found = CommandId::parse(given).and_then(|id| session.command(&id));
    found.ok_or_else(|| BashError::CommandNotFound(given.to_owned()))
}

fn environment(
    runtime: &Runtime,
    changes: Option<std::collections::BTreeMap<String, Option<String>>>,
    snapshot: Option<&str>,
) -> Result<Vec<(String, String)>, BashError> {
    let changes = changes.unwrap_or_default();
    let bad = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
    if let Some(name) = changes.keys().find(bad) {
        return Err(BashError::BadVariable(name.clone()));
    }
    let (set, unset): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, v)| v.is_some());
    let snapshot = snapshot.map(|path| ("BASH_ENV".to_owned(), path.to_owned()));
    let extra: Vec<(String, String)> = snapshot.into_iter().chain(set.into_iter().filter_map(|(k, v)| Some((k, v?)))).collect();
    let mut env = runtime.environment(&runtime.user, &extra);
    env.retain(|(name, _)| !unset.iter().any(|(gone, _)| gone == name));
    Ok(env)
}

fn exec_result(session: &Session, command: &Arc<Command>, limit: Option<usize>) -> BashExecResult {
    let end = command.end();
    let [stdout, stderr] = [Stream::Stdout, Stream::Stderr].map(|stream| {
        let total = command.total(stream);
        let piece = command.read_range(stream, 0..total);
        // An incomplete character is held back until the next call.
        let held_back = match end {
            Some(_) => 0,
            None => incomplete_end(if piece.gap == 0 { &piece.before } else { &piece.after }),
        };
        let piece = match held_back {
            0 => piece,
            n => command.read_range(stream, 0..total - n as u64),
        };
        (piece.text(limit), total - held_back as u64)
    });
    BashExecResult {
        session_id: session.id.to_string(),
        command_id: command.id.to_string(),
        command: command.text.clone(),
        status: end.map_or(CommandStatus::Running, |e| e.status),
        output: format!("{}{}", stdout.0, stderr.0),
        stdout: Some(stdout.0).filter(|s| !s.is_empty()),
        stderr: Some(stderr.0).filter(|s| !s.is_empty()),
        exit_code: end.and_then(|e| e.exit_code),
        offset: stdout.1,
        stderr_offset: stderr.1,
    }
}

fn output_result(session: &Session, command: Option<&Arc<Command>>, from: [u64; 2]) -> BashOutputResult {
    // The state is read before the bytes: when an end is reported, all its output is included.
    let shown = command.cloned().or_else(|| session.current());
    let info = shown.map(|c| {
        let end = c.end();
        BashCommandInfo {
            command_id: c.id.to_string(),
            command: c.text.clone(),
            status: end.map_or(CommandStatus::Running, |e| e.status),
            exit_code: end.and_then(|e| e.exit_code),
        }
    });
    let may_continue = match command {
        Some(command) => command.is_running(),
        None => session.is_busy(),
    };
    let [stdout, stderr] = [(Stream::Stdout, from[0]), (Stream::Stderr, from[1])]
        .map(|(stream, from)| read_stream(session, command, stream, from, may_continue));
    BashOutputResult {
        session_id: session.id.to_string(),
        stdout: stdout.text,
        stderr: stderr.text,
        offset: stdout.end,
        stderr_offset: stderr.end,
        stdout_start_offset: stdout.start,
        stderr_start_offset: stderr.start,
        stdout_gap: stdout.gap,
        stderr_gap: stderr.gap,
        command: info,
    }
}

struct Read {
    text: String,
    start: u64,
    end: u64,
    gap: u64,
}

fn read_stream(session: &Session, command: Option<&Arc<Command>>, stream: Stream, from: u64, may_continue: bool) -> Read {
    let (total, pieces) = match command {
        Some(command) => {
            let total = command.total(stream);
            let piece = LogPiece::Kept { command: Arc::clone(command), range: from..total };
            (total, vec![piece])
        }
        None => {
            let log = session.log(stream);
            (log.total(), log.pieces(from))
        }
    };
    let mut bytes = Vec::new();
    let gap = pieces.into_iter().map(|piece| piece.append_to(stream, &mut bytes)).sum();
    let held_back = if may_continue { incomplete_end(&bytes) } else { 0 };
    bytes.truncate(bytes.len() - held_back);
    Read {
        text: String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()),
        start: from.min(total),
        end: total - held_back as u64,
        gap,
    }
}
