//! Sealed states of sandboxes' disks.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use arenite_model::{ImageName, SandboxId, StateId, TenantId, Tier};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a state is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// It belongs to the history of its sandbox, and ends with it.
    Checkpoint,
    /// It outlives its sandbox.
    Snapshot,
}

/// A state to seal.
#[derive(Debug, Clone)]
pub struct Seal {
    pub kind: StateKind,
    /// A client's comment.
    pub note: Option<String>,
    /// Content from which control recreates a snapshot's record that the store lost. The engine doesn't read it.
    pub memo: Option<String>,
    /// The tenant to which the sandbox's image belongs.
    pub image_owner: Option<TenantId>,
    /// Keeps the processes with the disk: see [`SealedState::memory_bytes`].
    pub keep_processes: bool,
    /// Sandboxes are about to begin with it.
    pub for_forks: bool,
}

/// A sealed state. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedState {
    pub id: StateId,
    pub kind: StateKind,
    /// Its position in the history of its sandbox, from 1; 0 for a snapshot.
    #[serde(default)]
    pub number: u32,
    /// The checkpoint before it, from which the disk came.
    #[serde(default)]
    pub parent: Option<StateId>,
    pub sandbox: SandboxId,
    pub image: ImageName,
    #[serde(default)]
    pub image_owner: Option<TenantId>,
    pub tier: Tier,
    #[serde(default)]
    pub note: Option<String>,
    /// As in [`Seal`].
    #[serde(default)]
    pub memo: Option<String>,
    /// The size of the sandbox's disk at that time, in bytes; none if the storage can't tell.
    pub disk_bytes: Option<u64>,
    /// The size of the image of its processes, in bytes; none: it is a disk alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    pub created_at: Timestamp,
    /// It was sealed around a step, and not at a client's request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// The hash of its content, in hexadecimal digits. Of automatic checkpoints alone, and none if there is too much content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// When a disk is sealed around a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealTime {
    BeforeStep,
    AfterStep,
}

/// The state of a disk around a step.
#[derive(Debug, Clone)]
pub struct AutoSealed {
    /// The checkpoint that equals the disk.
    pub state: SealedState,
    /// The content differs from that of the last automatic checkpoint.
    pub changed: bool,
}

/// A state that was just sealed.
#[derive(Debug, Clone)]
pub struct Sealed {
    pub state: SealedState,
    /// How long the sandbox was frozen for it; zero: it was not running.
    pub frozen: Duration,
}

/// A sandbox's checkpoints, the oldest first, and the position of its disk among them.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub checkpoints: Vec<SealedState>,
    /// The checkpoint that was sealed or returned to last; none: its disk comes from its beginning.
    pub head: Option<StateId>,
}

/// A disk to compare or to return to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskState {
    /// As the sandbox was created.
    Beginning,
    /// The disk as it is.
    Current,
    Sealed(StateId),
}

/// How a path differs between two disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathChange {
    Added,
    Removed,
    /// Its content, its link's target, or its kind.
    Modified,
    /// Its mode, owner or extended attributes alone.
    Attributes,
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    File,
    Directory,
    Symlink,
    /// A device, a socket or a named pipe.
    Special,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedPath {
    /// Absolute in the sandbox. Bytes that are not UTF-8 are replaced.
    pub path: String,
    pub change: PathChange,
    /// The kind after the change; of a removed path, the kind before it.
    pub kind: PathKind,
    /// In bytes; of a removed path, the size before.
    pub size: u64,
    /// Permission bits, such as 420 for 0644.
    pub mode: u32,
}

/// The differences between two disks, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    pub paths: Vec<ChangedPath>,
    /// There are more: the limit was reached.
    pub truncated: bool,
}

/// How to return to a state.
#[derive(Debug, Clone)]
pub struct Return {
    pub to: DiskState,
    /// None: [`AfterReturn::Keep`] if the state has processes, else [`AfterReturn::Restart`].
    pub processes: Option<AfterReturn>,
}

/// What runs after a return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterReturn {
    /// The processes of the state go on.
    Keep,
    /// The main command and the hooks start again.
    Restart,
    /// No process but the guest runs.
    End,
}

/// What became of a sandbox's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessFate {
    /// Those of the state go on.
    Kept,
    #[default]
    Restarted,
    Ended,
}

/// What a return ended.
#[derive(Debug, Clone, Default)]
pub struct Returned {
    /// Names of the processes that it ended, as the processes named themselves; at most 100.
    pub ended: Vec<String>,
    pub processes: ProcessFate,
}

/// A state of another server, to add to this one as a snapshot.
#[derive(Debug, Clone)]
pub struct ImportedState {
    pub image: ImageName,
    pub image_owner: Option<TenantId>,
    /// The directories below its own layer, the lowest first.
    pub layers: Vec<PathBuf>,
    pub tier: Tier,
    pub note: Option<String>,
    /// As in [`Seal`].
    pub memo: Option<String>,
}

/// A state that is not removed from the disk while this value lives.
#[derive(Debug)]
pub struct HeldState {
    /// The directories of its layers, the lowest first; the last one is its own.
    pub layers: Vec<PathBuf>,
    pub(crate) _held: OnDrop,
}

/// The layer of a state that is being imported. When it is dropped, the layer is removed.
#[derive(Debug)]
pub struct StagedState {
    pub(crate) id: StateId,
    /// The directory to fill.
    pub files: PathBuf,
    pub(crate) _staged: OnDrop,
}

/// Calls a function when it is dropped.
pub(crate) struct OnDrop(Option<Box<dyn FnOnce() + Send + Sync>>);

impl OnDrop {
    pub(crate) fn new(call: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(call)))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

impl fmt::Debug for OnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDrop")
    }
}
