//! The service: sessions by id, and the executions in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc};

use super::kernel::{Execution, Kernel, Status};
use super::kernelspec::{self, KernelSpec};
use super::session::{Session, Slot};
use super::spare::{self, Spares};
use super::start::StartError;
use super::types::*;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Budget, News};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::sessions::{SessionError, SessionId, Sessions, Turns};

/// The most sessions, each with a kernel of about 60 MiB. Beyond it, the session that was idle longest ends.
pub(super) const MAX_SESSIONS: usize = 10;
/// An idle session ends after this time.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(1800);
/// The most concurrent single executions, each in its own kernel. Further ones wait in order.
const MAX_SINGLE: usize = 4;
/// The most waiting single executions.
const MAX_SINGLE_WAITING: usize = 64;
/// Bytes of printed output kept for all executions together, beyond 128 KiB for each stream.
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// The default kernel.
const USUAL_KERNEL: &str = "python3";

#[derive(Debug, Error)]
pub enum JupyterError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{}", Requirement::KERNEL.message())]
    NoKernels,
    #[error("there is no kernel {name:?}; installed are {known}")]
    NoKernel { name: String, known: String },
    #[error("session {id:?} runs the kernel {has:?}, not {wanted:?}")]
    OtherKernel { id: SessionId, has: String, wanted: String },
    #[error("directory {0:?} does not exist or can't be entered")]
    NoDirectory(String),
    #[error("the directory of a running kernel for {0:?} can't be changed from outside")]
    FixedDirectory(String),
    #[error("{MAX_SINGLE_WAITING} executions wait already")]
    TooManySingle,
    #[error(transparent)]
    NotStarted(#[from] StartError),
    #[error("could not look for kernels: {0}")]
    NotLooked(#[from] Failure),
}

/// The outcome of a call.
#[derive(Debug)]
pub struct Executed {
    pub execution: Execution,
    pub kernel_name: String,
    /// None: a single execution.
    pub session_id: Option<String>,
    /// Why the session's earlier kernel ended, if this one was started for the call.
    pub restarted: Option<String>,
}

/// All sessions of the guest.
#[derive(Debug)]
pub struct JupyterService {
    runtime: Arc<Runtime>,
    sessions: Arc<Sessions<Session>>,
    budget: Arc<Budget>,
    spares: Spares,
    single: Arc<Semaphore>,
    single_waiting: Arc<Semaphore>,
}

impl JupyterService {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            sessions: Sessions::at_most(MAX_SESSIONS),
            budget: Budget::new(MAX_RETAINED_BYTES),
            spares: Spares::default(),
            single: Arc::new(Semaphore::new(MAX_SINGLE)),
            single_waiting: Arc::new(Semaphore::new(MAX_SINGLE + MAX_SINGLE_WAITING)),
        }
    }
}

impl JupyterService {
    /// Whether code is being executed.
    pub fn is_busy(&self) -> bool {
        self.sessions.is_busy() || self.single.available_permits() < MAX_SINGLE
    }

    /// Executes code in a session. Creates the session if it does not exist.
    pub async fn execute(&self, request: &JupyterExecuteRequest) -> Result<Executed, JupyterError> {
        let limit = Duration::from_secs(request.timeout.unwrap_or(DEFAULT_TIMEOUT).unsigned_abs());
        let asked = directory(&self.runtime, request.cwd.as_deref())?;
        let id = SessionId::given(request.session_id.as_deref()).map_err(SessionError::from)?;
        let session = self.session_for(id, request.kernel_name.as_deref(), asked.as_deref()).await?;
        let mut slot = session.turns.turn(limit).await?;
        session.turns.touch();
        let (is_new, restarted) = self.ready(&session, &mut slot).await?;
        let Some(kernel) = &slot.kernel else { return Err(session.turns.gone().into()) };
        let ran = match asked.filter(|dir| !is_new || *dir != session.cwd) {
            Some(dir) => match spare::adapt(kernel, &session.spec, &json!({}), Some(&dir)).await {
                Ok(None) => return Err(JupyterError::FixedDirectory(session.spec.language.clone())),
                Ok(Some(changed)) if changed.status == Status::Error && changed.ended.is_none() => {
                    return Err(JupyterError::NoDirectory(dir.display().to_string()));
                }
                Ok(Some(_)) => kernel.execute(request.code.clone(), false, limit).await,
                Err(reason) => Err(reason),
            },
            None => kernel.execute(request.code.clone(), false, limit).await,
        };
        let execution = ran.unwrap_or_else(ended_before);
        if execution.ended.is_some() {
            slot.kernel = None;
        }
        session.turns.touch();
        let kernel_name = request.kernel_name.clone().unwrap_or_else(|| session.spec.name.clone());
        Ok(Executed { execution, kernel_name, session_id: Some(session.id().to_string()), restarted })
    }

