//! The service: single executions, and sessions by id.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::process::{Mode, NodeProcess, Ran};
use super::runtime;
use super::session::{Session, Slot};
use super::types::*;
use crate::packages;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Budget, Exit};
use arenite_guest_runtime::programs::{Unasked, Versions};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::{SessionError, SessionId, Sessions};
use arenite_guest_runtime::workers::Kind;

/// The most sessions, each a process of about 45 MiB. Beyond it, the session that was idle longest ends.
pub(super) const MAX_SESSIONS: usize = 16;
/// The most concurrent single executions. Further ones wait in order.
const MAX_SINGLE: usize = 8;
/// The most waiting single executions.
const MAX_SINGLE_WAITING: usize = 64;
/// The most files of an execution, and the bytes of all of them.
const MAX_FILES: usize = 1000;
/// Bytes of printed output kept for all executions together, beyond 128 KiB for each stream.
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// Exit code of `timeout` for a command that it ended.
const TIMED_OUT: i32 = 124;

#[derive(Debug, Error)]
pub enum NodeError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{}", Requirement::NODE.message())]
    NoRuntime,
    #[error("Node.js {asked:?} is not installed; there are {known}")]
    NoVersion { asked: String, known: String },
    #[error("session {id:?} runs {has}, not {wanted}")]
    OtherVersion { id: SessionId, has: String, wanted: String },
    #[error("directory {0:?} does not exist or can't be entered")]
    NoDirectory(String),
    #[error("{0:?} is no name for a file of the execution: use relative paths without `..`")]
    BadFile(String),
    #[error("an execution can bring {MAX_FILES} files")]
    TooManyFiles,
    #[error("the files could not be written: {0}")]
    NotWritten(Failure),
    #[error("standard input is for executions without a session")]
    StdinInSession,
    #[error("{MAX_SINGLE_WAITING} executions wait already")]
    TooManySingle,
    #[error("Node.js could not be started: {0}")]
    NotStarted(SpawnError),
    #[error("Node.js did not get ready: {how}{}", told(.said))]
    NotReady { how: String, said: String },
    #[error("Node.js could not be reached: {what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("could not look for Node.js: {0}")]
    NotLooked(Failure),
    #[error("could not ask {program} which Node.js it is: {source}")]
    NoAnswer { program: String, source: Unasked },
}

fn told(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; it said: {said}") }
}

/// The outcome of a call.
#[derive(Debug)]
pub struct Executed {
    pub response: NodeJSExecuteResponse,
    /// Why the execution ended the session's process, or its own process early.
    pub ended: Option<String>,
    /// Why the session's earlier process ended, if this one was started for the call.
    pub restarted: Option<String>,
}

/// All sessions of the guest.
#[derive(Debug)]
pub struct NodeService {
    runtime: Arc<Runtime>,
    versions: Arc<Versions>,
    sessions: Arc<Sessions<Session>>,
    budget: Arc<Budget>,
    single: Semaphore,
    single_waiting: Semaphore,
}

impl NodeService {
    pub fn new(runtime: Arc<Runtime>, versions: Arc<Versions>) -> Self {
        Self {
            runtime,
            versions,
            sessions: Sessions::at_most(MAX_SESSIONS),
            budget: Budget::new(MAX_RETAINED_BYTES),
            single: Semaphore::new(MAX_SINGLE),
            single_waiting: Semaphore::new(MAX_SINGLE + MAX_SINGLE_WAITING),
        }
    }
}

impl NodeService {
    /// Whether code is being executed.
    pub fn is_busy(&self) -> bool {
        self.sessions.is_busy() || self.single.available_permits() < MAX_SINGLE
    }

