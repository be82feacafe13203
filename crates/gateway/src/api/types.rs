//! Requests and answers of `/api/v2` and `/api/v1/trajectories`, as the document describes them.

use std::collections::BTreeMap;

use arenite_control::nodes::Node;
use arenite_control::tenants::{Binding, Quota, Role, TenantLimits};
use arenite_control::usage::{UsageGroup, UsageRow};
use arenite_control::{ChildBudget, Deadline, QuarantinedSandbox, ResourcesOverlay, Template};
use arenite_engine::{ChangedPath, HostCapacity};
use arenite_model::{
    CheckpointPolicy, Death, GroupName, IdlePolicy, ImageName, KeyId, NodeName, PauseKind, Resources, SandboxId, SandboxName,
    SandboxSpec, SandboxState, SecretName, SnapshotName, StateId, TenantId, Tier, VolumeMount,
};
use arenite_synthesis::WorkerInfo;
use arenite_trajectory::{NetworkEvent, SessionEvent, Step, Summary};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::config::ImageEntry;
use crate::network::{NetworkRequest, NetworkRules};
use crate::problem::Problem;

/// A request for a sandbox. Fields that it does not have are refused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateSandbox {
    /// Absent: the sandbox's id.
    pub(super) name: Option<SandboxName>,
    /// A spec that the fields below change.
    pub(super) template: Option<String>,
    pub(super) image: Option<ImageName>,
    /// Its disk starts as this snapshot, over the image that the snapshot has. Excludes `image`.
    pub(super) snapshot: Option<SnapshotName>,
    /// Starts the main command, and leaves out the processes that the snapshot keeps.
    pub(super) restart_processes: Option<bool>,
    /// The main command.
    pub(super) args: Option<Vec<String>>,
    /// The main command is the image's own: its ENTRYPOINT and then `args`, or its CMD without `args`.
    pub(super) image_command: Option<bool>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) workdir: Option<String>,
    pub(super) hostname: Option<String>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) resources: Option<ResourcesOverlay>,
    /// A mode, such as `open`, or `{"mode": "allowlist", "allow": ["pypi.org"]}`.
    pub(super) network: Option<NetworkRequest>,
    /// Secrets of the tenant. Those that `env` refers to with `{{secret:NAME}}` need not be named. `spec.secrets` of the answer has the
    /// placeholders.
    pub(super) secrets: Option<Vec<SecretName>>,
    /// What isolates it. Absent: the server's default, or `machine` if the image has a VM. The create fails if it is not available,
    /// or less than the minimum of the tenant.
    pub(super) tier: Option<Tier>,
    pub(super) volumes: Option<Vec<VolumeMount>>,
    pub(super) ports: Option<Vec<u16>>,
    /// 0: unlimited.
    pub(super) timeout_seconds: Option<u64>,
    /// 0: never.
    pub(super) idle_timeout_seconds: Option<u64>,
    pub(super) idle_policy: Option<IdlePolicy>,
    /// Time after which a frozen sandbox is paused to its disk. 0: never.
    pub(super) disk_after_seconds: Option<u64>,
    /// When the host is short of memory, a frozen sandbox is paused to its disk, the longest frozen first.
    pub(super) disk_under_pressure: Option<bool>,
    /// `auto`: checkpoints are taken around each step that can change the disk.
    pub(super) checkpoint: Option<CheckpointPolicy>,
    /// Chosen by the client, to find the sandbox in lists; it need not be unique.
    pub(super) client_tag: Option<String>,
    /// A group of the tenant, with which the sandbox ends.
    pub(super) group: Option<GroupName>,
    /// Gives the sandbox a token, with which its agent creates others from inside, within this budget.
    pub(super) child_budget: Option<ChildBudget>,
    /// Labels of the node on which it is created, in a cluster. The create fails if no node has them.
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    /// Creates this number of equal sandboxes, from 1 to 100, named `NAME-0` and so on. The answer is then a `CreatedSandboxes`.
    pub(super) count: Option<usize>,
    /// If fewer than this number can be created, none are; by default all must be.
    pub(super) min: Option<usize>,
}

