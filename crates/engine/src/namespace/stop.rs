//! Pauses a sandbox to its disk: its processes end, and a restart runs it again.
//!
//! ```text
//!  the record says so ──► the processes end ──► cgroups, address and sockets are released
//! ```
//!
//! From the first step on, a recovery finds it paused, and ends what is left of its processes.

use arenite_model::SandboxId;

use super::at;
use super::engine::{END_LIMIT, EngineShared, Live};
use super::slot::{kill, wait_end};
use crate::EngineError;

impl EngineShared {
    /// Blocks until its processes have ended.
    pub(super) fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        let live = self.state().live.get(id).map(|live| (live.record.clone(), live.pidfd.clone()));
        let Some((mut record, pidfd)) = live else {
            return match self.state().stopped.contains(id) {
                true => Ok(()),
                false => Err(EngineError::NotFound { id: id.clone() }),
            };
        };
        let records = &self.host.records;
        (record.stopped, record.revision) = (true, record.revision + 1);
        records.write(&record).map_err(|e| at("record", e))?;
        // What is not in `live` does not end by itself.
        self.state().live.remove(id);
        kill(&pidfd);
        // Frozen processes die when they are thawed.
        let _ = self.host.cgroups.set_frozen(record.slot_id(), false);
        if !wait_end(&pidfd, END_LIMIT) {
            (record.stopped, record.revision) = (false, record.revision + 1);
            if let Err(error) = records.write(&record) {
                tracing::warn!(%id, %error, "the record of a sandbox could not be changed");
            }
            self.state().live.insert(id.clone(), Live::new(record, pidfd));
            return Err(EngineError::Timeout { what: "ending the sandbox's processes", limit: END_LIMIT });
        }
        self.state().stopped.insert(id.clone());
        self.host.buckets.changed.notify_one();
        self.host.end_again(record.slot_id(), record.net_index);
        // A restart removes them as well.
        if let Err(error) = records.remove_sockets(id) {
            tracing::warn!(%id, %error, "the guest's socket could not be removed");
        }
        Ok(())
    }
}