    /// Executes code in a separate process, or in a new or existing session.
    pub async fn execute(&self, request: NodeJSExecuteRequest) -> Result<Executed, NodeError> {
        let id = request.session_id.as_deref().filter(|id| !id.is_empty());
        if id.is_none() && request.stateful != Some(true) {
            return self.execute_once(request, None).await;
        }
        if request.stdin.as_deref().is_some_and(|text| !text.is_empty()) {
            return Err(NodeError::StdinInSession);
        }
        let limit = limit(&request);
        let cwd = directory(&self.runtime, request.cwd.as_deref())?;
        let id = SessionId::given(id).map_err(SessionError::from)?;
        let session = self.session_for(id, request.version.as_deref(), cwd.as_deref(), DEFAULT_IDLE).await?.0;
        let mut slot = session.turns.turn(limit).await?;
        session.turns.touch();
        let restarted = self.ready(&session, &mut slot).await?;
        let place = cwd.clone().unwrap_or_else(|| session.cwd());
        write_files(&self.runtime, &place, request.files.unwrap_or_default()).await?;
        let Slot { process: Some(process), executions, .. } = &mut *slot else {
            return Err(session.turns.gone().into());
        };
        *executions += 1;
        let count = *executions;
        let ran = tokio::select! {
            ran = process.run(&request.code, cwd.as_deref(), limit) => ran,
            () = session.turns.closed.cancelled() => return Err(session.turns.gone().into()),
        };
        if let Some(cwd) = ran.answer.as_ref().and_then(|answer| answer.cwd.as_deref()) {
            session.set_cwd(cwd.into());
        }
        let ended = ran.exit.map(|exit| how(exit, ran.late));
        if ended.is_some() {
            slot.process = None;
        }
        session.turns.touch();
        let mut response = response(request.code, ran);
        response.execution_count = Some(count);
        response.session_id = Some(session.id().to_string());
        if let Some(reason) = &ended {
            response.outputs.push(error_output("SessionEnded", reason.clone(), Vec::new()));
        }
        Ok(Executed { response, ended, restarted })
    }

    /// Executes code in a separate process, which ends with it or when the caller leaves. Lines are sent as they are printed.
    pub async fn execute_once(
        &self,
        request: NodeJSExecuteRequest,
        lines_to: Option<&mpsc::Sender<String>>,
    ) -> Result<Executed, NodeError> {
        let _place = self.single_waiting.try_acquire().map_err(|_| NodeError::TooManySingle)?;
        let _turn = self.single.acquire().await;
        let limit = limit(&request);
        let runtime = runtime::choose(runtime::installed(&self.runtime, &self.versions).await?, request.version.as_deref())?;
        // Removed at the end, unless the caller named it.
        let (_own, dir) = match directory(&self.runtime, request.cwd.as_deref())? {
            Some(dir) => (None, dir),
            None => {
                let own = arenite_guest_runtime::process::ScratchDir::new(&self.runtime.user)
                    .map_err(|source| NodeError::Io { what: "its directory", source })?;
                let path = own.path().to_owned();
                (Some(own), path)
            }
        };
        write_files(&self.runtime, &dir, request.files.unwrap_or_default()).await?;
        let mut process =
            NodeProcess::start(&self.runtime, &runtime, Mode::Once, &dir, request.stdin, &self.budget, lines_to).await?;
        let begun = Instant::now();
        let mut ran = process.run(&request.code, None, limit).await;
        let exit = match ran.exit {
            Some(exit) => exit,
            None if ran.late => process.end().await,
            None => {
                // Timers, servers and children that the code started belong to the execution.
                let (late, exit) = process.finish(limit.saturating_sub(begun.elapsed())).await;
                ran.late |= late;
                exit
            }
        };
        let (stdout, stderr) = process.outputs();
        ran.stdout.push_str(&stdout);
        ran.stderr.push_str(&stderr);
        let (late, answered) = (ran.late, ran.answer.is_some());
        let mut response = response(request.code, ran);
        response.exit_code = if late { TIMED_OUT } else { exit.shell_code() };
        if response.status == "ok" && response.exit_code != 0 {
            response.status = "error";
        }
        // `process.exit(0)` ends it without an answer, and is no error.
        if !answered && !late && exit == Exit::Code(0) {
            response.status = "ok";
        }
        let killed = match exit {
            Exit::Signal(_) if !late => Some(how(exit, false)),
            _ => None,
        };
        if let Some(reason) = &killed {
            response.outputs.push(error_output("ProcessEnded", reason.clone(), Vec::new()));
        }
        Ok(Executed { response, ended: killed, restarted: None })
    }

    /// Creates a session with a started process. Returns an existing one unchanged.
    pub async fn create(
        &self,
        request: NodeJSCreateSessionRequest,
        version: Option<&str>,
    ) -> Result<NodeJSCreateSessionResponse, NodeError> {
        let cwd = directory(&self.runtime, request.cwd.as_deref())?;
        let id = SessionId::given(request.session_id.as_deref()).map_err(SessionError::from)?;
        let idle = request.max_idle_time.unwrap_or(DEFAULT_IDLE);
        let (session, created) = self.session_for(id, version, cwd.as_deref(), idle).await?;
        if created {
            let mut slot = session.turns.turn(Duration::from_secs(300)).await?;
            self.ready(&session, &mut slot).await?;
        }
        Ok(NodeJSCreateSessionResponse {
            session_id: session.id().to_string(),
            created,
            message: Some(if created { "Session is ready" } else { "Session is there already" }.to_owned()),
            session: Some(session.info()),
        })
    }