/// The answer to a create.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum CreateAnswer {
    One(Box<SandboxInfo>),
    Several(CreatedSandboxes),
}

/// The sandboxes of a create with `count`.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct CreatedSandboxes {
    requested: usize,
    sandboxes: Vec<SandboxInfo>,
    /// Why the others could not be created.
    errors: Vec<FailedCreate>,
}

/// A sandbox that could not be created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FailedCreate {
    /// Its position, from 0.
    pub(crate) index: usize,
    /// When a repeat may succeed.
    pub(crate) retry_after_seconds: Option<u64>,
    #[serde(flatten)]
    pub(crate) problem: Problem,
}

/// A request for a group of sandboxes.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateGroup {
    #[schema(required)]
    pub(crate) name: Option<GroupName>,
    /// The length of its lease, from 1 second to 30 days. If nobody renews it in this time, the group is deleted with its sandboxes.
    #[schema(required)]
    pub(crate) ttl_seconds: Option<u64>,
}

/// Starts a group's lease again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RenewGroup {
    /// Absent: the lease keeps its length.
    pub(crate) ttl_seconds: Option<u64>,
}

/// A group of sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupInfo {
    pub(crate) name: GroupName,
    pub(crate) created_at: Timestamp,
    pub(crate) ttl_seconds: u64,
    /// When its lease ends unless it is renewed. A start of the server renews all leases.
    pub(crate) expires_at: Timestamp,
    /// It takes no more sandboxes, and those that it has are being deleted.
    pub(crate) ending: bool,
    pub(crate) sandboxes: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupList {
    pub(crate) groups: Vec<GroupInfo>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedGroup {
    pub(crate) name: GroupName,
    pub(crate) deleted: bool,
    /// The number of sandboxes that were deleted with it.
    pub(crate) deleted_sandboxes: usize,
}

/// A checkpoint to seal.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewCheckpoint {
    /// A comment of at most 1,000 characters.
    pub(crate) note: Option<String>,
    /// Keeps the processes, too: a rollback to it continues them. Only with the tiers `gvisor` and `machine`; refused elsewhere.
    /// Calls in progress break off.
    pub(crate) keep_processes: bool,
}

/// A sealed state in the history of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointInfo {
    pub(crate) id: StateId,
    /// Its position in the history, from 1.
    pub(crate) number: u32,
    /// The checkpoint that the disk came from; null: the beginning.
    pub(crate) parent: Option<StateId>,
    pub(crate) note: Option<String>,
    /// The size of the disk at that time; null if the storage can't tell.
    pub(crate) disk_bytes: Option<u64>,
    /// The size of the image of its processes, in bytes; null: it has none.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) created_at: Timestamp,
    /// What became of the processes in the state: kept, or ended. Those of the sandbox go on.
    pub(crate) processes: ProcessesAfter,
    /// How long the sandbox was frozen for it, in milliseconds. Only in the answer to its creation.
    pub(crate) frozen_ms: Option<f64>,
    /// It was taken around a step, and not at a client's request.
    pub(crate) auto: bool,
    /// The hash of its content, of an automatic checkpoint; null if there is too much content.
    pub(crate) hash: Option<String>,
}

/// The checkpoints of a sandbox, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryInfo {
    pub(crate) checkpoints: Vec<CheckpointInfo>,
    /// The checkpoint that was sealed or returned to last; null: the disk comes from its beginning.
    pub(crate) head: Option<StateId>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// What runs after a return to an earlier state. All processes of before end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReturnProcesses {
    /// Those of the state go on. Refused if it has none.
    Keep,
    /// The main command and the hooks are started again.
    Restart,
    /// No main command is started.
    End,
}

/// Returns a sandbox to a state of its history.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RollBack {
    /// A checkpoint's number or id, or `beginning`.
    #[schema(required, value_type = Option<String>)]
    pub(crate) to: Option<Value>,
    /// Absent: `keep` if the state has processes, else `restart`.
    pub(crate) processes: Option<ReturnProcesses>,
}

