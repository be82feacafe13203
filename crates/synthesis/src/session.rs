//! A worker's session with one type of resource.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_model::TenantId;
use arenite_trajectory::{Recorder, SessionChange, SessionEvent, without_userinfo};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

use crate::answer::naive;

/// A worker's session with one type of resource. A worker has at most one per type.
///
/// ```text
///  requested ──► initializing ──► active ──► removed from the worker ──► its calls end ──► cleaned up
///                     └─────────► error ───────────┘
/// ```
pub struct Session {
    pub facts: Facts,
    times: Mutex<Times>,
    /// Why its preparation failed.
    pub(crate) ready: OnceCell<Result<(), String>>,
    /// Its type has no backend: kept for clients that create sessions of everything.
    pub(crate) compatible: bool,
    /// Restored when the server started: its backend's state is lost.
    pub(crate) restored: bool,
    /// It continues in the sandbox that it had before, which is already prepared.
    pub(crate) resumed: AtomicBool,
    /// The sandbox that it works in, by name.
    pub(crate) sandbox: Mutex<Option<String>>,
    /// Trajectories that contain its start: those of its calls.
    pub(crate) noted: Mutex<BTreeSet<String>>,
    /// For backends that run the calls of one session one after the other.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Open calls, which are cancelled when the session ends.
    pub(crate) calls: TaskTracker,
    pub(crate) ended: CancellationToken,
}

/// The constant facts of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    pub id: String,
    pub name: String,
    pub worker: String,
    pub resource_type: String,
    /// The backend's defaults, overridden by the session's own configuration at the top level.
    pub config: Map<String, Value>,
    pub custom_name: Option<String>,
    pub created_at: Timestamp,
    /// Created for one call, and removed after it.
    pub auto_created: bool,
    /// Idle time in seconds after which it ends.
    pub ttl_seconds: f64,
    /// Whether calls restart this time.
    pub auto_extend: bool,
}

/// A session in a list of its worker's.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionInfo {
    pub resource_type: String,
    pub session_id: String,
    pub session_name: String,
    /// `initializing`, `active`, or `error`.
    pub status: Cow<'static, str>,
    /// Created for one call.
    pub auto_created: bool,
    pub created_at: String,
    pub last_activity: String,
    pub expires_at: String,
}

/// The state of a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionStatus {
    pub session_id: String,
    /// `initializing`, `active`, or `error`.
    pub status: &'static str,
    pub created_at: String,
    pub last_activity: String,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    last_activity: Timestamp,
    expires_at: Timestamp,
}

fn after(at: Timestamp, seconds: f64) -> Timestamp {
    // A century is longer than any session lasts.
    let span = Duration::from_secs_f64(seconds.clamp(0.0, 3.2e9));
    at.checked_add(span).unwrap_or(at)
}

impl Session {
    pub(crate) fn new(facts: Facts, compatible: bool, restored: bool) -> Self {
        let now = if restored { Timestamp::now() } else { facts.created_at };
        Self {
            times: Mutex::new(Times { last_activity: now, expires_at: after(now, facts.ttl_seconds) }),
            facts,
            ready: OnceCell::new(),
            compatible,
            restored,
            resumed: AtomicBool::new(false),
            sandbox: Mutex::default(),
            noted: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            calls: TaskTracker::new(),
            ended: CancellationToken::new(),
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts its idle time, and returns when it ends.
    pub(crate) fn refresh(&self) -> Timestamp {
        let now = Timestamp::now();
        let mut times = self.times();
        *times = Times { last_activity: now, expires_at: after(now, self.facts.ttl_seconds) };
        times.expires_at
    }

    /// Notes the end of a call.
    pub(crate) fn used(&self) {
        if self.facts.auto_extend {
            self.refresh();
        } else {
            self.times().last_activity = Timestamp::now();
        }
    }

    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.times().expires_at <= now && self.calls.is_empty()
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.ready.get().and_then(|ready| ready.as_ref().err()).map(String::as_str)
    }

    pub(crate) fn status(&self) -> &'static str {
        match self.ready.get() {
            None => "initializing",
            Some(Ok(())) => "active",
            Some(Err(_)) => "error",
        }
    }

    /// Whether its configuration requests a sandbox that it shares with no other session of its worker.
    pub(crate) fn is_alone(&self) -> bool {
        self.facts.config.get("sandbox").and_then(Value::as_str) == Some("own")
    }

    /// Whether it only keeps the worker's sandbox for tools without a session, such as `ds_*`. No client requested it, and no
    /// list has it.
    pub(crate) fn is_hidden(&self) -> bool {
        self.facts.resource_type.is_empty()
    }

    /// Whether it continues in its old sandbox after a start of the server.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed.load(Ordering::Relaxed)
    }

    pub(crate) fn sandbox(&self) -> Option<String> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the session's configuration in a call's trajectory, unless it is already recorded there.
    pub(crate) fn note_begin(&self, recorder: &Recorder, tenant: &TenantId, trajectory: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.insert(trajectory.to_owned()) {
            return;
        }
        let config = without_userinfo(Value::Object(self.facts.config.clone()));
        self.note(recorder, tenant, trajectory, SessionChange::Begin, Some(config));
    }

    /// Records its end in all trajectories with its start.
    pub(crate) fn note_end(&self, recorder: &Recorder, tenant: &TenantId) {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        for trajectory in noted {
            self.note(recorder, tenant, &trajectory, SessionChange::End, None);
        }
    }

    fn note(&self, recorder: &Recorder, tenant: &TenantId, trajectory: &str, change: SessionChange, config: Option<Value>) {
        let is_begin = change == SessionChange::Begin;
        let event = SessionEvent {
            event: change,
            id: self.facts.id.clone(),
            resource_type: self.facts.resource_type.clone(),
            config,
            ttl_seconds: is_begin.then_some(self.facts.ttl_seconds),
            sandbox: self.sandbox(),
            at: if is_begin { self.facts.created_at } else { Timestamp::now() },
            after: 0,
        };
        if let Err(error) = recorder.note_session(tenant, trajectory, event) {
            tracing::error!(%error, session = self.facts.id, trajectory, "a session could not be recorded");
        }
    }

    /// In the format of `session/list`.
    pub(crate) fn listed(&self) -> SessionInfo {
        let times = *self.times();
        SessionInfo {
            resource_type: self.facts.resource_type.clone(),
            session_id: self.facts.id.clone(),
            session_name: self.facts.name.clone(),
            status: self.status().into(),
            auto_created: self.facts.auto_created,
            created_at: naive(self.facts.created_at),
            last_activity: naive(times.last_activity),
            expires_at: naive(times.expires_at),
        }
    }

    /// In the format of `lifecycle/status`.
    pub(crate) fn told(&self) -> SessionStatus {
        SessionStatus {
            session_id: self.facts.id.clone(),
            status: self.status(),
            created_at: naive(self.facts.created_at),
            last_activity: naive(self.times().last_activity),
        }
    }

    /// For tools of plugins, without the data that the plugin keeps itself.
    pub fn info(&self) -> Value {
        let times = *self.times();
        json!({
            "session_id": self.facts.id,
            "session_name": self.facts.name,
            "worker_id": self.facts.worker,
            "resource_type": self.facts.resource_type,
            "config": self.facts.config,
            "created_at": naive(self.facts.created_at),
            "last_activity": naive(times.last_activity),
            "expires_at": naive(times.expires_at),
            "status": self.status(),
            "auto_created": self.facts.auto_created,
            "custom_name": self.facts.custom_name,
        })
    }
}
