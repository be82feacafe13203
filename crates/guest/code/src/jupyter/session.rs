//! A session: a named kernel that executes one request after the other.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use super::kernel::Kernel;
use super::kernelspec::KernelSpec;
use super::service::SESSION_TIMEOUT;
use super::types::SessionInfo;
use arenite_guest_runtime::sessions::{self, SessionId, Turns};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) turns: Turns<Slot>,
    pub(super) spec: KernelSpec,
    /// The directory in which its kernel starts.
    pub(super) cwd: PathBuf,
}

/// The part of a session that the holder of the turn may change.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) kernel: Option<Kernel>,
    /// It has had a kernel before.
    pub(super) had_kernel: bool,
}

impl Session {
    pub(super) fn id(&self) -> &SessionId {
        &self.turns.id
    }

    pub(super) fn info(&self) -> SessionInfo {
        SessionInfo {
            kernel_name: self.spec.name.clone(),
            last_used: self.turns.used().1.as_millisecond() as f64 / 1e3,
            age_seconds: Timestamp::now().duration_since(self.turns.created).as_secs().unsigned_abs(),
        }
    }
}

impl sessions::Session for Session {
    type Slot = Slot;

    fn turns(&self) -> &Turns<Slot> {
        &self.turns
    }

    fn patience(&self) -> Duration {
        SESSION_TIMEOUT
    }

    async fn close(&self) {
        let kernel = self.turns.last_turn().await.kernel.take();
        if let Some(kernel) = kernel {
            kernel.shut_down().await;
        }
    }
}