    pub fn sessions(&self, version: Option<&str>) -> BTreeMap<String, NodeJSSessionInfo> {
        let sessions = self.sessions.all();
        let theirs = sessions.iter().filter(|session| session.is_of(version));
        theirs.map(|session| (session.id().to_string(), session.info())).collect()
    }

    pub fn info_of(&self, id: &SessionId, version: Option<&str>) -> Result<NodeJSSessionInfo, NodeError> {
        Ok(self.find(id, version)?.info())
    }

    /// Changes a session's times or directory.
    pub async fn update(
        &self,
        id: &SessionId,
        version: Option<&str>,
        request: NodeJSUpdateSessionRequest,
    ) -> Result<NodeJSSessionInfo, NodeError> {
        let session = self.find(id, version)?;
        if let Some(dir) = directory(&self.runtime, request.cwd.as_deref())? {
            let mut slot = session.turns.turn(Duration::from_secs(30)).await?;
            if let Some(process) = &mut slot.process {
                // An empty evaluation in that directory.
                let moved = process.run("", Some(&dir), Duration::from_secs(10)).await;
                if moved.exit.is_some() {
                    slot.process = None;
                } else if moved.answer.is_none_or(|answer| !answer.ok) {
                    return Err(NodeError::NoDirectory(dir.display().to_string()));
                }
            }
            session.set_cwd(dir);
        }
        if let Some(seconds) = request.max_idle_time {
            session.set_max_idle(seconds);
        }
        session.turns.touch();
        self.sessions.look_sooner();
        Ok(session.info())
    }

    /// Ends a session with its process and all processes that it started.
    pub async fn delete(&self, id: &SessionId, version: Option<&str>) -> Result<(), NodeError> {
        self.find(id, version)?;
        Ok(self.sessions.delete(id).await?)
    }

    pub async fn info(&self) -> NodeJSRuntimeInfo {
        let about = "JavaScript in Node.js: each execution in a process of its own, or in a session whose state lasts";
        let empty =
            NodeJSRuntimeInfo { supported_languages: vec!["javascript"], description: about.to_owned(), ..Default::default() };
        let installed = match runtime::installed(&self.runtime, &self.versions).await {
            Ok(installed) if installed.is_empty() => {
                return NodeJSRuntimeInfo { error: Some(NodeError::NoRuntime.to_string()), ..empty };
            }
            Ok(installed) => installed,
            Err(error) => return NodeJSRuntimeInfo { error: Some(error.to_string()), ..empty },
        };
        let packages = packages::nodejs(&self.runtime).await.unwrap_or_default();
        let npm = packages.iter().find(|package| package.name == "npm").map(|npm| npm.version.clone());
        let global = packages.into_iter().map(|p| NodeJSPackageInfo { name: p.name, version: p.version }).collect();
        NodeJSRuntimeInfo {
            node_version: format!("v{}", installed[0].version),
            npm_version: npm.unwrap_or_default(),
            current_version: Some(installed[0].name.clone()),
            available_versions: installed.into_iter().map(|runtime| runtime.name).collect(),
            global_packages: global,
            ..empty
        }
    }

    fn find(&self, id: &SessionId, version: Option<&str>) -> Result<Arc<Session>, NodeError> {
        let found = self.sessions.find(id).ok_or_else(|| SessionError::NotFound(id.to_string()))?;
        if found.is_of(version) { Ok(found) } else { Err(found.turns.gone().into()) }
    }

    /// The session of that id or a new one, and whether it is new.
    async fn session_for(
        &self,
        id: Option<SessionId>,
        version: Option<&str>,
        cwd: Option<&Path>,
        idle: i64,
    ) -> Result<(Arc<Session>, bool), NodeError> {
        if let Some(session) = id.as_ref().and_then(|id| self.sessions.find(id)) {
            return fits(session, version).map(|session| (session, false));
        }
        let runtime = runtime::choose(runtime::installed(&self.runtime, &self.versions).await?, version)?;
        let cwd = cwd.map_or_else(|| self.runtime.default_dir(), Path::to_owned);
        let (session, is_new) = self.sessions.insert(id, |id| Session::new(id, runtime, cwd, idle))?;
        // Another call may have created it meanwhile.
        fits(session, version).map(|session| (session, is_new))
    }

    /// Ensures that the session has a running process. Returns why the previous one ended, if there was one.
    async fn ready(&self, session: &Session, slot: &mut Slot) -> Result<Option<String>, NodeError> {
        let ended = match &mut slot.process {
            Some(process) => match process.ended().await {
                Some(exit) => Some(how(exit, false)),
                None => return Ok(None),
            },
            None => slot.had_process.then(|| "it had ended".to_owned()),
        };
        slot.process = None;
        let dir = session.cwd();
        let started = NodeProcess::start(&self.runtime, &session.runtime, Mode::Session, &dir, None, &self.budget, None).await;
        slot.process = Some(started.inspect_err(|_| {
            // A session that never had a process is removed, unless the next call may start one.
            if !slot.had_process && !session.turns.is_awaited() {
                self.sessions.forget(session);
            }
        })?);
        slot.had_process = true;
        Ok(ended)
    }
}

