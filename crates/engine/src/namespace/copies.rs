//! Copies of states that are made before they are needed, so that a rollback or a fork doesn't wait for the disk.
//!
//! A sandbox that has returned to a state is likely to do it again: to the same state, or to the checkpoint that it makes next.
//! So it has one copy, of the state that it returned to or of its last checkpoint, until it ends or the state is removed. A state
//! that is sealed for forks is copied for the first of them while that one is admitted and stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arenite_model::{SandboxId, StateId};

use super::engine::EngineShared;
use super::storage::StorageError;

/// From a rollback or a fork until what it replaced is removed. At once, that would delay the new processes and the answer by a
/// millisecond.
const REMOVAL_DELAY: Duration = Duration::from_millis(30);

#[derive(Default)]
pub(super) struct Copies {
    /// What is copied for each sandbox that has returned to a state.
    returns: Mutex<HashMap<SandboxId, ReturnCopy>>,
    /// The copies of states for their first forks.
    forks: Mutex<HashMap<StateId, ForkCopy>>,
}

struct ForkCopy {
    /// What it is staged under.
    staged: SandboxId,
    made: JoinHandle<Result<(), StorageError>>,
}

#[derive(Clone)]
struct ReturnCopy {
    /// The state to copy.
    of: StateId,
    /// The state of the copy that exists. Locked while the copy is made, taken or removed.
    made: Arc<Mutex<Option<StateId>>>,
}

impl ReturnCopy {
    fn lock(&self) -> MutexGuard<'_, Option<StateId>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Copies {
    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, ReturnCopy>> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_for_fork(&self, state: &StateId) -> Option<ForkCopy> {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner).remove(state)
    }

    fn get(&self, sandbox: &SandboxId) -> Option<ReturnCopy> {
        self.all().get(sandbox).cloned()
    }

    /// Whether a sandbox has a copy of a state, or will have one soon.
    pub(super) fn includes(&self, sandbox: &SandboxId, state: &StateId) -> bool {
        self.all().get(sandbox).is_some_and(|copy| copy.of == *state)
    }
}

impl EngineShared {
    /// Makes a copy of a state for the return of a sandbox in a slot, or takes the one that was made before.
    pub(super) fn stage_copy(&self, sandbox: &SandboxId, state: &StateId, slot: &SandboxId) -> Result<(), StorageError> {
        let storage = &self.host.storage;
        let copy = {
            let mut all = self.copies.all();
            let copy = all.entry(sandbox.clone()).or_insert_with(|| ReturnCopy { of: state.clone(), made: Arc::default() });
            copy.of = state.clone();
            copy.clone()
        };
        let mut made = copy.lock();
        match made.take_if(|made| made == state).map(|_| storage.move_staged(sandbox, slot)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => tracing::warn!(%sandbox, %error, "the copy of a state can't be used; making another"),
            None => {}
        }
        storage.stage_state(state, slot)
    }

    /// Copies the next checkpoint of a sandbox in a thread, if the sandbox has returned to a state before.
    pub(super) fn copy_checkpoint(self: &Arc<Self>, sandbox: &SandboxId, state: &StateId) {
        match self.copies.all().get_mut(sandbox) {
            Some(copy) => copy.of = state.clone(),
            None => return,
        }
        let (owner, sandbox) = (Arc::clone(self), sandbox.clone());
        let begun = thread::Builder::new().name("copy".to_owned()).spawn(move || owner.make_copy(&sandbox));
        if let Err(error) = begun {
            tracing::debug!(%error, "a checkpoint is not copied before a return to it");
        }
    }

