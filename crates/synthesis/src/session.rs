//! A worker's session with one type of resource.

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

use crate::answer::naive;

/// A worker's session with one type of resource. There is at most one of a type.
///
/// ```text
///  asked for ──► initializing ──► active ──► removed from the worker ──► its calls end ──► cleaned up
///                     └─────────► error ───────────┘
/// ```
pub struct Session {
    pub facts: Facts,
    times: Mutex<Times>,
    /// Why it could not be made ready.
    pub(crate) ready: OnceCell<Result<(), String>>,
    /// No backend stands behind its type: kept for clients that make sessions of everything.
    pub(crate) compatible: bool,
    /// Restored after a start of the server: what its backend knew of it is gone.
    pub(crate) restored: bool,
    /// It goes on in the sandbox that it had before: what was done there to make it ready is done.
    pub(crate) resumed: AtomicBool,
    /// The sandbox that it works in, by name.
    pub(crate) sandbox: Mutex<Option<String>>,
    /// Trajectories that contain its start: those of its calls.
    pub(crate) noted: Mutex<BTreeSet<String>>,
    /// For backends that run the calls of one session one after the other.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Calls under way, which are cancelled when the session ends.
    pub(crate) calls: TaskTracker,
    pub(crate) ended: CancellationToken,
}

/// What does not change in a session's life.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    pub id: String,
    pub name: String,
    pub worker: String,
    pub resource_type: String,
    /// The backend's defaults with the session's own laid over, at the top level.
    pub config: Map<String, Value>,
    pub custom_name: Option<String>,
    pub created_at: Timestamp,
    /// Made for one call, and gone with it.
    pub auto_created: bool,
    /// Seconds without a call after which it ends.
    pub ttl_seconds: f64,
    /// Whether calls put that off.
    pub auto_extend: bool,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    last_activity: Timestamp,
    expires_at: Timestamp,
}

fn after(at: Timestamp, seconds: f64) -> Timestamp {
    // A century is longer than anything here lives.
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

    /// Restarts its time; answers when it will be over.
    pub(crate) fn refresh(&self) -> Timestamp {
        let now = Timestamp::now();
        let mut times = self.times();
        *times = Times { last_activity: now, expires_at: after(now, self.facts.ttl_seconds) };
        times.expires_at
    }

    /// A call came back.
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

    /// Its configuration asks for a sandbox that it shares with no other session of its worker.
    pub(crate) fn is_alone(&self) -> bool {
        self.facts.config.get("sandbox").and_then(Value::as_str) == Some("own")
    }

    /// It only keeps the worker's sandbox for tools that have no session, such as `ds_*`: nobody asked for it, and no list has it.
    pub(crate) fn is_hidden(&self) -> bool {
        self.facts.resource_type.is_empty()
    }

    /// After a start of the server it goes on in the sandbox that it had.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed.load(Ordering::Relaxed)
    }

    pub(crate) fn sandbox(&self) -> Option<String> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes in the record of a call's trajectory with what this session was made, unless that stands there already.
    pub(crate) fn note_begin(&self, recorder: &Recorder, tenant: &TenantId, trajectory: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.insert(trajectory.to_owned()) {
            return;
        }
        let config = without_userinfo(Value::Object(self.facts.config.clone()));
        self.note(recorder, tenant, trajectory, SessionChange::Begin, Some(config));
    }

    /// Notes its end wherever its begin was noted.
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

    /// As `session/list` has it.
    pub(crate) fn listed(&self) -> Value {
        let times = *self.times();
        json!({
            "resource_type": self.facts.resource_type,
            "session_id": self.facts.id,
            "session_name": self.facts.name,
            "status": self.status(),
            "auto_created": self.facts.auto_created,
            "created_at": naive(self.facts.created_at),
            "last_activity": naive(times.last_activity),
            "expires_at": naive(times.expires_at),
        })
    }

    /// As `lifecycle/status` has it.
    pub(crate) fn told(&self) -> Value {
        json!({
            "session_id": self.facts.id,
            "status": self.status(),
            "created_at": naive(self.facts.created_at),
            "last_activity": naive(self.times().last_activity),
        })
    }

    /// As tools of plugins get it, without the data that the plugin keeps itself.
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
