//! Creation of sandboxes: `trait Engine` and its implementations.
//!
//! Owns the life of a sandbox's processes, network, limits and writable layer. Never knows tenants or HTTP routes.

#![forbid(unsafe_code)]

mod cluster_volumes;
pub mod descriptors;
pub mod docker;
pub mod file_tree;
mod guest_request;
mod kubernetes;
pub mod layered_tree;
pub mod namespace;
mod stages;
mod states;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::{Death, ErrorCode, NetworkPolicy, SandboxId, SandboxName, SandboxSpec, StateId, TenantId, Tier};
use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use utoipa::ToSchema;

pub use arenite_egress::{BoundSecret, EgressError, EgressEvent, EventKind, Protocol, Reason};
pub use cluster_volumes::{ClusterVolume, ClusterVolumes};
pub use file_tree::FileTreeError;
pub use guest_request::{GuestAnswer, request_guest};
pub use kubernetes::{KubernetesConfig, VolumeAccess};
pub use layered_tree::LayeredTree;
pub use namespace::buckets::{Backing, BucketError, BucketFacts, Buckets};
pub use namespace::network::{NetworkLog, check_policy, egress_main, suggest_rules};
pub use namespace::storage::{Storage, StorageError, StorageKind};
pub use stages::Stages;
pub use states::{
    AfterReturn, AutoSealed, ChangedPath, Comparison, DiskState, HeldState, History, ImportedState, PathChange, PathKind,
    ProcessFate, Return, Returned, Seal, SealTime, Sealed, SealedState, StagedState, StateKind,
};

