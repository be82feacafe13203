//! The JSON of the control API, `/api/v2`, as the commands read it. It is defined in the gateway's `api.rs`.
//!
//! Unknown fields are ignored: a newer server may send more.

use std::collections::BTreeMap;

use arenite_control::tenants::Quota;
use arenite_model::{Tier, VolumeMount};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

#[derive(Debug, Default, Serialize)]
pub(crate) struct Create {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restart_processes: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) secrets: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) image_command: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workdir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub(crate) resources: Resources,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tier: Option<Tier>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeMount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_under_pressure: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<u32>,
}

/// The answer to a create with `count`.
#[derive(Debug, Deserialize)]
pub(crate) struct Created {
    pub(crate) requested: usize,
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) errors: Vec<FailedCreate>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FailedCreate {
    pub(crate) index: usize,
    pub(crate) message: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Volumes {
    pub(crate) volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) size_bytes: u64,
    pub(crate) size_enforced: bool,
    pub(crate) used_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) bucket: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) sandboxes: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Templates {
    pub(crate) templates: Vec<Template>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Template {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    pub(crate) spec: TemplateSpec,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TemplateSpec {
    #[serde(default)]
    pub(crate) image: String,
    #[serde(default)]
    pub(crate) resources: TemplateResources,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct TemplateResources {
    #[serde(default)]
    pub(crate) memory_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) cpu_millis: Option<u32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) ttl_seconds: u64,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) expires_at: jiff::Timestamp,
    pub(crate) ending: bool,
    pub(crate) sandboxes: usize,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Resources {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_millis: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shm_bytes: Option<u64>,
}

impl Resources {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Sandboxes {
    pub(crate) sandboxes: Vec<Sandbox>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) name: String,
    /// None: its server is in no cluster.
    #[serde(default)]
    pub(crate) node: Option<String>,
    pub(crate) state: String,
    /// None: it is not paused, or the server is of a version without kinds of pauses.
    #[serde(default)]
    pub(crate) pause_kind: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) died: Option<Died>,
    /// `-`: the server is of a version without tiers.
    #[serde(default = "unknown")]
    pub(crate) tier: String,
    #[serde(default)]
    pub(crate) isolation: Vec<String>,
    pub(crate) created_at: jiff::Timestamp,
    #[serde(default)]
    pub(crate) last_used_at: Option<jiff::Timestamp>,
    #[serde(default)]
    pub(crate) deadline: Option<Deadline>,
    #[serde(default)]
    pub(crate) stages: Vec<Stage>,
    pub(crate) spec: Spec,
    #[serde(default)]
    pub(crate) urls: BTreeMap<String, String>,
}

