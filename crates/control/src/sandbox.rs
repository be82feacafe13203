//! Public types about sandboxes.

use std::sync::Arc;

use arenite_model::protocol::CarriedSessions;
use arenite_model::{
    Death, GroupName, IdempotencyKey, NodeName, PauseKind, SandboxId, SandboxName, SandboxSpec, SandboxState, SnapshotName,
    TenantId, Tier,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ChildBudget, CreateClient, SpecOverlay};

/// A request for a new sandbox.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// Unset: the name is the sandbox's id.
    pub name: Option<SandboxName>,
    /// Unset: none if `spec` names an image, else the default template.
    pub template: Option<String>,
    /// Where its disk starts.
    pub start: StartState,
    pub spec: SpecOverlay,
    /// The origin of the request for the log and the store, such as `api` or `cli`.
    pub origin: String,
    pub provenance: Provenance,
    /// The sandbox with the agent that requests it.
    pub parent: Option<SandboxId>,
    /// The client that waits for it. None: nobody can leave.
    pub client: Option<CreateClient>,
    /// `spec` may name volumes of the tenant, and no directories of the host.
    pub own_volumes_only: bool,
}

/// Where the disk of a new sandbox starts.
#[derive(Debug, Clone, Default)]
pub enum StartState {
    #[default]
    Image,
    /// A snapshot of the tenant. It names the image, too. Its processes go on, if it has any and they are not to be restarted.
    Snapshot { name: SnapshotName, restart_processes: bool },
    /// The state of another sandbox, with the spec that the new one gets (see `Control::begin_fork`).
    Fork(Box<ForkStart>),
}

/// What a fork starts with.
#[derive(Debug, Clone)]
pub struct ForkStart {
    pub spec: SandboxSpec,
    /// The sessions of its parent, which it opens, too.
    pub sessions: Option<Arc<CarriedSessions>>,
}

/// What a sandbox was created for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Chosen by its client, to find it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The sandboxes above it, the topmost first: each was created by the agent in the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<SandboxId>,
    /// The sandbox that it is a fork of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SandboxId>,
    /// What its agent may create. Then it has a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_budget: Option<ChildBudget>,
    /// The idempotency key of its create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyed: Option<Keyed>,
}

/// A part of a create with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyed {
    pub key: IdempotencyKey,
    /// Identifies the request.
    pub fingerprint: String,
    /// When the create began.
    pub since: Timestamp,
    /// The sandbox's position in a create of several.
    pub index: usize,
}

/// A snapshot of a sandbox. Its JSON is a line of the store's archive (`store::archive`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub tenant: TenantId,
    pub name: SandboxName,
    pub state: SandboxState,
    pub spec: SandboxSpec,
    pub template: Option<String>,
    /// The kind of its pause, while it is paused, or deleted from a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_kind: Option<PauseKind>,
    /// Why it is lost or failed.
    pub reason: Option<String>,
    /// Why it has no processes any more, or why it is being deleted.
    #[serde(default)]
    pub died: Option<Death>,
    /// The isolation in effect, such as `["namespaces", "seccomp"]`.
    pub isolation: Vec<String>,
    pub origin: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    /// When it entered its state.
    pub state_since: Timestamp,
    /// When its lifetime ends.
    pub expires_at: Option<Timestamp>,
    /// Counts the changes of its labels and times, from 1.
    #[serde(default = "first_revision")]
    pub revision: u64,
    #[serde(default)]
    pub provenance: Provenance,
    /// Durations of the stages of its creation, in milliseconds; only known to the server that created it.
    #[serde(skip)]
    pub stages: Vec<(String, f64)>,
    /// The other node that has it; none: this server has it.
    #[serde(skip)]
    pub node: Option<NodeName>,
}

pub(crate) fn first_revision() -> u64 {
    1
}

impl Sandbox {
    /// The sandbox with the isolation that it got.
    pub(crate) fn isolated(mut self, tier: Tier, isolation: Vec<String>) -> Self {
        self.spec.tier = Some(tier);
        Self { isolation, ..self }
    }

    /// The kind of its pause; none: it is not paused.
    pub fn pause(&self) -> Option<PauseKind> {
        (self.state == SandboxState::Paused).then(|| self.pause_kind.unwrap_or_default())
    }

    /// Whether its processes were ended to pause it.
    pub fn is_stopped(&self) -> bool {
        self.pause() == Some(PauseKind::Disk)
    }

    /// Identifies the version of its labels and times: another sandbox with the same name never has the same.
    pub fn version(&self) -> String {
        format!("{}-{}", self.id, self.revision)
    }
}

/// The next timeout of a sandbox, and its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Deadline {
    pub at: Timestamp,
    pub reason: DeadlineReason,
    pub action: DeadlineAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineReason {
    /// Its lifetime ends.
    Timeout,
    /// It was idle; a call moves this deadline.
    Idle,
    /// It is lost or failed, and its disk was kept long enough.
    Kept,
    /// It was frozen for long enough.
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineAction {
    Delete,
    /// It is frozen.
    Pause,
    /// It is paused to its disk.
    Disk,
}

/// Counts since the start, and current numbers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// The number of sandboxes in each state.
    pub sandboxes: Vec<(SandboxState, u64)>,
    pub creates_ok: u64,
    pub creates_failed: u64,
    /// Creates that took a sandbox from a pool.
    pub creates_from_pool: u64,
    /// Sandboxes that wait in pools.
    pub pooled: u64,
    /// Creates that admission refused.
    pub creates_refused: u64,
    /// Creates in progress in the engine.
    pub creating: u64,
    /// Creates in the queue.
    pub queued: u64,
    pub deleted: u64,
    pub reaped_timeout: u64,
    pub reaped_idle: u64,
    pub paused_idle: u64,
    /// Frozen sandboxes that were paused to their disks after some time.
    pub paused_to_disk: u64,
    /// Lost or failed sandboxes removed after their retention time.
    pub reaped_lost: u64,
    pub woken: u64,
    /// Sandboxes with a guest that ended by itself.
    pub ended: u64,
    /// Current leases.
    pub leases: u64,
}
