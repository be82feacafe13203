//! What makes sandboxes: `trait Engine` and its implementations.
//!
//! Owns the life of a sandbox's processes, network, limits and writable layer. Never knows tenants or HTTP routes.

#![forbid(unsafe_code)]

pub mod descriptors;
pub mod namespace;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use arenite_model::{ErrorCode, SandboxId, SandboxName, SandboxSpec};
use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;

/// A connection to a guest.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Makes sandboxes and reaches into them.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The engine's name, such as `namespace`.
    fn name(&self) -> &'static str;

    /// An id for a sandbox that is about to be created, with whatever was prepared for it.
    /// Follow it with [`Engine::create`] or [`Engine::destroy`].
    async fn reserve(&self) -> Result<SandboxId, EngineError>;

    /// Makes the sandbox. When it answers, the guest has been started and a dial will be served.
    /// On failure nothing of the sandbox is left.
    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError>;

    /// Runs a sandbox again whose processes have ended, on the disk that they left, under the same id. Its memory and its
    /// processes are new; its main command and its hooks run again. On failure its disk stays.
    async fn restart(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError>;

    /// Makes a sandbox before anybody asks, with what takes long to start in it started. [`Engine::adopt`] gives it away;
    /// until then a start of the server removes it. On failure nothing of it is left.
    async fn prepare(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        Err(EngineError::Unsupported {
            what: format!("making a sandbox of {} ahead", spec.image),
            reason: format!("the engine {} makes them only when they are asked for", self.name()),
        })
    }

    /// Makes a prepared sandbox what is asked for: its name, host name, environment, directory and main command. Image,
    /// resources and network are those that it was prepared with. After a failure, destroy it.
    async fn adopt(&self, row: &Row, _spec: &SandboxSpec) -> Result<Created, EngineError> {
        Err(EngineError::NotFound { id: row.id.clone() })
    }

    /// Ends every process of the sandbox, however it was spawned, and removes its disk. Fine to repeat; fine for a lost sandbox.
    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Freezes all its processes; its memory stays.
    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError>;

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// A new connection to the guest's HTTP server.
    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError>;

    /// Work of a client that goes on although no call waits for it, such as `a command`. Asked before an idle sandbox ends.
    async fn activity(&self, _id: &SandboxId) -> Result<Option<String>, EngineError> {
        Ok(None)
    }

    /// What it uses now.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError>;

    /// After a start: finds sandboxes again, those of the `known` rows and those that only the engine's own records name.
    /// Removes what was prepared and never used. What it can't explain goes on as it is, in quarantine.
    ///
    /// # Errors
    /// When it can't look, as without descriptors. Nothing was changed then.
    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError>;

    /// Puts a sandbox that was found into quarantine. Since when it is there: earlier starts count.
    async fn quarantine(&self, _id: &SandboxId, _reason: &str) -> Result<Timestamp, EngineError> {
        Ok(Timestamp::now())
    }

    /// Takes a sandbox out of quarantine, as that of this row. One without a usable record is lost: its processes end, and
    /// its disk is kept.
    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        Err(EngineError::NotFound { id: row.id.clone() })
    }

    /// What there is of a sandbox in quarantine.
    async fn remains(&self, _id: &SandboxId) -> Result<Remains, EngineError> {
        Ok(Remains::default())
    }

    /// Sandboxes that ended by themselves.
    fn ended(&self) -> broadcast::Receiver<Ended>;

    /// What is left of the host for more sandboxes.
    async fn capacity(&self) -> Result<HostCapacity, EngineError>;

    /// What keeps it from making sandboxes, in words without paths; nothing when all is well. Quick.
    async fn health(&self) -> Vec<String> {
        Vec::new()
    }

    /// The server is going away; sandboxes stay. Prepared but unused things are given back.
    async fn close(&self);
}

/// A sandbox that has been made.
#[derive(Debug, Clone, Serialize)]
pub struct Created {
    /// What isolates it, such as `["namespaces", "seccomp"]`: the level that it really has.
    pub isolation: Vec<String>,
    /// Where the time went, in order.
    #[serde(skip)]
    pub stages: Vec<(&'static str, Duration)>,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    pub memory_bytes: u64,
    pub cpu_nanoseconds: u64,
    pub pids: u64,
    /// The writable layer; none where the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// Processes killed for want of memory, since it was made.
    pub oom_kills: Option<u64>,
    /// What came to it and went out of it, with headers; none without a network.
    pub network_received_bytes: Option<u64>,
    pub network_sent_bytes: Option<u64>,
}

/// What control knows of a sandbox, as far as the engine keeps it too.
#[derive(Debug, Clone)]
pub struct Row {
    pub id: SandboxId,
    pub name: SandboxName,
    /// What control makes its row of when the store has lost it. The engine keeps it beside the sandbox and doesn't read it.
    pub memo: String,
}

/// What a recovery found.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// All known sandboxes but those in quarantine, and others whose records are sound.
    pub found: Vec<Found>,
    /// What can't be explained, with the reason. It stays as it is until [`Engine::take_back`] or [`Engine::destroy`].
    pub quarantined: Vec<Quarantined>,
    /// What was removed, in words for the log.
    pub removed: Vec<String>,
}