/// A connection to a guest.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Creates sandboxes and connects to them.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// The engine's name, such as `namespace`.
    fn name(&self) -> &'static str;

    /// The tier that a sandbox of this spec gets. An image that isn't here says nothing yet.
    ///
    /// # Errors
    /// This host or the image can't provide the requested tier.
    async fn tier(&self, spec: &SandboxSpec) -> Result<Tier, EngineError> {
        Ok(spec.tier.unwrap_or_default())
    }

    /// Reserves an id for a sandbox that is about to be created, with everything that was prepared for it. Follow it with
    /// [`Engine::create`] or [`Engine::destroy`].
    async fn reserve(&self) -> Result<SandboxId, EngineError>;

    /// Creates the sandbox. When this returns, the guest has started and dials are served. On failure nothing of the sandbox is
    /// left.
    async fn create(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError>;

    /// Runs a sandbox again after its processes ended, on the same disk and under the same id. Its memory and processes are
    /// new; its main command and its hooks run again. On failure its disk stays.
    async fn restart(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError>;

    /// Creates a sandbox in advance and starts what is slow to start in it. [`Engine::adopt`] assigns it; until then a start of
    /// the server removes it. On failure nothing of it is left.
    async fn prepare(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        Err(EngineError::Unsupported {
            what: format!("making a sandbox of {} ahead", spec.image),
            reason: format!("the engine {} makes them only when they are asked for", self.name()),
        })
    }

    /// Applies a spec to a prepared sandbox: its name, host name, environment, directory and main command. Image, resources and
    /// network stay those that it was prepared with. Until this returns, a start removes it. After a failure, destroy it.
    async fn adopt(&self, row: &Row, _spec: &SandboxSpec) -> Result<Created, EngineError> {
        Err(EngineError::NotFound { id: row.id.clone() })
    }

    /// Ends every process of the sandbox, however it was spawned, and removes its disk. Idempotent; also works for a lost
    /// sandbox.
    async fn destroy(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Freezes all its processes; its memory stays.
    async fn pause(&self, id: &SandboxId) -> Result<(), EngineError>;

    async fn resume(&self, id: &SandboxId) -> Result<(), EngineError>;

    /// Whether it can [`Engine::stop`] sandboxes.
    fn can_stop(&self) -> bool {
        false
    }

    /// Ends all processes of a sandbox, running or frozen, and frees their memory. Its disk waits for [`Engine::restart`]: until
    /// that has returned, a start of the server finds it as [`FoundState::Stopped`]. Idempotent.
    async fn stop(&self, _id: &SandboxId) -> Result<(), EngineError> {
        Err(EngineError::NoPauseToDisk { engine: self.name() })
    }

    /// Opens a connection to the guest's HTTP server.
    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Connection>, EngineError>;

    /// Refuses a network policy that it can't enforce.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`], or [`EngineError::NetworkPolicy`] if a rule is wrong.
    fn check_network_policy(&self, _policy: &NetworkPolicy) -> Result<(), EngineError> {
        let reason = format!("the engine {} has no egress proxy", self.name());
        Err(EngineError::Unsupported { what: "a network policy".to_owned(), reason })
    }

    /// Replaces policy and floor of a sandbox's network by those of a spec. When it returns, they are in effect for new connections,
    /// and for open ones if `close_open` is set.
    async fn set_network_policy(&self, _id: &SandboxId, spec: &SandboxSpec, _close_open: bool) -> Result<(), EngineError> {
        let mut policies = spec.network_policy.iter().chain(&spec.network_floor);
        policies.try_for_each(|policy| self.check_network_policy(policy))
    }

    /// Replaces the secrets that the egress proxy puts into a sandbox's requests; empty: none. When it returns, they are in effect for
    /// each further request. Before a create, a restart, or a recovery they are kept for it, until the sandbox is destroyed.
    async fn set_secrets(&self, _id: &SandboxId, secrets: Vec<BoundSecret>) -> Result<(), EngineError> {
        match secrets.is_empty() {
            true => Ok(()),
            false => self.check_network_policy(&NetworkPolicy::default()),
        }
    }

    /// What the egress proxy decided for a sandbox.
    fn network_log(&self, _id: &SandboxId) -> NetworkLog {
        NetworkLog::default()
    }

    /// Adds a decision of the server itself to the log of a sandbox, and passes it to those that follow.
    fn note_network_event(&self, _event: EgressEvent) {}

    /// What the egress proxy decides, from now on. None: the engine has no proxy.
    fn network_events(&self) -> Option<broadcast::Receiver<EgressEvent>> {
        None
    }

    /// Whether it can seal states of disks, or why not.
    ///
    /// # Errors
    /// [`EngineError::NoStates`].
    fn check_states(&self) -> Result<(), EngineError> {
        Err(no_states(self.name()))
    }

    /// Seals the disk of a sandbox, which is frozen for that moment if it runs. The cost does not depend on its size.
    async fn seal(&self, _id: &SandboxId, _seal: Seal) -> Result<Sealed, EngineError> {
        Err(no_states(self.name()))
    }

    /// Seals the disk of a running sandbox around a step, as a checkpoint. If nothing changed since the last automatic checkpoint,
    /// that one is returned, and nothing is kept.
    async fn seal_around(
        &self,
        _id: &SandboxId,
        _when: SealTime,
        _image_owner: Option<TenantId>,
    ) -> Result<AutoSealed, EngineError> {
        Err(no_states(self.name()))
    }

    /// A sandbox's checkpoints.
    async fn history(&self, _id: &SandboxId) -> Result<History, EngineError> {
        Err(no_states(self.name()))
    }

    /// A state that exists.
    fn state(&self, _state: &StateId) -> Option<SealedState> {
        None
    }

    /// Gives up a state. Its space is freed when no sandbox's beginning needs it. Fine if it doesn't exist.
    async fn remove_state(&self, _state: &StateId) -> Result<(), EngineError> {
        Ok(())
    }

    /// The snapshots that exist, apart from those that were given up.
    fn snapshots(&self) -> Vec<SealedState> {
        Vec::new()
    }

    /// Replaces a sandbox's disk by a state of it, and all its processes. On failure before the disk is replaced, the sandbox goes
    /// on; after it, its processes have ended and [`Engine::restart`] starts it on that disk.
    async fn return_to(&self, _row: &Row, _spec: &SandboxSpec, _back: Return) -> Result<(Created, Returned), EngineError> {
        Err(no_states(self.name()))
    }

    /// Compares two disks of a sandbox. Returns at most `limit` paths.
    async fn compare(
        &self,
        _id: &SandboxId,
        _before: DiskState,
        _after: DiskState,
        _limit: usize,
    ) -> Result<Comparison, EngineError> {
        Err(no_states(self.name()))
    }

    /// Opens the files of a state, as a sandbox would see them.
    async fn state_files(&self, _state: &StateId) -> Result<LayeredTree, EngineError> {
        Err(no_states(self.name()))
    }

    /// Keeps a state and its layers on the disk, for an export.
    async fn hold_state(&self, _state: &StateId) -> Result<HeldState, EngineError> {
        Err(no_states(self.name()))
    }

    /// Makes an empty layer for a state that is imported. It may hold this number of bytes.
    async fn stage_state(&self, _limit_bytes: u64) -> Result<StagedState, EngineError> {
        Err(no_states(self.name()))
    }

    /// Seals a filled layer as a snapshot.
    async fn import_state(&self, _staged: StagedState, _about: ImportedState) -> Result<SealedState, EngineError> {
        Err(no_states(self.name()))
    }

    /// A client's work that continues without a waiting call, such as `a command`. Checked before an idle sandbox ends.
    async fn activity(&self, _id: &SandboxId) -> Result<Option<String>, EngineError> {
        Ok(None)
    }

    /// Replaces what the engine keeps of a sandbox's row: its name and its memo. Also works for one without processes.
    async fn update_row(&self, row: &Row) -> Result<(), EngineError>;

    /// Whether the guest that a sandbox has now, if any, has ended. An [`Ended`] may be of one that it had before: it is sent at any
    /// moment, and a rollback or a start may have replaced the guest since.
    async fn has_ended(&self, _id: &SandboxId) -> bool {
        true
    }

    /// The sandbox's current usage.
    async fn usage(&self, id: &SandboxId) -> Result<Usage, EngineError>;

    /// Re-adopts sandboxes after a start: those of the `known` rows and those that only the engine's own records name. Removes
    /// what was prepared and never used. What it can't explain stays unchanged, in quarantine.
    ///
    /// # Errors
    /// If it can't inspect the host, for example without free descriptors. Then nothing was changed.
    async fn recover(&self, known: &[Row]) -> Result<Recovery, EngineError>;

    /// Quarantines a sandbox that was found. Returns the time since when it is in quarantine, including earlier starts.
    async fn quarantine(&self, _id: &SandboxId, _reason: &str) -> Result<Timestamp, EngineError> {
        Ok(Timestamp::now())
    }

    /// Takes a sandbox out of quarantine and assigns it this row. One without a usable record becomes lost: its processes end,
    /// and its disk is kept.
    async fn take_back(&self, row: &Row) -> Result<Found, EngineError> {
        Err(EngineError::NotFound { id: row.id.clone() })
    }

    /// What is left of a quarantined sandbox.
    async fn remains(&self, _id: &SandboxId) -> Result<Remains, EngineError> {
        Ok(Remains::default())
    }

    /// Sandboxes that ended by themselves.
    fn ended(&self) -> broadcast::Receiver<Ended>;

    /// The host's resources for more sandboxes.
    async fn capacity(&self) -> Result<HostCapacity, EngineError>;

    /// Why it can't create sandboxes, as text without paths; empty if it can. Quick.
    async fn health(&self) -> Vec<String> {
        Vec::new()
    }

    /// The storage of this host with tenants' volumes; none: it keeps none there.
    fn volumes(&self) -> Option<Arc<Storage>> {
        None
    }

    /// Tenants' volumes, if a cluster has them instead of this host.
    fn cluster_volumes(&self) -> Option<Arc<dyn ClusterVolumes>> {
        None
    }

    /// The buckets that the operator declared for volumes; none: it can't mount any.
    fn buckets(&self) -> Option<Arc<Buckets>> {
        None
    }

    /// Whether to prepare anything for sandboxes before they are reserved. If not, what was prepared is released soon.
    fn keep_prepared(&self, _keep: bool) {}

    /// Releases prepared but unused resources before the server stops. Sandboxes stay.
    async fn close(&self);
}

/// A created sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct Created {
    pub tier: Tier,
    /// The isolation in effect, such as `["namespaces", "seccomp"]`.
    pub isolation: Vec<String>,
    /// Durations of the stages, in order.
    #[serde(skip)]
    pub stages: Vec<(&'static str, Duration)>,
}

/// A sandbox's resource usage.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    pub memory_bytes: u64,
    pub cpu_nanoseconds: u64,
    pub pids: u64,
    /// The writable layer; none if the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// Processes killed by the OOM killer since it was created.
    pub oom_kills: Option<u64>,
    /// Bytes received and sent, with headers; none without a network.
    pub network_received_bytes: Option<u64>,
    pub network_sent_bytes: Option<u64>,
}

/// The part of control's row that the engine keeps too.
#[derive(Debug, Clone)]
pub struct Row {
    pub id: SandboxId,
    pub name: SandboxName,
    /// Content from which control recreates a row that the store lost. The engine keeps it with the sandbox and doesn't read
    /// it.
    pub memo: String,
}

/// The result of a recovery.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// All known sandboxes except those in quarantine or unclaimed, and others with sound records.
    pub found: Vec<Found>,
    /// What can't be explained, with the reason. It stays unchanged until [`Engine::take_back`] or [`Engine::destroy`].
    pub quarantined: Vec<Quarantined>,
    /// Pooled sandboxes with a known row: the server ended before [`Engine::adopt`] returned. They were removed.
    pub unclaimed: Vec<SandboxId>,
    /// Descriptions of what was removed, for the log.
    pub removed: Vec<String>,
}