fn fits(session: Arc<Session>, version: Option<&str>) -> Result<Arc<Session>, NodeError> {
    if session.is_of(version) {
        return Ok(session);
    }
    let wanted = version.unwrap_or_default().chars().take(40).collect();
    Err(NodeError::OtherVersion { id: session.id().clone(), has: session.runtime.name.clone(), wanted })
}

fn limit(request: &NodeJSExecuteRequest) -> Duration {
    Duration::from_secs(request.timeout.unwrap_or(DEFAULT_TIMEOUT).unsigned_abs())
}

fn directory(runtime: &Runtime, cwd: Option<&str>) -> Result<Option<PathBuf>, NodeError> {
    let Some(cwd) = cwd.filter(|dir| !dir.is_empty()) else { return Ok(None) };
    let dir = runtime.absolute(cwd);
    if dir.is_dir() { Ok(Some(dir)) } else { Err(NodeError::NoDirectory(dir.display().to_string())) }
}

/// Writes the files of an execution below its directory, with the rights of the user.
async fn write_files(runtime: &Runtime, dir: &Path, files: BTreeMap<String, String>) -> Result<(), NodeError> {
    if files.is_empty() {
        return Ok(());
    }
    if files.len() > MAX_FILES {
        return Err(NodeError::TooManyFiles);
    }
    let is_inside = |name: &str| {
        let mut parts = Path::new(name).components();
        !name.is_empty() && !name.contains('\0') && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    };
    if let Some(name) = files.keys().find(|name| !is_inside(name)) {
        return Err(NodeError::BadFile(name.chars().take(200).collect()));
    }
    let dir = dir.to_owned();
    let write = move |_: &_| {
        for (name, text) in &files {
            let path = dir.join(name);
            let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
            written.map_err(|error| Failure::io(error, &path.to_string_lossy()))?;
        }
        Ok(())
    };
    runtime.workers.run(Kind::Brief, &runtime.user, write).await.map_err(NodeError::NotWritten)
}

pub(super) fn how(exit: Exit, late: bool) -> String {
    match exit {
        _ if late => "it went on after it was interrupted, and was killed".to_owned(),
        Exit::Code(code) => format!("it ended with exit code {code}"),
        Exit::Signal(9) => "it was killed (signal 9), perhaps for want of memory".to_owned(),
        Exit::Signal(signal) => format!("it was ended by signal {signal}"),
    }
}

fn error_output(ename: &str, evalue: String, traceback: Vec<String>) -> NodeJSOutput {
    NodeJSOutput {
        output_type: "error",
        ename: Some(ename.to_owned()),
        evalue: Some(evalue),
        traceback: Some(traceback),
        ..Default::default()
    }
}

/// Printed text first, then the result or the error.
fn response(code: String, ran: Ran) -> NodeJSExecuteResponse {
    let Ran { answer, late, stdout, stderr, exit } = ran;
    let stream = |name: &'static str, text: &String| {
        let output = NodeJSOutput { output_type: "stream", name: Some(name), text: Some(text.clone()), ..Default::default() };
        (!text.is_empty()).then_some(output)
    };
    let mut outputs: Vec<NodeJSOutput> = stream("stdout", &stdout).into_iter().chain(stream("stderr", &stderr)).collect();
    let ok = answer.as_ref().is_some_and(|answer| answer.ok);
    if let Some(answer) = answer {
        if !answer.ok {
            outputs.push(error_output(&answer.ename, answer.evalue, answer.traceback));
        } else if let Some(text) = answer.text {
            let json = answer.json.map(|json| ("application/json", json));
            let plain = ("text/plain", serde_json::Value::String(text.clone()));
            let data = Some([plain].into_iter().chain(json).collect());
            outputs.push(NodeJSOutput { output_type: "execute_result", text: Some(text), data, ..Default::default() });
        }
    }
    let (status, exit_code) = match (late, ok, exit) {
        (true, ..) => ("timeout", TIMED_OUT),
        (_, true, _) => ("ok", 0),
        (_, false, Some(exit)) => ("error", exit.shell_code()),
        (_, false, None) => ("error", 1),
    };
    NodeJSExecuteResponse {
        language: "javascript",
        status,
        execution_count: None,
        outputs,
        code,
        stdout,
        stderr,
        exit_code,
        session_id: None,
    }
}