/// A sandbox that a recovery found.
#[derive(Debug, Clone)]
pub struct Found {
    pub id: SandboxId,
    pub state: FoundState,
    /// As it was given with its row.
    pub memo: Option<String>,
    /// As in [`Created`].
    pub isolation: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    Running,
    Paused,
    /// Its processes are gone; with the reason. Its disk is kept until it is destroyed.
    Lost(String),
}

#[derive(Debug, Clone)]
pub struct Quarantined {
    pub id: SandboxId,
    pub reason: String,
    pub since: Timestamp,
}

/// What there is of a sandbox in quarantine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Remains {
    pub processes: usize,
    pub has_disk: bool,
    /// What its disk takes; none where the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// Its record can be read. Else it is lost when it is adopted.
    pub has_record: bool,
}

/// A sandbox whose guest ended without being asked to.
#[derive(Debug, Clone)]
pub struct Ended {
    pub id: SandboxId,
    pub reason: String,
}

/// The host's total and available resources.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct HostCapacity {
    pub memory_available_bytes: u64,
    pub memory_total_bytes: u64,
    pub disk_available_bytes: u64,
    pub disk_total_bytes: u64,
    /// Descriptors that the server may still open.
    pub descriptors_available: u64,
    pub descriptors_total: u64,
}

/// Why an engine could not do it.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error("image {image:?} is not built here")]
    NoImage {
        image: String,
        /// An image is being built on this host now, maybe this one.
        is_building: bool,
    },
    #[error("there is no volume {name:?}")]
    NoVolume { name: String, known: Vec<String> },
    #[error("there is no sandbox {id}")]
    NotFound { id: SandboxId },
    /// A stage of the set-up failed. `stage` names it, such as `overlay` or `cgroup memory`.
    #[error("setting up the sandbox failed at {stage}: {source}")]
    Stage { stage: String, source: io::Error, hint: Option<String> },
    #[error("another server has the data directory {}{}", data_dir.display(), in_brackets(holder.as_ref()))]
    InUse { data_dir: PathBuf, holder: Option<namespace::LockHolder> },
    #[error("{what} can't be enforced here: {reason}")]
    Unsupported { what: String, reason: String },
    /// The storage of sandboxes' disks can't be used.
    #[error("{reason}")]
    Storage { reason: String, hint: Option<String> },
    #[error("{what} took longer than {limit:?}")]
    Timeout { what: &'static str, limit: Duration },
    #[error("could not reach the guest of sandbox {id}: {source}")]
    Dial { id: SandboxId, source: io::Error },
    #[error("{what}: {source}")]
    Host { what: String, source: io::Error },
    /// More than this process may open. Nothing was changed.
    #[error("{sandboxes} sandboxes need {needed} open files, and the limit of this process is {limit}")]
    Descriptors { sandboxes: usize, needed: u64, limit: u64 },
    /// A recovery could not see what there is. Nothing was changed.
    #[error("sandboxes could not be looked for: {what}: {source}")]
    Look { what: String, source: io::Error },
}

fn in_brackets(holder: Option<&namespace::LockHolder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" ({holder})"))
}

impl EngineError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoImage { .. } | Self::NotFound { .. } => ErrorCode::NotFound,
            Self::NoVolume { .. } => ErrorCode::InvalidRequest,
            Self::Unsupported { .. } => ErrorCode::Unsupported,
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::Stage { source, .. } | Self::Dial { source, .. } | Self::Host { source, .. }
                if descriptors::ran_out(source) =>
            {
                ErrorCode::Exhausted
            }
            Self::Stage { .. } | Self::Dial { .. } => ErrorCode::SandboxFailed,
            Self::Storage { .. } | Self::Host { .. } | Self::InUse { .. } | Self::Descriptors { .. } | Self::Look { .. } => {
                ErrorCode::Internal
            }
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoImage { is_building: true, .. } => {
                Some("an image is being built on this host now; try again in a few minutes, or see what is there with: arenite image ls".to_owned())
            }
            Self::NoImage { image, .. } => {
                let build = match image.as_str() {
                    "base" => "sudo arenite image build base".to_owned(),
                    "code" | "browser" | "aio" => format!("cargo xtask image {image} in Arenite's sources"),
                    _ => format!("sudo arenite image build {image} -f Imagefile"),
                };
                Some(format!("build it with: {build}; see what is there with: arenite image ls"))
            }
            _ if self.code() == ErrorCode::Exhausted => {
                Some("delete sandboxes that are not needed, or raise the server's limit: LimitNOFILE, or ulimit -n".to_owned())
            }
            Self::Stage { hint, .. } | Self::Storage { hint, .. } => hint.clone(),
            Self::NoVolume { known, .. } if known.is_empty() => {
                Some("the operator declares volumes: arenite serve --volume NAME=DIR[:ro]".to_owned())
            }
            Self::NoVolume { known, .. } => Some(format!("declared volumes: {}", known.join(", "))),
            Self::InUse { .. } => Some(
                "use that server, or end it first; arenite serve --take-over puts this one in its place without refusing a connection"
                    .to_owned(),
            ),
            Self::Descriptors { .. } => Some(
                "raise the limit, with LimitNOFILE=65536 in the service's unit or ulimit -n 65536; all sandboxes live on, and the next start finds them"
                    .to_owned(),
            ),
            Self::Look { .. } => {
                Some("nothing was changed and all sandboxes live on; start again when the host has what it lacked".to_owned())
            }
            Self::Unsupported { .. } => Some("arenite doctor says what this host can enforce".to_owned()),
            _ => None,
        }
    }
}
