//! A worker: its sessions, their numbers, and the sandbox that they share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::SynthesisError;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};
use crate::session::Session;

/// The label of workers' sandboxes: the worker's id.
pub(crate) const LABEL: &str = "agentflow.worker";
/// An additional label of sandboxes for a single call.
pub(crate) const TEMPORARY: &str = "agentflow.temporary";

pub(crate) struct Worker {
    pub(crate) id: String,
    state: Mutex<State>,
    /// The lock is held while the sandbox is created or removed.
    shared: tokio::sync::Mutex<Shared>,
}

#[derive(Default)]
struct State {
    /// In the order of their creation.
    sessions: Vec<Arc<Session>>,
    counters: HashMap<String, u32>,
}

/// The sandbox of all its sessions.
#[derive(Default)]
struct Shared {
    name: Option<String>,
    users: usize,
}

impl Worker {
    pub(crate) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), state: Mutex::default(), shared: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session(&self, resource_type: &str) -> Option<Arc<Session>> {
        self.state().sessions.iter().find(|session| session.facts.resource_type == resource_type).cloned()
    }

    /// The session of this type, or a new one that `make` creates with its number. True: it is new.
    pub(crate) fn session_or(&self, resource_type: &str, make: impl FnOnce(u32) -> Session) -> (Arc<Session>, bool) {
        let mut state = self.state();
        if let Some(session) = state.sessions.iter().find(|session| session.facts.resource_type == resource_type) {
            return (Arc::clone(session), false);
        }
        let number = count(&mut state, resource_type);
        let session = Arc::new(make(number));
        state.sessions.push(Arc::clone(&session));
        (session, true)
    }

    /// The number of a session that lives for one call.
    pub(crate) fn number(&self, resource_type: &str) -> u32 {
        count(&mut self.state(), resource_type)
    }

    /// Adds a session from before the server's start.
    pub(crate) fn restore(&self, session: Arc<Session>) {
        let mut state = self.state();
        // The number follows the worker's name, which may contain digits too, so the last numeric part is used.
        let number = session.facts.name.split('_').filter_map(|part| part.parse().ok()).next_back().unwrap_or(1);
        state.counters.insert(session.facts.resource_type.clone(), number);
        // No other task knows the worker yet.
        if let (Some(name), Ok(mut shared)) = (session.sandbox().filter(|_| !session.is_alone()), self.shared.try_lock()) {
            shared.name = Some(name);
            shared.users += 1;
        }
        state.sessions.push(session);
    }

    /// Removes the session: no call can find it any more.
    pub(crate) fn take(&self, session: &Arc<Session>) -> bool {
        let mut state = self.state();
        let before = state.sessions.len();
        state.sessions.retain(|one| !Arc::ptr_eq(one, session));
        state.sessions.len() < before
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.state().sessions.clone()
    }

    pub(crate) fn shown_sessions(&self) -> Vec<Arc<Session>> {
        self.state().sessions.iter().filter(|session| !session.is_hidden()).cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.state().sessions.len()
    }

    /// The sandbox that its sessions share, if there is one.
    pub(crate) async fn sandbox(&self) -> Option<String> {
        self.shared.lock().await.name.clone()
    }

    /// Claims the worker's sandbox for one more of its sessions. The first claim creates it; concurrent ones wait for that.
    pub(crate) async fn claim(
        &self,
        sandboxes: &Arc<dyn Sandboxes>,
        caller: &Caller,
        sandbox_request: &SandboxRequest,
    ) -> Result<SandboxHandle, SynthesisError> {
        let mut shared = self.shared.lock().await;
        let name = match &shared.name {
            Some(name) => name.clone(),
            None => {
                let labels = BTreeMap::from([(LABEL.to_owned(), label(&self.id))]);
                sandboxes.make(caller, sandbox_request, labels).await?
            }
        };
        shared.name = Some(name.clone());
        shared.users += 1;
        Ok(SandboxHandle { sandboxes: Arc::clone(sandboxes), caller: caller.clone(), name })
    }

    /// Lets a session from before the server's start continue in its sandbox, if that still exists.
    pub(crate) async fn reclaim(&self, sandboxes: &Arc<dyn Sandboxes>, caller: &Caller, name: &str) -> Option<SandboxHandle> {
        let mut shared = self.shared.lock().await;
        if sandboxes.is_there(caller, name).await {
            return Some(SandboxHandle { sandboxes: Arc::clone(sandboxes), caller: caller.clone(), name: name.to_owned() });
        }
        shared.users = shared.users.saturating_sub(1);
        if shared.name.as_deref() == Some(name) {
            shared.name = None;
        }
        None
    }

    /// Releases the sandbox of an ended session. `used`: the session had claimed it. The last session removes it.
    pub(crate) async fn release(&self, sandboxes: &Arc<dyn Sandboxes>, caller: &Caller, used: bool) {
        let mut shared = self.shared.lock().await;
        if used {
            shared.users = shared.users.saturating_sub(1);
        }
        let last = shared.users == 0 && self.state().sessions.is_empty();
        if let Some(name) = shared.name.take_if(|_| last) {
            sandboxes.remove(caller, &name).await;
        }
    }
}

fn count(state: &mut State, resource_type: &str) -> u32 {
    match state.counters.get_mut(resource_type) {
        Some(number) => {
            *number = number.saturating_add(1);
            *number
        }
        None => *state.counters.entry(resource_type.to_owned()).or_insert(1),
    }
}

/// A worker's id as a label value.
pub(crate) fn label(worker: &str) -> String {
    worker.chars().filter(|c| !c.is_control()).take(128).collect()
}