/// Returns a sandbox to its beginning, or to a snapshot with the same image. Its name, its id and its labels stay.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ResetSandbox {
    /// Absent: its disk as it was created.
    pub(crate) snapshot: Option<SnapshotName>,
    /// Absent: `keep` if the state has processes, else `restart`.
    pub(crate) processes: Option<ReturnProcesses>,
}

/// A sandbox that returned to an earlier state.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct RolledBack {
    sandbox: SandboxInfo,
    processes: ProcessesAfter,
    /// The names of the processes that ended; at most 100.
    ended: Vec<String>,
}

/// How two states of a sandbox's disk differ, by path.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Differences {
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) paths: Vec<ChangedPath>,
    /// There are more: the limit, or 30 seconds, were reached.
    pub(crate) truncated: bool,
}

/// Creates sandboxes that start with the disk and the spec of another.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ForkSandbox {
    /// How many, from 1 to 100; absent: 1.
    pub(crate) count: Option<usize>,
    /// If fewer than this number can be created, none are; by default all must be.
    pub(crate) min: Option<usize>,
    /// The number or id of a checkpoint that they start as. Absent: the disk as it is.
    pub(crate) from_checkpoint: Option<Value>,
    /// They are named `NAME-0` and so on. Absent: each one's id.
    pub(crate) name: Option<SandboxName>,
    /// Another main command; the parent's, if absent.
    pub(crate) args: Option<Vec<String>>,
    /// Added to the parent's.
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Added to the parent's.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) resources: Option<ResourcesOverlay>,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) idle_timeout_seconds: Option<u64>,
    pub(crate) idle_policy: Option<IdlePolicy>,
    pub(crate) client_tag: Option<String>,
    pub(crate) group: Option<GroupName>,
    /// Each continues the processes, too. Only with the tiers `gvisor` and `machine`; refused elsewhere. Calls in progress break
    /// off.
    pub(crate) keep_processes: bool,
}

/// A request for a snapshot of a sandbox's disk.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateSnapshot {
    #[schema(required)]
    pub(crate) name: Option<SnapshotName>,
    #[schema(required)]
    pub(crate) sandbox: Option<SandboxName>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// A comment of at most 1,000 characters.
    pub(crate) note: Option<String>,
    /// Keeps the processes, too: sandboxes that are created from it continue them. Only with the tiers `gvisor` and `machine`;
    /// refused elsewhere. Calls in progress break off.
    pub(crate) keep_processes: bool,
}

/// A named state of a sandbox's disk.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SnapshotInfo {
    pub(crate) name: SnapshotName,
    pub(crate) state: StateId,
    /// The sandbox that it was sealed from, which may be gone.
    pub(crate) sandbox: SandboxName,
    pub(crate) image: ImageName,
    pub(crate) tier: Tier,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) note: Option<String>,
    /// The size of the disk at that time; null if the storage can't tell.
    pub(crate) disk_bytes: Option<u64>,
    /// The size of the image of its processes, in bytes; null: it has none.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) created_at: Timestamp,
    /// The node that sealed it; null without a cluster.
    pub(crate) node: Option<NodeName>,
    /// The nodes that have its disk, that one first. Empty without a cluster.
    pub(crate) nodes: Vec<NodeName>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SnapshotList {
    pub(crate) snapshots: Vec<SnapshotInfo>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// A checkpoint or a snapshot that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedState {
    pub(crate) name: String,
    pub(crate) deleted: bool,
}

/// How to pause a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PauseSandbox {
    /// Absent: `freeze`.
    pub(super) kind: PauseKind,
}

/// What became of a sandbox's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProcessesAfter {
    /// They are the same as before.
    Kept,
    Ended,
    /// They are new: its main command and its hooks run again.
    Restarted,
}

