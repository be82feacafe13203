//! What a start finds of the server before it.

use std::collections::HashMap;
use std::sync::Arc;

use arenite_model::{SandboxId, SandboxState};

use crate::core::Core;
use crate::registry::Entry;
use crate::{ControlError, Sandbox};

/// For the log.
#[derive(Debug, Default)]
struct Found {
    running: usize,
    paused: usize,
    lost: usize,
    failed: usize,
    half_created: usize,
    half_deleted: usize,
    /// Could not be removed; the reaper tries again.
    stuck: usize,
}

impl Core {
    pub(crate) async fn recover(&self) -> Result<(), ControlError> {
        let rows = self.store.load().await.map_err(ControlError::store("read the sandboxes"))?;
        let (half, settled): (Vec<Sandbox>, Vec<Sandbox>) =
            rows.into_iter().partition(|row| matches!(row.state, SandboxState::Creating | SandboxState::Deleting));
        let known: Vec<SandboxId> = settled.iter().map(|row| row.id.clone()).collect();
        let recovery = self.engine.recover(&known).await?;
        for removed in &recovery.removed {
            tracing::info!(%removed, "removed a leftover");
        }
        let mut now: HashMap<SandboxId, (SandboxState, Option<String>)> = HashMap::new();
        for id in recovery.running {
            now.insert(id, (SandboxState::Running, None));
        }
        for id in recovery.paused {
            now.insert(id, (SandboxState::Paused, None));
        }
        for (id, reason) in recovery.lost {
            now.insert(id, (SandboxState::Lost, Some(reason)));
        }
        let mut found = Found::default();
        for row in settled {
            let (state, reason) = now.remove(&row.id).unwrap_or_else(|| {
                let reason = "the engine did not find it again".to_owned();
                (SandboxState::Lost, Some(reason))
            });
            self.adopt(row, state, reason, &mut found).await;
        }
        for row in half {
            self.clean(row, &mut found).await;
        }
        tracing::info!(?found, "recovered sandboxes");
        Ok(())
    }

    async fn adopt(&self, mut row: Sandbox, state: SandboxState, reason: Option<String>, found: &mut Found) {
        // What failed or was lost before stays so, with its own reason and since its own time.
        let settled = matches!(row.state, SandboxState::Failed | SandboxState::Lost) && state == SandboxState::Lost;
        if row.state != state && !settled {
            tracing::info!(id = %row.id, name = %row.name, from = %row.state, to = %state, reason = reason.as_deref(), "a sandbox's state has changed");
            row.state = state;
            row.reason = reason;
            row.state_since = self.clock.now();
            if let Err(error) = self.store.update(&row).await {
                tracing::error!(id = %row.id, %error, "a sandbox's state could not be stored");
            }
        }
        let open = row.state == SandboxState::Running;
        *match row.state {
            SandboxState::Running => &mut found.running,
            SandboxState::Paused => &mut found.paused,
            SandboxState::Failed => &mut found.failed,
            _ => &mut found.lost,
        } += 1;
        let entry = self.enter(row);
        if open {
            entry.open();
        }
    }

    /// Finishes a delete, or takes back a create, that the server's death cut short.
    async fn clean(&self, mut row: Sandbox, found: &mut Found) {
        let destroy = self.engine.destroy(&row.id);
        let cleaned = match self.bounded("the removal", &row.name, destroy).await {
            Ok(()) => self.store.remove(&row.id).await.map_err(ControlError::store("forget a sandbox")),
            Err(error) => Err(error),
        };
        match cleaned {
            Ok(()) if row.state == SandboxState::Creating => found.half_created += 1,
            Ok(()) => found.half_deleted += 1,
            Err(error) => {
                tracing::error!(id = %row.id, name = %row.name, %error, "what a crash left half done could not be removed; trying again");
                found.stuck += 1;
                row.state = SandboxState::Deleting;
                row.state_since = self.clock.now();
                self.enter(row);
            }
        }
    }

    fn enter(&self, row: Sandbox) -> Arc<Entry> {
        let entry = Arc::new(Entry::new(row));
        if !self.registry_mut().insert(&entry) {
            tracing::error!(id = %entry.id, "two rows have one id or name");
        }
        self.reconsider(&entry);
        entry
    }
}