    /// Executes code in its own kernel, which ends with it or when the caller leaves. Lines are sent as they are printed.
    pub async fn execute_once(
        self: &Arc<Self>,
        code: &str,
        limit: Duration,
        cwd: Option<&str>,
        lines_to: Option<&mpsc::Sender<String>>,
    ) -> Result<Executed, JupyterError> {
        let dir = directory(&self.runtime, cwd)?.unwrap_or_else(|| self.runtime.default_dir());
        let place = Arc::clone(&self.single_waiting).try_acquire_owned().map_err(|_| JupyterError::TooManySingle)?;
        let turn = Arc::clone(&self.single).acquire_owned().await;
        let spec = self.spec(None).await?;
        let kernel = match self.spares.take(&self.runtime, &spec, &dir).await {
            Some(kernel) => kernel,
            None => Kernel::start(&self.runtime, &spec, &dir, &self.budget).await?,
        };
        let execution = kernel.execute_told(code.to_owned(), false, limit, lines_to.map(News::new)).await;
        let execution = execution.unwrap_or_else(ended_before);
        let kernel_name = spec.name.clone();
        let owner = Arc::clone(self);
        // Single executions often follow each other: the next kernel starts while the client reads this answer.
        tokio::spawn(async move {
            kernel.shut_down().await;
            drop((turn, place));
            if let Err(error) = owner.spares.start(&owner.runtime, &owner.budget, &spec, Some(spare::SPARE_TIME)).await {
                tracing::warn!(%error, "a spare kernel could not be started");
            }
        });
        Ok(Executed { execution, kernel_name, session_id: None, restarted: None })
    }

    /// Starts a kernel for the next caller. Returns whether a spare kernel is ready.
    pub async fn prepare(&self) -> Result<bool, JupyterError> {
        let spec = self.spec(None).await?;
        self.spares.start(&self.runtime, &self.budget, &spec, None).await?;
        Ok(self.spares.is_there())
    }

    /// Expires a prepared kernel after a while if it is not used.
    pub fn expire_prepared(&self) {
        self.spares.expire();
    }

    /// Creates a session with a started kernel. Returns an existing one unchanged.
    pub async fn create(&self, request: &JupyterCreateSessionRequest) -> Result<JupyterCreateSessionResponse, JupyterError> {
        let asked = directory(&self.runtime, request.cwd.as_deref())?;
        let id = SessionId::given(request.session_id.as_deref()).map_err(SessionError::from)?;
        let existed = id.as_ref().is_some_and(|id| self.sessions.find(id).is_some());
        let session = self.session_for(id, request.kernel_name.as_deref(), asked.as_deref()).await?;
        if !existed {
            let mut slot = session.turns.turn(Duration::from_secs(300)).await?;
            self.ready(&session, &mut slot).await?;
        }
        session.turns.touch();
        let what = if existed { "is there already" } else { "is ready" };
        Ok(JupyterCreateSessionResponse {
            session_id: session.id().to_string(),
            kernel_name: session.spec.name.clone(),
            message: format!("Session {} {what}", session.id()),
        })
    }

    pub fn sessions(&self) -> BTreeMap<String, SessionInfo> {
        self.sessions.all().iter().map(|session| (session.id().to_string(), session.info())).collect()
    }

    /// Ends a session with its kernel and all processes that it started.
    pub async fn delete(&self, id: &SessionId) -> Result<(), JupyterError> {
        Ok(self.sessions.delete(id).await?)
    }

    /// Ends all sessions and returns their number.
    pub async fn delete_all(&self) -> usize {
        self.sessions.delete_all().await
    }

    /// Whether a kernel is installed.
    pub async fn has_kernel(&self) -> bool {
        kernelspec::installed(&self.runtime).await.is_ok_and(|installed| !installed.is_empty())
    }

    pub async fn info(&self) -> Result<JupyterInfoResponse, JupyterError> {
        let installed = kernelspec::installed(&self.runtime).await?;
        let default = default_kernel(&self.runtime, &installed).map(|spec| spec.name.clone()).unwrap_or_default();
        let mut description = "Code in Jupyter kernels, whose state lasts as long as their session".to_owned();
        let mut aliases: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
        for (name, spec) in &installed {
            aliases.entry(&spec.dir).or_default().push(name);
        }
        for names in aliases.values().filter(|names| names.len() > 1) {
            description.push_str(&format!("; {} are names of one kernel", names.join(", ")));
        }
        Ok(JupyterInfoResponse {
            default_kernel: default,
            available_kernels: installed.into_keys().collect(),
            active_sessions: self.sessions.count(),
            session_timeout_seconds: SESSION_TIMEOUT.as_secs(),
            max_sessions: MAX_SESSIONS,
            description,
            kernel_detection: "the kernel.json files in Jupyter's data directories, read at each call".to_owned(),
        })
    }

