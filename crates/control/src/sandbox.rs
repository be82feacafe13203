//! What control tells about sandboxes.

use arenite_model::{SandboxId, SandboxName, SandboxSpec, SandboxState, TenantId};
use jiff::Timestamp;
use serde::Serialize;

use crate::SpecOverlay;

/// A request for a new sandbox.
#[derive(Debug, Clone, Default)]
pub struct CreateRequest {
    /// Unset: the sandbox is called like its id.
    pub name: Option<SandboxName>,
    /// Unset: none if `spec` names an image, else the default template.
    pub template: Option<String>,
    pub spec: SpecOverlay,
    /// Who asked, in words for the log and the store, such as `api` or `cli`.
    pub origin: String,
}

/// A sandbox as it was when asked.
#[derive(Debug, Clone, Serialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub tenant: TenantId,
    pub name: SandboxName,
    pub state: SandboxState,
    pub spec: SandboxSpec,
    pub template: Option<String>,
    /// Why it is lost or failed.
    pub reason: Option<String>,
    /// What isolates it really, such as `["namespaces", "seccomp"]`.
    pub isolation: Vec<String>,
    pub origin: String,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    /// Since when it is in its state.
    pub state_since: Timestamp,
    /// When its life time is up.
    pub expires_at: Option<Timestamp>,
    /// Where the time of its creation went, in milliseconds; known to the server that made it.
    pub stages: Vec<(String, f64)>,
}

/// What becomes of a sandbox if nothing happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Deadline {
    pub at: Timestamp,
    pub reason: DeadlineReason,
    pub action: DeadlineAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineReason {
    /// Its life time is up.
    Timeout,
    /// Nobody called it; a call moves this deadline.
    Idle,
    /// It is lost or failed, and its disk was kept for long enough.
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineAction {
    Delete,
    Pause,
}

/// Something changed about a sandbox.
#[derive(Debug, Clone)]
pub struct Change {
    pub id: SandboxId,
    pub tenant: TenantId,
    pub name: SandboxName,
    /// None: it is gone.
    pub state: Option<SandboxState>,
}

/// What happened since the start, and what there is now.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// How many there are in each state.
    pub sandboxes: Vec<(SandboxState, u64)>,
    pub creates_ok: u64,
    pub creates_failed: u64,
    /// Of those made: given away from a pool.
    pub creates_from_pool: u64,
    /// Sandboxes that wait in pools.
    pub pooled: u64,
    /// Refused by admission.
    pub creates_refused: u64,
    /// Creates under way in the engine.
    pub creating: u64,
    /// Creates waiting for their turn.
    pub queued: u64,
    pub deleted: u64,
    pub reaped_timeout: u64,
    pub reaped_idle: u64,
    pub paused_idle: u64,
    /// Lost or failed ones removed when their time was up.
    pub reaped_lost: u64,
    pub woken: u64,
    /// Sandboxes whose guest ended by itself.
    pub ended: u64,
    /// Leases that are held now.
    pub leases: u64,
}