/// A body without fields.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Nothing {}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxInfo {
    pub(super) id: SandboxId,
    pub(super) name: SandboxName,
    /// The node that has it; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<NodeName>,
    pub(super) state: SandboxState,
    /// What its pause keeps; null unless it is paused.
    pub(super) pause_kind: Option<PauseKind>,
    /// What became of its processes. Only in answers to `pause`, `resume`, and `start`, and to creates and forks that start as a
    /// state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<ProcessesAfter>,
    /// Why it is lost or failed.
    pub(super) reason: Option<String>,
    /// How it came to be lost or failed, or why it is being deleted.
    pub(super) died: Option<Death>,
    /// Counts the changes of its labels and times, from 1. `ETag` is another form of it.
    pub(super) revision: u64,
    pub(super) template: Option<String>,
    pub(super) client_tag: Option<String>,
    /// It ends with this group.
    pub(super) group: Option<GroupName>,
    /// The sandbox with the agent that created it, with which it ends.
    pub(super) parent: Option<SandboxId>,
    /// The sandbox that it is a fork of, which may be gone.
    pub(super) forked_from: Option<SandboxId>,
    /// What its agent may create from inside.
    pub(super) child_budget: Option<ChildBudget>,
    pub(super) spec: SandboxSpec,
    /// What isolates it.
    pub(super) tier: Tier,
    /// The isolation in effect, such as `["namespaces", "seccomp"]`.
    pub(super) isolation: Vec<String>,
    /// The interface that created it.
    pub(super) origin: String,
    pub(super) created_at: Timestamp,
    pub(super) last_used_at: Timestamp,
    pub(super) state_since: Timestamp,
    pub(super) expires_at: Option<Timestamp>,
    /// The next timeout.
    pub(super) deadline: Option<Deadline>,
    /// The stages of its creation.
    pub(super) stages: Vec<Stage>,
    pub(super) urls: Urls,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stage {
    pub(super) name: String,
    pub(super) ms: f64,
}

/// The addresses of a sandbox's services.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Urls {
    /// Below this server's own address.
    pub(crate) path: String,
    /// With a separate origin.
    pub(super) host: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxList {
    pub(super) sandboxes: Vec<SandboxInfo>,
    /// `cursor` of the next page; null at the end.
    pub(super) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedSandbox {
    pub(super) name: SandboxName,
    pub(super) id: SandboxId,
    pub(super) deleted: bool,
}

/// Resource usage of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxUsage {
    pub(super) memory_bytes: u64,
    pub(super) cpu_nanoseconds: u64,
    pub(super) pids: u64,
    pub(super) disk_bytes: Option<u64>,
    pub(super) oom_kills: Option<u64>,
    pub(super) limits: Resources,
}

/// Resource usage of all sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LiveUsage {
    /// The most recently called ones first.
    pub(super) sandboxes: Vec<SandboxLoad>,
    /// Running and paused sandboxes beyond the thousand that were called most recently.
    pub(super) left_out: usize,
}

/// What sandboxes used, as sums of whole hours.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageReport {
    pub(crate) group: UsageGroup,
    pub(crate) rows: Vec<UsageRow>,
    /// There are more rows.
    pub(crate) truncated: bool,
}