    async fn spec(&self, name: Option<&str>) -> Result<KernelSpec, JupyterError> {
        let mut installed = kernelspec::installed(&self.runtime).await?;
        if installed.is_empty() {
            return Err(JupyterError::NoKernels);
        }
        let Some(name) = name else {
            return default_kernel(&self.runtime, &installed).cloned().ok_or(JupyterError::NoKernels);
        };
        installed.remove(&name.to_ascii_lowercase()).ok_or_else(|| JupyterError::NoKernel {
            name: name.chars().take(80).collect(),
            known: installed.into_keys().collect::<Vec<_>>().join(", "),
        })
    }

    /// The session of that id, or a new one. Fails if it runs another kernel.
    async fn session_for(
        &self,
        id: Option<SessionId>,
        kernel: Option<&str>,
        cwd: Option<&Path>,
    ) -> Result<Arc<Session>, JupyterError> {
        let kernel = kernel.filter(|name| !name.is_empty());
        let there = id.as_ref().and_then(|id| self.sessions.find(id));
        if let Some(session) = &there
            && kernel.is_none_or(|name| session.spec.name.eq_ignore_ascii_case(name))
        {
            return Ok(Arc::clone(session));
        }
        let spec = self.spec(kernel).await?;
        let session = match there {
            Some(session) => session,
            None => {
                let cwd = cwd.map_or_else(|| self.runtime.default_dir(), Path::to_owned);
                let spec = spec.clone();
                self.sessions.insert(id, |id| Session { turns: Turns::new(id), spec, cwd })?.0
            }
        };
        if session.spec.dir != spec.dir {
            return Err(JupyterError::OtherKernel {
                id: session.id().clone(),
                has: session.spec.name.clone(),
                wanted: spec.name,
            });
        }
        Ok(session)
    }

    /// Ensures that the session has a running kernel. Returns whether it is new, and why the previous one ended.
    async fn ready(&self, session: &Arc<Session>, slot: &mut Slot) -> Result<(bool, Option<String>), JupyterError> {
        let ended = match &slot.kernel {
            Some(kernel) => match kernel.ended() {
                Some(reason) => Some(reason),
                None => return Ok((false, None)),
            },
            None if slot.had_kernel => Some("it had ended".to_owned()),
            None => None,
        };
        slot.kernel = None;
        let kernel = match self.spares.take(&self.runtime, &session.spec, &session.cwd).await {
            Some(kernel) => kernel,
            None => {
                let starting = Kernel::start(&self.runtime, &session.spec, &session.cwd, &self.budget);
                let started = tokio::select! {
                    started = starting => started,
                    () = session.turns.closed.cancelled() => return Err(session.turns.gone().into()),
                };
                started.inspect_err(|_| {
                    // A session that never had a kernel is removed, unless the next call may start one.
                    if !slot.had_kernel && !session.turns.is_awaited() {
                        self.sessions.forget(session);
                    }
                })?
            }
        };
        kernel.stop_with(&session.turns.closed);
        slot.kernel = Some(kernel);
        slot.had_kernel = true;
        Ok((true, ended))
    }
}

/// The kernel that `PYTHON_VERSION` names, else `python3`, else the first.
fn default_kernel<'a>(runtime: &Runtime, installed: &'a BTreeMap<String, KernelSpec>) -> Option<&'a KernelSpec> {
    let env = runtime.environment(&runtime.user, &[]);
    let version = env.iter().find(|(name, _)| name == "PYTHON_VERSION").map(|(_, value)| value.trim_start_matches("python"));
    let named = version.map(|version| format!("python{}", version.split('.').take(2).collect::<Vec<_>>().join(".")));
    let named = named.and_then(|name| installed.get(&name));
    named.or_else(|| installed.get(USUAL_KERNEL)).or_else(|| installed.values().next())
}

fn directory(runtime: &Runtime, cwd: Option<&str>) -> Result<Option<PathBuf>, JupyterError> {
    let Some(cwd) = cwd.filter(|dir| !dir.is_empty()) else { return Ok(None) };
    let dir = runtime.absolute(cwd);
    if dir.is_dir() { Ok(Some(dir)) } else { Err(JupyterError::NoDirectory(dir.display().to_string())) }
}

/// The result for a kernel that ended between two executions unnoticed.
fn ended_before(reason: String) -> Execution {
    let error = super::outputs::JupyterOutput::error("KernelEnded", reason.clone());
    Execution { status: Status::Error, execution_count: None, outputs: vec![error], msg_id: String::new(), ended: Some(reason) }
}