    /// Makes the copy for the next return of a sandbox, unless it exists. A failure only makes that return slower.
    pub(super) fn make_copy(&self, sandbox: &SandboxId) {
        let Some(copy) = self.copies.get(sandbox) else { return };
        let mut made = copy.lock();
        // While this waited, the sandbox may have ended or made another checkpoint.
        if !self.copies.includes(sandbox, &copy.of) || made.as_ref() == Some(&copy.of) {
            return;
        }
        let storage = &self.host.storage;
        let replaced = match made.take() {
            Some(_) => storage.drop_staged(sandbox),
            None => Ok(()),
        };
        match replaced.and_then(|()| storage.check_writable()).and_then(|()| storage.stage_state(&copy.of, sandbox)) {
            Ok(()) => *made = Some(copy.of.clone()),
            Err(error) => {
                tracing::debug!(%sandbox, %error, "a state is not copied before a return to it");
                let _ = storage.drop_staged(sandbox);
            }
        }
    }

    /// Removes the copy of a sandbox that ends.
    pub(super) fn drop_copy(&self, sandbox: &SandboxId) {
        let Some(copy) = self.copies.all().remove(sandbox) else { return };
        if copy.lock().take().is_some() {
            self.drop_staged(sandbox);
        }
    }

    fn drop_staged(&self, id: &SandboxId) {
        if let Err(error) = self.host.storage.drop_staged(id) {
            tracing::warn!(%id, %error, "a layer that is not used could not be removed; the next start tries again");
        }
    }

    /// Removes what a rollback or a fork replaced, in a thread, after [`REMOVAL_DELAY`].
    pub(super) fn remove_later(self: &Arc<Self>, remove: impl FnOnce(&Self) + Send + 'static) {
        let owner = Arc::clone(self);
        let begun = thread::Builder::new().name("removal".to_owned()).spawn(move || {
            thread::sleep(REMOVAL_DELAY);
            remove(&owner);
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "what a rollback or a fork replaced stays until the next start");
        }
    }

    /// Copies a state in a thread, for the first fork of it.
    pub(super) fn copy_for_fork(self: &Arc<Self>, state: &StateId) {
        let staged = SandboxId::random();
        let (owner, of, to) = (Arc::clone(self), state.clone(), staged.clone());
        match thread::Builder::new().name("copy".to_owned()).spawn(move || owner.host.storage.stage_state(&of, &to)) {
            Ok(made) => {
                let mut forks = self.copies.forks.lock().unwrap_or_else(PoisonError::into_inner);
                forks.insert(state.clone(), ForkCopy { staged, made });
            }
            Err(error) => tracing::debug!(%error, "a state is not copied before its forks"),
        }
    }

    /// Puts a copy of a state in place of the unused layer of a slot.
    pub(super) fn copy_to_slot(
        self: &Arc<Self>,
        state: &StateId,
        slot: &SandboxId,
        limit_bytes: u64,
    ) -> Result<(), StorageError> {
        let storage = &self.host.storage;
        let copied = match self.copies.take_for_fork(state) {
            // The thread does not panic.
            Some(ForkCopy { staged, made }) => {
                let moved = made.join().unwrap_or(Ok(())).and_then(|()| storage.move_staged(&staged, slot));
                moved.inspect_err(|_| drop(storage.drop_staged(&staged)))
            }
            None => storage.stage_state(state, slot),
        };
        if let Err(error) = copied.and_then(|()| storage.exchange_layer(slot, slot, limit_bytes)) {
            let _ = storage.drop_staged(slot);
            return Err(error);
        }
        let slot = slot.clone();
        self.remove_later(move |owner| owner.drop_staged(&slot));
        Ok(())
    }

    /// Removes the copies of a state that is removed.
    pub(super) fn drop_copies_of(&self, state: &StateId) {
        if let Some(ForkCopy { staged, made }) = self.copies.take_for_fork(state) {
            let _ = made.join();
            self.drop_staged(&staged);
        }
        let sandboxes: Vec<SandboxId> = {
            let all = self.copies.all();
            all.iter().filter(|(_, copy)| copy.of == *state).map(|(sandbox, _)| sandbox.clone()).collect()
        };
        sandboxes.iter().for_each(|sandbox| self.drop_copy(sandbox));
    }
}