/// Resource usage of a running or paused sandbox. Processor use is the difference of two measurements.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxLoad {
    pub(super) id: SandboxId,
    pub(super) name: SandboxName,
    pub(super) state: SandboxState,
    pub(super) image: ImageName,
    pub(super) created_at: Timestamp,
    pub(super) last_used_at: Timestamp,
    /// Calls in progress.
    pub(super) calls: u32,
    pub(super) usage: SandboxUsage,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerInfo {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) engine: String,
    pub(super) uptime_seconds: u64,
    /// For operators.
    pub(super) capacity: Option<HostCapacity>,
    /// Problems that the operator should know; empty for others.
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TemplateList {
    pub(super) templates: Vec<Template>,
    /// `cursor` of the next page; null at the end.
    pub(super) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageList {
    pub(crate) images: Vec<ImageEntry>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// AgentFlow's workers and their sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerList {
    pub(super) workers: Vec<WorkerInfo>,
    /// `cursor` of the next page; null at the end.
    pub(super) next_cursor: Option<String>,
    /// Why workers are missing, such as a node that does not answer. Absent if none is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

/// The caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    pub(crate) tenant: TenantId,
    /// Null: a user with a token, the configured key, or a server without keys.
    pub(crate) key: Option<KeyId>,
    /// The user of a token.
    pub(crate) subject: Option<String>,
    /// The key's name.
    pub(crate) name: Option<String>,
    pub(crate) role: Option<Role>,
    /// It may act on what belongs to the server.
    pub(crate) operator: bool,
    /// The sandboxes that it is restricted to, as names and `KEY=VALUE`; empty: all of its tenant.
    #[schema(value_type = Vec<String>)]
    pub(crate) bound: Vec<Binding>,
    pub(crate) expires_at: Option<Timestamp>,
    /// Whether the server keeps tenants.
    pub(crate) tenants: bool,
    /// The quotas of its tenant; empty for a key that is bound to sandboxes.
    pub(crate) quotas: Vec<QuotaState>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantInfo {
    pub(crate) name: TenantId,
    pub(crate) created_at: Timestamp,
    /// Its keys are refused.
    pub(crate) disabled: bool,
    pub(crate) sandboxes: u64,
    pub(crate) keys: usize,
    /// Its own limits, without the server's defaults.
    #[schema(value_type = TenantLimits)]
    pub(crate) limits: BTreeMap<Quota, Option<u64>>,
    /// The tier that each of its new sandboxes must have; null: the server's default.
    pub(crate) min_tier: Option<Tier>,
    /// The network of its creates that name none; null: open.
    pub(crate) network_default: Option<NetworkRules>,
    /// What its sandboxes may reach at most; null: all that their policies allow.
    pub(crate) network_floor: Option<NetworkRules>,
    /// All quotas, as they apply.
    pub(crate) quotas: Vec<QuotaState>,
}

/// A quota of a tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QuotaState {
    pub(crate) quota: Quota,
    /// Null: unlimited.
    pub(crate) limit: Option<u64>,
    /// What its sandboxes reserve, or its records use. Null: it is a rate.
    pub(crate) used: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantList {
    pub(crate) tenants: Vec<TenantInfo>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// A request for a tenant.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateTenant {
    /// Lower-case letters, digits and inner hyphens. Names of removed tenants can't be used again.
    #[schema(required)]
    pub(crate) name: Option<TenantId>,
}

/// Changes of a tenant. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ChangeTenant {
    /// Whether its keys are refused. Its sandboxes stay as they are.
    pub(crate) disabled: Option<bool>,
    /// Its limits. A null stands for the server's default, and absent ones stay as they are.
    #[schema(value_type = TenantLimits)]
    pub(crate) limits: BTreeMap<Quota, Option<u64>>,
    /// The tier that each new sandbox must have. Null: the server's default.
    #[serde(deserialize_with = "crate::changes::given")]
    #[schema(value_type = Option<Tier>)]
    pub(crate) min_tier: Option<Option<Tier>>,
    /// The network of its creates that name none. Null: open.
    #[serde(deserialize_with = "crate::changes::given")]
    #[schema(value_type = Option<NetworkRequest>)]
    pub(crate) network_default: Option<Option<NetworkRequest>>,
    /// What its sandboxes may reach at most, as `allowlist` or `observe`. It is in effect at once, also for open connections. Null:
    /// all that their policies allow.
    #[serde(deserialize_with = "crate::changes::given")]
    #[schema(value_type = Option<NetworkRequest>)]
    pub(crate) network_floor: Option<Option<NetworkRequest>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedTenant {
    pub(crate) name: TenantId,
    pub(crate) removed: bool,
    /// The number of sandboxes that were deleted with it.
    pub(crate) deleted_sandboxes: usize,
}

/// A key, without its text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyInfo {
    pub(crate) id: KeyId,
    pub(crate) tenant: TenantId,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) operator: bool,
    /// The sandboxes that it is restricted to, as names and `KEY=VALUE`; empty: all of its tenant.
    #[schema(value_type = Vec<String>)]
    pub(crate) bound: Vec<Binding>,
    pub(crate) state: KeyState,
    pub(crate) created_at: Timestamp,
    /// Null: it does not expire.
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyState {
    Valid,
    Expired,
    Revoked,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyList {
    pub(crate) keys: Vec<KeyInfo>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// A new key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NewKeyInfo {
    /// Its text, which can't be read again. Null in the answer to a repeat with the same `Idempotency-Key`: if the first answer was
    /// lost, revoke the key and create another.
    pub(crate) key: Option<String>,
    #[serde(flatten)]
    pub(crate) info: KeyInfo,
}

/// A request for a key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// Absent: the caller's. Only operators name another.
    pub(crate) tenant: Option<TenantId>,
    /// For people.
    #[schema(required)]
    pub(crate) name: Option<String>,
    #[schema(required)]
    pub(crate) role: Option<Role>,
    /// Absent: it does not expire.
    pub(crate) expires_in_seconds: Option<u64>,
    /// Restricts it to sandboxes, by names and labels (`KEY=VALUE`).
    #[schema(value_type = Vec<String>)]
    pub(crate) bound: Vec<Binding>,
    /// It may act on what belongs to the server.
    pub(crate) operator: bool,
}

/// A request to replace a key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RotateKey {
    /// How long the old key is still accepted; 0 by default.
    pub(crate) overlap_seconds: u64,
}