/// A sandbox that a recovery found.
#[derive(Debug, Clone)]
pub struct Found {
    pub id: SandboxId,
    pub state: FoundState,
    /// The memo from its row.
    pub memo: Option<String>,
    /// As in [`Created`]. None: unknown, since the record is of an older version or gone.
    pub tier: Option<Tier>,
    pub isolation: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    Running,
    Paused,
    /// Its processes were ended by [`Engine::stop`].
    Stopped,
    /// Its processes are gone. Its disk is kept until it is destroyed.
    Lost(Death),
}

#[derive(Debug, Clone)]
pub struct Quarantined {
    pub id: SandboxId,
    pub reason: String,
    pub since: Timestamp,
}

/// What is left of a quarantined sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Remains {
    pub processes: usize,
    pub has_disk: bool,
    /// Size of its disk; none if the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// Its record is readable. Otherwise it becomes lost when it is adopted.
    pub has_record: bool,
}

/// A sandbox with a guest that ended unexpectedly.
#[derive(Debug, Clone)]
pub struct Ended {
    pub id: SandboxId,
    pub death: Death,
}

/// The host's total and available resources.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub struct HostCapacity {
    pub memory_available_bytes: u64,
    pub memory_total_bytes: u64,
    pub disk_available_bytes: u64,
    pub disk_total_bytes: u64,
    /// Descriptors that the server may still open.
    pub descriptors_available: u64,
    pub descriptors_total: u64,
}

