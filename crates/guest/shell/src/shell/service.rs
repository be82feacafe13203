//! The service: sessions by id, and the calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::protocol::CarriedSession;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::actor::{Actor, MAX_QUEUED};
use super::driver::{self, CARRY};
use super::run::{Phase, Run};
use super::session::{Last, Message, SHOWN_CHARS, Session, shown};
use super::submitted::Submitted;
use super::types::*;
use super::viewers::{BEHIND, MAX_VIEWERS};
use crate::carry::{MAX_ENV, PATIENCE};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Budget, has_children, seconds};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::SessionId;

/// The most sessions. Beyond it, an idle one ends: first those created by calls without an id.
pub(super) const MAX_SESSIONS: usize = 128;
/// A session without use, command, viewer and background job ends after this time.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(3600);
/// The most bytes of output kept for all running commands together.
pub(super) const MAX_RETAINED_BYTES: usize = 64 << 20;
/// The most bytes of one command.
pub(super) const MAX_COMMAND: usize = 4 << 20;
/// A call answers after this time without output. Sessions and calls may set another time.
const NO_CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a session counts as active after its last use.
const ACTIVE: Duration = Duration::from_secs(300);
const DEFAULT_WAIT: f64 = 30.0;
const MAX_WAIT: f64 = 3600.0;

#[derive(Debug, Error)]
pub enum ShellError {
    #[error("session {0:?} not found")]
    SessionNotFound(String),
    #[error("{0:?} is no session id: use 1 to {most} bytes without control characters", most = SessionId::MAX_BYTES)]
    BadId(String),
    #[error("directory {0:?} does not exist")]
    NoDirectory(String),
    #[error("the command holds a NUL byte")]
    Nul,
    #[error("the command has {0} bytes; the most is {MAX_COMMAND}; write it to a file and run that")]
    TooLong(usize),
    #[error("{MAX_QUEUED} commands wait in session {0:?} already")]
    QueueFull(SessionId),
    #[error("all {MAX_SESSIONS} sessions are in use; close one")]
    TooManySessions,
    #[error("{MAX_VIEWERS} viewers look at session {0:?} already")]
    TooManyViewers(SessionId),
    #[error("nothing in session {0:?} reads what was typed before")]
    InputFull(SessionId),
    #[error("all terminals for single commands are in use; close one")]
    TooManyAttached,
    #[error("{}", Requirement::SHELL.message())]
    NoShell,
    #[error("could not start a shell: {0}")]
    NotStarted(String),
}

/// All sessions of the guest.
#[derive(Debug)]
pub struct ShellService {
    pub(super) runtime: Arc<Runtime>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    budget: Arc<Budget>,
}

/// A viewer of a session's terminal.
pub(super) struct Viewer {
    pub(super) session: Arc<Session>,
    pub(super) output: mpsc::Receiver<Arc<str>>,
    /// Held while the viewer is connected.
    pub(super) counted: Arc<()>,
}

/// Stops a session's command when its call is dropped.
struct StopOnDrop(Option<(Arc<Session>, Arc<Run>)>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let Some((session, run)) = self.0.take() else { return };
        if run.withdraw("nobody waits for it any more".to_owned()) {
            session.state().queue.retain(|queued| !Arc::ptr_eq(queued, &run));
        } else if run.phase() == Phase::Running {
            tokio::spawn(async move {
                let (reply, stopped) = oneshot::channel();
                session.send(Message::Stop(reply)).await;
                // An error means that the session has ended, and its commands with it.
                drop(stopped.await);
            });
        }
    }
}