/// A row of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditInfo {
    pub(crate) time: Timestamp,
    /// Null: the caller did not identify itself.
    pub(crate) tenant: Option<TenantId>,
    /// The key's id, `user:` and the subject of a token, or `-`.
    pub(crate) key: String,
    /// Such as `sandbox.create`; `request` for a refused one.
    pub(crate) action: String,
    pub(crate) object: String,
    /// The client's address, or `-`.
    pub(crate) client: String,
    /// `ok`, or the code of the error.
    pub(crate) outcome: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    pub(crate) rows: Vec<AuditInfo>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// Gives a node no new sandboxes.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DrainNode {
    /// Time until the sandboxes that it still has are deleted, at most 2592000. Absent: they stay until their own ends.
    pub(crate) deadline_seconds: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodeList {
    pub(crate) nodes: Vec<Node>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QuarantineList {
    pub(crate) quarantine: Vec<QuarantinedSandbox>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

/// Takes a sandbox out of quarantine.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdoptSandbox {
    /// Absent: the name that it had, otherwise its id.
    pub(crate) name: Option<SandboxName>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedSandbox {
    pub(crate) id: SandboxId,
    pub(crate) deleted: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CorpusList {
    pub(crate) corpora: Vec<String>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CorpusInfo {
    pub(crate) name: String,
    pub(crate) passages: usize,
    /// The mode of a search that names none.
    #[schema(value_type = String)]
    pub(crate) best_mode: Value,
    /// Properties of the index; absent for an imported one.
    pub(crate) stats: Option<Value>,
    /// Counts of its query batches.
    #[schema(value_type = Object)]
    pub(crate) batches: Value,
}

/// Searches a corpus, by one query or by several.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SearchCorpus {
    pub(crate) query: Option<String>,
    pub(crate) queries: Option<Vec<String>>,
    /// The most passages of an answer.
    pub(crate) top_k: Option<usize>,
    /// `bm25`, `dense` or `hybrid`.
    #[schema(value_type = Option<String>)]
    pub(crate) mode: Option<arenite_retrieval::Mode>,
    /// Conditions on the passages' metadata.
    #[schema(value_type = Object)]
    pub(crate) filter: Map<String, Value>,
}

/// `results` for a query, `answers` for several.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct FoundPassages {
    #[schema(required = false)]
    results: Vec<Value>,
    #[schema(required = false)]
    answers: Vec<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TrajectoryList {
    pub(crate) trajectories: Vec<Summary>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
    /// Why trajectories are missing, such as a node that does not answer. Absent if none is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A page of steps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StepPage {
    pub(crate) trajectory: String,
    pub(crate) steps: Vec<Step>,
    /// `after` of the next page; null at the end.
    pub(crate) next_after: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkRecordList {
    pub(crate) trajectory: String,
    pub(crate) network: Vec<NetworkEvent>,
    /// Decisions beyond the limit on records; rounded down to a power of two.
    pub(crate) left_out: u64,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    pub(crate) trajectory: String,
    pub(crate) sessions: Vec<SessionEvent>,
    /// `cursor` of the next page; null at the end.
    pub(crate) next_cursor: Option<String>,
}
