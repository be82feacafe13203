//! Sandboxes of nodes that don't run: any other node shows them, and deletes them.
//!
//! A delete removes the row, which frees the name and what the sandbox reserved, and notes the removal for its node. When that
//! node starts again, it removes what it still has of the sandbox before it takes any over. So a deleted sandbox never comes
//! back, although its name may have been used again.

use std::collections::HashMap;

use arenite_engine::Found;
use arenite_model::{NodeName, SandboxId, TenantId};

use crate::events::EventKind;
use crate::memo::Memo;
use crate::nodes::SandboxKey;
use crate::recovery::state_of;
use crate::{Control, ControlError, Sandbox};

/// What came of the removal of another node's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    Removed,
    /// It is not there, or was removed by another node.
    NotThere,
    /// Its node runs, and has to do it.
    Runs(NodeName),
}

impl Control {
    /// A sandbox of another node, as the database has it. Its node may have newer facts.
    pub async fn get_of_other(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<Sandbox>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(None) };
        store.sandbox_of_other(tenant, sandbox).await.map_err(ControlError::store("read a sandbox of another node"))
    }

    /// Deletes a sandbox of another node, which must not run.
    pub(crate) async fn delete_of_other(&self, sandbox: &Sandbox) -> Result<(), ControlError> {
        let not_found = || ControlError::NotFound { name: sandbox.name.clone() };
        let store = self.nodes_store().ok_or_else(not_found)?;
        let removed =
            store.remove_of_other(&sandbox.id).await.map_err(ControlError::store("remove a sandbox of another node"))?;
        self.forget_owner(&sandbox.tenant, &SandboxKey::Name(sandbox.name.clone()));
        self.forget_owner(&sandbox.tenant, &SandboxKey::Id(sandbox.id.clone()));
        match removed {
            Removal::Removed => {
                tracing::info!(id = %sandbox.id, name = %sandbox.name, "deleted a sandbox of a node that does not run");
                self.announce(sandbox, EventKind::Deleted);
                Ok(())
            }
            Removal::NotThere => Err(not_found()),
            Removal::Runs(node) => Err(ControlError::NodeRuns { name: sandbox.name.clone(), node }),
        }
    }

    /// Removes sandboxes that other nodes deleted while this one did not run. Returns their number.
    pub(crate) async fn remove_deleted(&self, found: &mut HashMap<SandboxId, Found>) -> Result<usize, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(0) };
        let ids = store.removals().await.map_err(ControlError::store("read the removals of other nodes"))?;
        let mut removed = Vec::new();
        for id in ids {
            if let Some(found) = found.remove(&id)
                && let Err(error) = self.remove_found(&id, found).await
            {
                tracing::error!(%id, %error, "a sandbox that another node has deleted could not be removed; the next start tries again");
                continue;
            }
            removed.push(id);
        }
        let count = removed.len();
        if count > 0 {
            store.settle_removals(removed).await.map_err(ControlError::store("forget removals of other nodes"))?;
        }
        Ok(count)
    }

    /// Removes it also if its record can't be read: then nothing says how it is called.
    async fn remove_found(&self, id: &SandboxId, found: Found) -> Result<(), ControlError> {
        let Some(Ok(memo)) = found.memo.as_deref().map(Memo::read) else { return Ok(self.engine.destroy(id).await?) };
        let (state, _, died) = state_of(found.state);
        let row = memo.sandbox(id.clone(), state, died, self.clock.now());
        self.bounded("the removal", &row.name, self.engine.destroy(id)).await
    }
}