impl ShellService {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, sessions: Mutex::default(), budget: Budget::new(MAX_RETAINED_BYTES) }
    }

    /// Runs a command after those already queued in its session. It goes on when the caller leaves.
    pub async fn exec(self: &Arc<Self>, request: ShellExecRequest) -> Result<ShellCommandResult, ShellError> {
        let submitted = self.submit(request)?;
        let status = submitted.follow().await;
        submitted.result(status)
    }

    /// Runs a command and sends its finished lines as they come. Stops it when the caller leaves.
    pub async fn exec_told(
        self: &Arc<Self>,
        request: ShellExecRequest,
        lines_to: Option<&mpsc::Sender<String>>,
    ) -> Result<ShellCommandResult, ShellError> {
        let submitted = self.submit(request)?;
        let mut stop = StopOnDrop(Some((Arc::clone(&submitted.session), Arc::clone(&submitted.run))));
        let status = {
            let mut end = std::pin::pin!(submitted.follow());
            let (mut told, mut ended) = (0, None);
            loop {
                // Registered before the check, so that no change in between is missed.
                let mut grew = std::pin::pin!(submitted.run.grew.notified());
                grew.as_mut().enable();
                let (lines, offset) = submitted.run.lines_from(told);
                if offset > told {
                    told = offset;
                    if let Some(lines_to) = lines_to {
                        // Without a listener, the call is about to end.
                        drop(lines_to.send(lines).await);
                    }
                } else if let Some(status) = ended {
                    break status;
                } else {
                    tokio::select! {
                        () = grew => {}
                        status = &mut end => ended = Some(status),
                    }
                }
            }
        };
        stop.0 = None;
        submitted.result(status)
    }

    /// Whether a session runs a command or has one queued. False also for an unknown session.
    pub fn is_busy(&self, id: &SessionId) -> bool {
        self.session(id).is_ok_and(|session| session.is_busy())
    }

    pub(super) fn submit(self: &Arc<Self>, request: ShellExecRequest) -> Result<Submitted, ShellError> {
        if request.command.contains('\0') {
            return Err(ShellError::Nul);
        }
        if request.command.len() > MAX_COMMAND {
            return Err(ShellError::TooLong(request.command.len()));
        }
        let known = match request.id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => Some(self.session(&session_id(id)?)?),
            None => None,
        };
        let wanted = request.exec_dir.as_deref().filter(|dir| !dir.is_empty());
        let wanted = wanted.map(|dir| self.runtime.absolute(dir));
        let missing = wanted.as_ref().filter(|dir| !dir.is_dir());
        if let (Some(dir), Some(true)) = (missing, request.strict) {
            return Err(ShellError::NoDirectory(dir.display().to_string()));
        }
        let keep_links = request.preserve_symlinks.unwrap_or(false);
        let dir = wanted.map(|dir| (dir.display().to_string(), keep_links));
        let session = match known {
            Some(session) => session,
            None => {
                let start = dir.as_ref().map(|(dir, _)| dir.clone());
                self.open(None, start, String::new(), None, keep_links)?
            }
        };
        let run = Run::new(request.command, dir, request.hard_timeout.filter(|s| *s > 0.0).map(seconds), &self.budget);
        session.submit(Arc::clone(&run))?;
        let no_change_timeout = match request.no_change_timeout {
            Some(s) => Some(s).filter(|s| *s > 0.0).map(seconds),
            None => session.state().no_change_timeout,
        };
        Ok(Submitted {
            run,
            is_async: request.async_mode.unwrap_or(false),
            deadline: request.timeout.map(|s| Instant::now() + seconds(s)),
            no_change_timeout,
            limit: request.truncate.unwrap_or(true).then_some(SHOWN_CHARS),
            session,
        })
    }

    /// The view of a session: the command that runs or waits, else the last one.
    pub fn view(&self, id: &SessionId) -> Result<ShellViewResult, ShellError> {
        let session = self.session(id)?;
        session.touch();
        let console = Some(session.console());
        let state = session.state();
        let run = state.current.clone().or(state.queue.front().cloned()).filter(|run| !run.is_hidden);
        let last = state.last.clone();
        drop(state);
        let seen = match run {
            Some(run) => Last {
                command: run.command.clone(),
                status: match run.phase() {
                    Phase::Ended(status) => status,
                    Phase::Queued | Phase::Running => ShellStatus::Running,
                },
                exit_code: run.exit_code(),
                output: run.output(Some(SHOWN_CHARS)),
            },
            None => match last {
                Some(last) => last,
                None => {
                    return Ok(ShellViewResult {
                        output: String::new(),
                        session_id: session.id.to_string(),
                        console,
                        status: ShellStatus::Completed,
                        command: None,
                        exit_code: None,
                    });
                }
            },
        };
        Ok(ShellViewResult {
            output: seen.output,
            session_id: session.id.to_string(),
            console,
            status: seen.status,
            command: Some(seen.command),
            exit_code: seen.exit_code,
        })
    }

    /// The command that runs in a session.
    pub(super) fn current(&self, id: &SessionId) -> Result<Option<Arc<Run>>, ShellError> {
        let session = self.session(id)?;
        let state = session.state();
        Ok(state.current.clone().or(state.queue.front().cloned()))
    }

    /// Waits until all commands of a session have ended, including queued ones.
    pub async fn wait(&self, request: ShellWaitRequest) -> Result<ShellWaitResult, ShellError> {
        let session = self.session(&session_id(&request.id)?)?;
        session.touch();
        let limit = request.max_wait_seconds.or(request.seconds);
        let limit = limit.unwrap_or(DEFAULT_WAIT).clamp(0.0, MAX_WAIT);
        let deadline = Instant::now() + seconds(limit);
        loop {
            let run = {
                let state = session.state();
                state.queue.back().or(state.current.as_ref()).cloned()
            };
            let Some(run) = run else { break };
            let mut phase = run.watch();
            let ended = phase.wait_for(|phase| matches!(phase, Phase::Ended(_)));
            if timeout_at(deadline, ended).await.is_err() {
                break;
            }
            // The session records an end just after its waiters are woken.
            tokio::task::yield_now().await;
        }
        Ok(ShellWaitResult { status: session.status() })
    }

    /// Types into a session's terminal.
    pub async fn write(&self, request: ShellWriteRequest) -> Result<ShellWriteResult, ShellError> {
        let session = self.session(&session_id(&request.id)?)?;
        session.touch();
        let mut bytes = request.input.into_bytes();
        if request.press_enter {
            bytes.push(b'\r');
        }
        let (reply, accepted) = oneshot::channel();
        let typed = session.send(Message::Type { bytes, reply: Some(reply) });
        if !typed.await {
            return Err(ShellError::SessionNotFound(request.id));
        }
        match accepted.await {
            Ok(true) => Ok(ShellWriteResult { status: session.status() }),
            Ok(false) => Err(ShellError::InputFull(session.id.clone())),
            Err(_) => Err(ShellError::SessionNotFound(request.id)),
        }
    }

    /// Stops what runs in a session; the session goes on.
    pub async fn kill(&self, id: &SessionId) -> Result<ShellKillResult, ShellError> {
        let session = self.session(id)?;
        session.touch();
        let was_busy = session.is_busy();
        let (reply, stopped) = oneshot::channel();
        session.send(Message::Stop(reply)).await;
        // An error means that the session has ended, and its commands with it.
        drop(stopped.await);
        let last = session.state().last.clone();
        let exit_code = last.filter(|_| !was_busy).and_then(|last| last.exit_code);
        Ok(ShellKillResult { status: ShellStatus::Terminated, exit_code, returncode: exit_code })
    }

    /// Creates a session. Returns an existing one unchanged.
    pub async fn create(self: &Arc<Self>, request: ShellCreateSessionRequest) -> Result<ShellCreateSessionResponse, ShellError> {
        let id = request.id.as_deref().filter(|id| !id.is_empty()).map(new_session_id).transpose()?;
        let existing = id.as_ref().and_then(|id| self.lock().get(id).cloned());
        let session = match existing {
            Some(session) => session,
            None => {
                let dir = request.exec_dir.filter(|dir| !dir.is_empty());
                let dir = dir.map(|dir| self.runtime.absolute(&dir).display().to_string());
                let keep_links = request.preserve_symlinks.unwrap_or(false);
                self.open(id, dir, String::new(), request.no_change_timeout, keep_links)?
            }
        };
        session.touch();
        session.opened().await?;
        let working_dir = session.state().working_dir.clone();
        Ok(ShellCreateSessionResponse { session_id: session.id.to_string(), working_dir })
    }

    /// Changes a session's no-change timeout.
    pub fn update(&self, request: ShellUpdateSessionRequest) -> Result<(), ShellError> {
        let session = self.session(&session_id(&request.id)?)?;
        session.touch();
        if let Some(value) = request.no_change_timeout {
            session.state().no_change_timeout = Some(value).filter(|s| *s > 0.0).map(seconds);
        }
        Ok(())
    }

    /// Whether a call's command runs or waits in any session.
    pub fn runs_anything(&self) -> bool {
        self.lock().values().any(|session| session.is_busy())
    }

    pub fn stats(&self) -> ShellSessionStats {
        let sessions = self.lock();
        let is_active = |s: &&Arc<Session>| s.is_busy() || s.state().last_used.elapsed() < ACTIVE;
        let active = sessions.values().filter(is_active).count();
        ShellSessionStats {
            total_sessions: sessions.len(),
            active_sessions: active,
            idle_sessions: sessions.len() - active,
            max_sessions: MAX_SESSIONS,
            session_timeout: SESSION_TIMEOUT.as_secs(),
            usage_ratio: sessions.len() as f64 / MAX_SESSIONS as f64,
        }
    }

    pub fn list(&self) -> ActiveShellSessionsResult {
        let sessions = self.lock();
        let infos = sessions.iter().map(|(id, s)| (id.to_string(), s.info()));
        ActiveShellSessionsResult { sessions: infos.collect() }
    }

    /// Ends a session and all its processes.
    pub async fn cleanup(&self, id: &SessionId) -> Result<(), ShellError> {
        let session = self.session(id)?;
        self.close(&session).await;
        Ok(())
    }

    /// Ends all sessions and returns their number.
    pub async fn cleanup_all(&self) -> usize {
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        for session in &sessions {
            self.close(session).await;
        }
        sessions.len()
    }

    /// Attaches a viewer to a session's terminal; without an id to a new session's.
    pub(super) async fn attach(self: &Arc<Self>, id: Option<&SessionId>) -> Result<Viewer, ShellError> {
        let session = match id {
            Some(id) => self.session(id)?,
            None => self.open(None, None, String::new(), None, false)?,
        };
        session.opened().await?;
        session.touch();
        let counted = session.add_viewer();
        if session.viewers() > MAX_VIEWERS {
            return Err(ShellError::TooManyViewers(session.id.clone()));
        }
        let (sender, output) = mpsc::channel(BEHIND);
        if !session.send(Message::Attach(sender)).await {
            return Err(ShellError::SessionNotFound(session.id.to_string()));
        }
        Ok(Viewer { session, output, counted })
    }

    /// What a fork takes over: the sessions, and the environment of idle shells.
    pub(crate) async fn carried(&self) -> Vec<CarriedSession> {
        let deadline = Instant::now() + PATIENCE;
        let sessions: Vec<_> = self.lock().values().cloned().collect();
        let carried = sessions.into_iter().map(|session| async move {
            let env = self.environment_of(&session, deadline).await.unwrap_or_default();
            let dir = session.state().working_dir.clone();
            CarriedSession { id: session.id.to_string(), dir, env, script: None }
        });
        futures_util::future::join_all(carried).await
    }

    async fn environment_of(&self, session: &Session, deadline: Instant) -> Option<String> {
        let is_open = matches!(*session.opened.borrow(), Some(Ok(())));
        if !is_open || session.is_busy() || !session.state().is_bash {
            return None;
        }
        let run = Run::hidden(CARRY.to_owned(), &self.budget);
        session.submit(Arc::clone(&run)).ok()?;
        let mut phase = run.watch();
        let ended = phase.wait_for(|phase| matches!(phase, Phase::Ended(_)));
        if timeout_at(deadline, ended).await.is_err() {
            run.withdraw("it was too late for the fork".to_owned());
            return None;
        }
        let env = driver::carried(&run.output(None));
        (env.len() <= MAX_ENV).then_some(env)
    }

    /// Opens a session of this sandbox's parent, unless there is one.
    pub(crate) fn take_over(self: &Arc<Self>, CarriedSession { id, dir, env, .. }: CarriedSession) {
        let opened = new_session_id(&id).and_then(|id| {
            let exists = self.lock().contains_key(&id);
            if exists { Ok(()) } else { self.open(Some(id), Some(dir), env, None, true).map(drop) }
        });
        if let Err(error) = opened {
            tracing::info!(%error, "a session was not taken over");
        }
    }

    /// Removes a session that has ended.
    pub(super) fn forget(&self, session: &Arc<Session>) {
        let mut sessions = self.lock();
        if sessions.get(&session.id).is_some_and(|s| Arc::ptr_eq(s, session)) {
            sessions.remove(&session.id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, ShellError> {
        let found = self.lock().get(id).cloned();
        found.ok_or_else(|| ShellError::SessionNotFound(id.to_string()))
    }

    async fn close(&self, session: &Arc<Session>) {
        self.forget(session);
        let (reply, closed) = oneshot::channel();
        let all_processes = true;
        session.send(Message::Close { all_processes, reply }).await;
        // An error means that it has ended by itself.
        drop(closed.await);
    }

    fn open(
        self: &Arc<Self>,
        id: Option<SessionId>,
        dir: Option<String>,
        carried: String,
        no_change_timeout: Option<f64>,
        keep_links: bool,
    ) -> Result<Arc<Session>, ShellError> {
        self.make_room()?;
        let made_by_call = id.is_none();
        let id = id.unwrap_or_else(SessionId::random);
        let dir = dir.unwrap_or_else(|| self.runtime.default_dir().display().to_string());
        let no_change_timeout = match no_change_timeout {
            Some(value) => Some(value).filter(|s| *s > 0.0).map(seconds),
            None => Some(NO_CHANGE_TIMEOUT),
        };
        let (session, messages) = Session::new(id.clone(), made_by_call, dir, carried, no_change_timeout);
        self.lock().insert(id, Arc::clone(&session));
        let actor = Actor::new(Arc::clone(self), Arc::clone(&session), messages, Arc::clone(&self.budget), keep_links);
        tokio::spawn(actor.run());
        Ok(session)
    }

    /// Ends an idle session at the maximum. One with background jobs is the last choice, and its jobs live on.
    fn make_room(&self) -> Result<(), ShellError> {
        let mut sessions = self.lock();
        if sessions.len() < MAX_SESSIONS {
            return Ok(());
        }
        let mut unused: Vec<_> = sessions.values().filter(|s| !s.is_busy() && s.viewers() == 0).cloned().collect();
        unused.sort_by_key(|s| (!s.made_by_call, s.state().last_used));
        let works = |s: &&Arc<Session>| s.state().shell.is_some_and(has_children);
        let victim = unused.iter().find(|s| !works(s)).or(unused.first());
        let victim = victim.ok_or(ShellError::TooManySessions)?;
        sessions.remove(&victim.id);
        let (reply, _) = oneshot::channel();
        let message = Message::Close { all_processes: false, reply };
        if let Err(mpsc::error::TrySendError::Full(message)) = victim.mailbox.try_send(message) {
            let victim = Arc::clone(victim);
            tokio::spawn(async move { victim.send(message).await });
        }
        Ok(())
    }
}

/// The id in a call about an existing session. No session has an invalid one.
pub fn session_id(given: &str) -> Result<SessionId, ShellError> {
    given.parse().map_err(|_| ShellError::SessionNotFound(shown(given).to_owned()))
}

/// The id that a call gives to a new session.
fn new_session_id(given: &str) -> Result<SessionId, ShellError> {
    let valid = given.parse().ok().filter(|_| !given.contains(char::is_control));
    valid.ok_or_else(|| ShellError::BadId(given.chars().take(SessionId::MAX_BYTES).collect()))
}

impl Session {
    /// Waits until its first shell has started.
    async fn opened(&self) -> Result<(), ShellError> {
        let mut opened = self.opened.subscribe();
        let opened = match opened.wait_for(Option::is_some).await {
            Ok(result) => result.clone(),
            Err(_) => None,
        };
        match opened {
            Some(Err(reason)) => Err(reason.into()),
            _ => Ok(()),
        }
    }
}