impl Sandbox {
    /// Its state, with the kind of a pause that ended its processes.
    pub(crate) fn state_and_kind(&self) -> &str {
        if self.pause_kind.as_deref() == Some("disk") { "paused (disk)" } else { &self.state }
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// Why a sandbox ended.
#[derive(Debug, Deserialize)]
pub(crate) struct Died {
    pub(crate) reason: String,
}

/// A change of a sandbox.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_in_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_under_pressure: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) sandboxes: u64,
    pub(crate) memory_available_bytes: u64,
    pub(crate) disk_available_bytes: u64,
    pub(crate) started_at: jiff::Timestamp,
    pub(crate) renewed_at: jiff::Timestamp,
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) drain: Option<NodeDrain>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeDrain {
    pub(crate) since: jiff::Timestamp,
    #[serde(default)]
    pub(crate) deadline: Option<jiff::Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Quarantine {
    pub(crate) quarantine: Vec<Quarantined>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Quarantined {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    pub(crate) reason: String,
    pub(crate) since: jiff::Timestamp,
    #[serde(default)]
    pub(crate) processes: u64,
    #[serde(default)]
    pub(crate) has_disk: bool,
    #[serde(default)]
    pub(crate) disk_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) has_record: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tenants {
    pub(crate) tenants: Vec<Tenant>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) disabled: bool,
    #[serde(default)]
    pub(crate) quotas: Vec<QuotaState>,
    pub(crate) keys: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct QuotaState {
    pub(crate) quota: Quota,
    #[serde(default)]
    pub(crate) limit: Option<u64>,
    #[serde(default)]
    pub(crate) used: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<Key>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) operator: bool,
    pub(crate) bound: Vec<String>,
    pub(crate) state: String,
    pub(crate) created_at: jiff::Timestamp,
    #[serde(default)]
    pub(crate) expires_at: Option<jiff::Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NewKey {
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) about: Key,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Audit {
    pub(crate) rows: Vec<AuditRow>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct AuditRow {
    pub(crate) time: jiff::Timestamp,
    #[serde(default)]
    pub(crate) tenant: Option<String>,
    pub(crate) key: String,
    pub(crate) action: String,
    pub(crate) object: String,
    pub(crate) client: String,
    pub(crate) outcome: String,
}

/// A page of events, which are shown as they are.
#[derive(Debug, Deserialize)]
pub(crate) struct Events {
    pub(crate) events: Vec<serde_json::Value>,
    pub(crate) next_after: String,
    #[serde(default)]
    pub(crate) gap: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Secrets {
    pub(crate) secrets: Vec<Secret>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) hosts: Vec<String>,
    pub(crate) places: Vec<String>,
    pub(crate) rotated_at: jiff::Timestamp,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Webhooks {
    pub(crate) webhooks: Vec<Webhook>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Webhook {
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) types: Vec<String>,
    pub(crate) created_at: jiff::Timestamp,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelRoutes {
    pub(crate) models: Vec<ModelRoute>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelRoute {
    pub(crate) name: String,
    pub(crate) upstream: String,
    pub(crate) dialect: String,
    pub(crate) secret: Option<String>,
    pub(crate) models: Vec<String>,
    pub(crate) budget: ModelBudget,
    pub(crate) budget_each: ModelBudget,
    /// Not in lists.
    pub(crate) usage: Option<ModelUse>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelBudget {
    pub(crate) tokens: Option<u64>,
    pub(crate) cost_usd: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelUse {
    pub(crate) calls: u64,
    pub(crate) estimated_calls: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) cost_usd: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Deliveries {
    pub(crate) deliveries: Vec<Delivery>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) number: u64,
    pub(crate) r#type: String,
    pub(crate) state: String,
    pub(crate) attempts: u32,
    pub(crate) created_at: jiff::Timestamp,
    #[serde(default)]
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) error: Option<String>,
    #[serde(default)]
    pub(crate) body: serde_json::Value,
}

/// The next timeout of a sandbox.
#[derive(Debug, Deserialize)]
pub(crate) struct Deadline {
    pub(crate) at: jiff::Timestamp,
    pub(crate) reason: String,
    pub(crate) action: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Stage {
    pub(crate) ms: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Spec {
    pub(crate) image: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct UsageReport {
    pub(crate) rows: Vec<UsageRow>,
    #[serde(default)]
    pub(crate) truncated: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct UsageRow {
    pub(crate) tenant: String,
    #[serde(default)]
    pub(crate) hour: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) template: Option<String>,
    pub(crate) core_seconds: f64,
    pub(crate) memory_gib_seconds: f64,
    pub(crate) disk_gib_hours: f64,
    pub(crate) egress_bytes: u64,
    pub(crate) ingress_bytes: u64,
    pub(crate) tool_calls: u64,
    #[serde(default)]
    pub(crate) model_calls: u64,
    #[serde(default)]
    pub(crate) model_input_tokens: u64,
    #[serde(default)]
    pub(crate) model_output_tokens: u64,
    #[serde(default)]
    pub(crate) model_cost_usd: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct LiveUsage {
    pub(crate) sandboxes: Vec<SandboxLoad>,
    #[serde(default)]
    pub(crate) left_out: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxLoad {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) image: String,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) calls: u32,
    pub(crate) usage: SandboxUsage,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxUsage {
    pub(crate) cpu_nanoseconds: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: Option<u64>,
    /// Processes, limits, and what else the server reports.
    #[serde(flatten)]
    pub(crate) rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Trajectories {
    pub(crate) trajectories: Vec<Summary>,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    pub(crate) trajectory: String,
    pub(crate) sandbox_name: String,
    #[serde(default)]
    pub(crate) worker: Option<String>,
    #[serde(default)]
    pub(crate) task: Option<String>,
    pub(crate) first_at: jiff::Timestamp,
    pub(crate) last_at: jiff::Timestamp,
    pub(crate) steps: u64,
    #[serde(default)]
    pub(crate) failures: Option<Failures>,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) ended: bool,
    #[serde(default)]
    pub(crate) archived: bool,
    #[serde(default)]
    pub(crate) annotations: Option<arenite_model::AnnotationSummary>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Failures {
    pub(crate) steps: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Annotations {
    pub(crate) annotations: Vec<arenite_model::Annotation>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    #[serde(default)]
    pub(crate) next_after: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) origin: String,
    #[serde(default)]
    pub(crate) result: Option<arenite_trajectory::StepResult>,
    #[serde(default)]
    pub(crate) class: Option<arenite_trajectory::FailureClass>,
    pub(crate) action: String,
    pub(crate) started_at: jiff::Timestamp,
    #[serde(default)]
    pub(crate) duration_ms: Option<f64>,
    #[serde(default)]
    pub(crate) outcome: Option<String>,
    #[serde(default)]
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) arguments: Option<serde_json::Value>,
}

/// AIO's envelope around a guest's answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<T> {
    #[serde(default = "yes")]
    pub(crate) success: bool,
    #[serde(default)]
    pub(crate) message: Option<String>,
    pub(crate) data: Option<T>,
    #[serde(default)]
    pub(crate) hint: Option<String>,
}

fn yes() -> bool {
    true
}

impl<T> Envelope<T> {
    /// Its data, or the failure that it reports.
    pub(crate) fn into_data(self) -> Result<T, Failure> {
        match self.data {
            Some(data) if self.success => Ok(data),
            _ => {
                let message = self.message.unwrap_or_else(|| "the sandbox gave no reason".to_owned());
                Err(Failure::new(message).maybe_hint(self.hint))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct BashExec {
    pub(crate) session_id: String,
    pub(crate) command_id: String,
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) stdout: Option<String>,
    #[serde(default)]
    pub(crate) stderr: Option<String>,
    #[serde(default)]
    pub(crate) exit_code: Option<i32>,
    #[serde(default)]
    pub(crate) offset: u64,
    #[serde(default)]
    pub(crate) stderr_offset: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BashOutput {
    #[serde(default)]
    pub(crate) stdout: Option<String>,
    #[serde(default)]
    pub(crate) stderr: Option<String>,
    #[serde(default)]
    pub(crate) offset: u64,
    #[serde(default)]
    pub(crate) stderr_offset: u64,
    #[serde(default)]
    pub(crate) command: Option<BashCommand>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BashCommand {
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) exit_code: Option<i32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) id: String,
    pub(crate) number: u32,
    pub(crate) parent: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) frozen_ms: Option<f64>,
    #[serde(default)]
    pub(crate) auto: bool,
    pub(crate) hash: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct History {
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) head: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Differences {
    pub(crate) paths: Vec<ChangedPath>,
    pub(crate) truncated: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ChangedPath {
    pub(crate) path: String,
    pub(crate) change: String,
    pub(crate) kind: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Snapshots {
    pub(crate) snapshots: Vec<Snapshot>,
}

/// Entries of a directory of a snapshot.
#[derive(Debug, Deserialize)]
pub(crate) struct Files {
    pub(crate) files: Vec<FileEntry>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) size_bytes: u64,
    pub(crate) mode: String,
    pub(crate) modified_at: jiff::Timestamp,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) sandbox: String,
    pub(crate) image: String,
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) created_at: jiff::Timestamp,
    pub(crate) note: Option<String>,
}
