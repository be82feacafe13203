//! One worker: its sessions, their numbers, and the sandbox that they share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest, Sandboxes};
use crate::session::Session;

/// The label that sandboxes of workers carry: the worker's id.
pub(crate) const LABEL: &str = "agentflow.worker";
/// Beside it, on the sandbox of a single call.
pub(crate) const TEMPORARY: &str = "agentflow.temporary";

pub(crate) struct Worker {
    pub(crate) id: String,
    state: Mutex<State>,
    /// Its lock is held while the sandbox is made or removed.
    shared: tokio::sync::Mutex<Shared>,
}

#[derive(Default)]
struct State {
    /// In the order in which they were made.
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

    /// The session of this type, or the one that `make` makes of its number. True: it was made now.
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

    /// A session of before the server's start.
    pub(crate) fn restore(&self, session: Arc<Session>) {
        let mut state = self.state();
        // The number stands behind the worker's name, which may hold digits too: it is the first of three or more after it.
        let number = session.facts.name.split('_').filter_map(|part| part.parse().ok()).next_back().unwrap_or(1);
        state.counters.insert(session.facts.resource_type.clone(), number);
        // Nobody else knows the worker yet.
        if let (Some(name), Ok(mut shared)) = (session.sandbox().filter(|_| !session.is_alone()), self.shared.try_lock()) {
            shared.name = Some(name);
            shared.users += 1;
        }
        state.sessions.push(session);
    }

    /// Takes the session out: from here on no call finds it.
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

    /// The worker's sandbox for one more of its sessions. The first makes it; those who come meanwhile wait for that.
    pub(crate) async fn claim(
        &self,
        sandboxes: &Arc<dyn Sandboxes>,
        caller: &Caller,
        sandbox_request: &SandboxRequest,
    ) -> Result<SandboxHandle, String> {
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

    /// A session of before the server's start goes on in the sandbox that it had, if that is still there.
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

    /// A session is over. `used`: it had claimed the sandbox. It goes with the last session.
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

/// A worker's id as a label carries it.
pub(crate) fn label(worker: &str) -> String {
    worker.chars().filter(|c| !c.is_control()).take(128).collect()
}