impl HostCapacity {
    /// The host's memory and this process's descriptors, with these numbers of a disk.
    pub(crate) fn with_disk(disk_available_bytes: u64, disk_total_bytes: u64) -> io::Result<Self> {
        let text = arenite_isolation::kernel_file::read("/proc/meminfo")?;
        let field = |name: &str| -> u64 {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.and_then(|l| l.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        let descriptors = descriptors::DescriptorCount::now();
        Ok(Self {
            memory_available_bytes: field("MemAvailable:"),
            memory_total_bytes: field("MemTotal:"),
            disk_available_bytes,
            disk_total_bytes,
            descriptors_available: descriptors.map_or(0, descriptors::DescriptorCount::available),
            descriptors_total: descriptors.map_or(0, |count| count.limit),
        })
    }
}

/// Why an operation of the engine failed.
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
    /// A directory below a volume that can't be mounted.
    #[error("a directory of the volume {name:?} can't be mounted: {source}")]
    SubPath { name: String, source: FileTreeError },
    #[error("there is no sandbox {id}")]
    NotFound { id: SandboxId },
    #[error("there is no state {id}")]
    NoState { id: StateId },
    /// A stage of the setup failed. `stage` names it, such as `overlay` or `cgroup memory`.
    #[error("setting up the sandbox failed at {stage}: {source}")]
    Stage { stage: String, source: io::Error, hint: Option<String> },
    #[error("another server has the data directory {}{}", data_dir.display(), in_brackets(holder.as_ref()))]
    InUse { data_dir: PathBuf, holder: Option<namespace::LockHolder> },
    #[error("{what} can't be enforced here: {reason}")]
    Unsupported { what: String, reason: String },
    #[error("the state {id} is of another image, or of other layers of it")]
    OtherLayers { id: StateId },
    #[error(transparent)]
    NetworkPolicy(#[from] EgressError),
    #[error("sandboxes' disks can't be sealed here: {reason}")]
    NoStates { reason: String },
    #[error("the processes can't be kept: {reason}")]
    NoProcesses { reason: String },
    #[error("the engine {engine} can't pause a sandbox to its disk")]
    NoPauseToDisk { engine: &'static str },
    /// A tier is not available for this image or on this host.
    #[error("the tier {tier} is not available: {reason}")]
    NoTier { tier: Tier, reason: String, hint: &'static str },
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The cluster refused a larger size of a volume.
    #[error("the volume can't grow: {reason}")]
    NoGrowth { reason: String, hint: &'static str },
    /// The storage of sandboxes' disks, or of volumes, is unusable.
    #[error("{reason}")]
    Storage { reason: String, hint: Option<String> },
    /// What creates sandboxes can't do it now; a retry may help.
    #[error("{reason}")]
    Busy { reason: String, retry_after: Duration },
    #[error("{what} took longer than {limit:?}")]
    Timeout { what: &'static str, limit: Duration },
    #[error("could not reach the guest of sandbox {id}: {source}")]
    Dial { id: SandboxId, source: io::Error },
    #[error("{what}: {source}")]
    Host { what: String, source: io::Error },
    /// More descriptors than this process may open. Nothing was changed.
    #[error("{sandboxes} sandboxes need {needed} open files, and the limit of this process is {limit}")]
    Descriptors { sandboxes: usize, needed: u64, limit: u64 },
    /// A recovery could not inspect the host. Nothing was changed.
    #[error("sandboxes could not be looked for: {what}: {source}")]
    Look { what: String, source: io::Error },
}

fn no_states(engine: &str) -> EngineError {
    EngineError::NoStates { reason: format!("the engine {engine} can't") }
}

fn in_brackets(holder: Option<&namespace::LockHolder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" ({holder})"))
}

impl EngineError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoImage { .. } | Self::NotFound { .. } | Self::NoState { .. } => ErrorCode::NotFound,
            Self::NoVolume { .. } | Self::NetworkPolicy(_) => ErrorCode::InvalidRequest,
            Self::SubPath { source, .. } => source.code(),
            Self::Bucket(source) => source.code(),
            Self::Unsupported { .. } | Self::NoPauseToDisk { .. } | Self::NoTier { .. } | Self::NoStates { .. } => {
                ErrorCode::Unsupported
            }
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::OtherLayers { .. } | Self::NoProcesses { .. } | Self::NoGrowth { .. } => ErrorCode::Conflict,
            Self::Busy { .. } => ErrorCode::Exhausted,
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
                    _ => format!("sudo arenite image build {image} -f Imagefile, or pull it: sudo arenite image pull {image}"),
                };
                Some(format!(
                    "build it with: {build}; creates pull from the registries of the setting image_registry; see what is there \
                     with: arenite image ls"
                ))
            }
            _ if self.code() == ErrorCode::Exhausted => {
                Some("delete sandboxes that are not needed, or raise the server's limit: LimitNOFILE, or ulimit -n".to_owned())
            }
            Self::Stage { hint, .. } | Self::Storage { hint, .. } => hint.clone(),
            Self::Bucket(source) => source.hint(),
            Self::NoStates { .. } => {
                Some("create another sandbox instead; docs/STATE.md has what states of disks need".to_owned())
            }
            Self::NoProcesses { .. } => {
                Some("leave the processes out to use the disk alone; docs/STATE.md has what can be kept where".to_owned())
            }
            Self::NoVolume { known, .. } if known.is_empty() => {
                Some("create it with: arenite volume create NAME; see which there are: arenite volume ls".to_owned())
            }
            Self::NoVolume { known, .. } => Some(format!(
                "create it with: arenite volume create NAME; the operator declared the directories {}",
                known.join(", ")
            )),
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
            Self::NoTier { hint, .. } | Self::NoGrowth { hint, .. } => Some((*hint).to_owned()),
            Self::NoPauseToDisk { .. } => Some("pause it with the kind freeze".to_owned()),
            Self::Unsupported { .. } => Some("arenite doctor says what this host can enforce".to_owned()),
            _ => None,
        }
    }
}
