//! Frees memory before the host runs short of it: frozen sandboxes that allow it are paused to their disks, the longest frozen
//! first, until the reserve is free again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arenite_model::{PauseKind, SandboxId, SandboxState};
use tokio::time::{MissedTickBehavior, interval};

use crate::Control;
use crate::counters::count;
use crate::registry::Entry;

/// Interval between looks at the host's memory, while a sandbox could be paused. No event tells that little is available.
const EVERY: Duration = Duration::from_secs(2);

/// Whether it may be paused to its disk for its memory.
fn is_candidate(entry: &Entry) -> bool {
    let sandbox = entry.sandbox();
    sandbox.state == SandboxState::Paused && sandbox.pause() == Some(PauseKind::Freeze) && sandbox.spec.disk_under_pressure
}

impl Control {
    pub(crate) async fn relieve_pressure(self: Arc<Self>) {
        if !self.engine.can_stop() {
            return;
        }
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Those that could not be paused have another try next time.
            let mut tried = HashSet::new();
            while let Some(entry) = self.longest_frozen(&tried) {
                if !self.is_short_of_memory().await {
                    break;
                }
                self.pause_for_memory(&entry).await;
                tried.insert(entry.id.clone());
            }
        }
    }

    fn longest_frozen(&self, tried: &HashSet<SandboxId>) -> Option<Arc<Entry>> {
        let registry = self.registry();
        let candidates = registry.all().filter(|entry| is_candidate(entry) && !tried.contains(&entry.id));
        candidates.min_by_key(|entry| entry.sandbox().state_since).cloned()
    }

    async fn is_short_of_memory(&self) -> bool {
        match self.engine.capacity().await {
            // A total of zero means that the engine doesn't know.
            Ok(capacity) => {
                capacity.memory_total_bytes > 0 && capacity.memory_available_bytes < self.config.limits.memory_reserve_bytes
            }
            Err(error) => {
                tracing::warn!(%error, "the host's memory could not be read");
                false
            }
        }
    }

    async fn pause_for_memory(&self, entry: &Arc<Entry>) {
        let Ok(_operation) = self.operation() else { return };
        // One that is being changed is probably being woken.
        let Ok(_change) = entry.change.try_lock() else { return };
        if !self.registry().holds(entry) || !is_candidate(entry) {
            return;
        }
        match self.stop_closed(entry).await {
            Ok(_) => {
                tracing::info!(id = %entry.id, name = %entry.name, "paused a frozen sandbox to its disk: the host is short of memory");
                count(&self.tally.paused_to_disk);
            }
            Err(error) => {
                tracing::warn!(id = %entry.id, name = %entry.name, %error, "a frozen sandbox could not be paused to its disk");
            }
        }
    }
}
