//! Keeps buckets mounted while sandboxes have them, and gives sandboxes the new mount after rclone had to be started again.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_isolation::mounts;
use arenite_model::{SandboxId, Tier, VolumeId, VolumeMount};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::engine::{EngineShared, has_ended};
use super::slot::wait_end;
use super::{at, volumes};
use crate::EngineError;

/// Interval between attempts to give a sandbox a mount that does not answer yet.
const REMOUNT_PAUSE: Duration = Duration::from_secs(5);

/// A sandbox with a former mount of a volume.
struct Former {
    id: SandboxId,
    pid: i32,
    pidfd: Arc<OwnedFd>,
    tier: Tier,
    mount: VolumeMount,
}

impl EngineShared {
    /// The volumes in buckets that running sandboxes have.
    pub(super) fn used_buckets(&self) -> HashSet<VolumeId> {
        let state = self.state();
        let running =
            state.live.values().filter(|live| !live.record.buckets.is_empty() && !wait_end(&live.pidfd, Duration::ZERO));
        running.flat_map(|live| &live.record.buckets).filter_map(|mount| mount.volume_id.clone()).collect()
    }

    /// Looks at the mounts of buckets when a use or a process has ended, until the engine is closed.
    pub(super) async fn keep_buckets(self: Arc<Self>) {
        loop {
            let owner = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || owner.look_at_buckets()).await;
            // A look that panicked must not end the server; the next one follows a change.
            let next = looked.unwrap_or_default();
            if self.is_closed() {
                return;
            }
            let mut ended: FuturesUnordered<_> =
                self.host.buckets.running().into_iter().map(|pidfd| async move { has_ended(&pidfd).await }).collect();
            tokio::select! {
                () = self.host.buckets.changed.notified() => {}
                Some(_) = ended.next() => {}
                () = tokio::time::sleep(next.unwrap_or(Duration::MAX)), if next.is_some() => {}
            }
        }
    }

    fn look_at_buckets(&self) -> Option<Duration> {
        let looked = self.host.buckets.look_at_mounts(&self.used_buckets());
        let mut next = looked.next;
        for volume in &looked.remounted {
            for former in self.with_mount(volume) {
                let (sandbox, path) = (&former.id, &former.mount.path);
                match self.remount(&former) {
                    Ok(()) => tracing::info!(%sandbox, path, "a sandbox has its bucket's new mount"),
                    Err(EngineError::Bucket(error)) => {
                        tracing::warn!(%sandbox, path, %error, "a sandbox waits for its bucket's new mount");
                        self.host.buckets.remount_again(volume);
                        next = Some(next.map_or(REMOUNT_PAUSE, |next| next.min(REMOUNT_PAUSE)));
                    }
                    Err(error) => {
                        tracing::error!(%sandbox, path, %error, "a sandbox has lost its bucket's mount; it gets another when it is started again");
                    }
                }
            }
        }
        next
    }

    fn with_mount(&self, volume: &VolumeId) -> Vec<Former> {
        let state = self.state();
        let mut found = Vec::new();
        for (id, live) in &state.live {
            for mount in live.record.buckets.iter().filter(|mount| mount.volume_id.as_ref() == Some(volume)) {
                let (pid, pidfd, tier) = (live.record.pid, Arc::clone(&live.pidfd), live.tier());
                found.push(Former { id: id.clone(), pid, pidfd, tier, mount: mount.clone() });
            }
        }
        found
    }

    fn remount(&self, former: &Former) -> Result<(), EngineError> {
        let stage = |error| at("remount", error);
        if former.tier == Tier::Gvisor {
            return Err(EngineError::Unsupported {
                what: "another mount in a running sandbox".to_owned(),
                reason: "gVisor keeps the first one".to_owned(),
            });
        }
        let userns = File::open(format!("/proc/{}/ns/user", former.pid)).map_err(stage)?;
        // Opened first, checked after: the pid can't be reused between the two.
        if wait_end(&former.pidfd, Duration::ZERO) {
            return Ok(());
        }
        let tree = volumes::tree(&self.host, &former.mount, userns.as_fd())?;
        mounts::cover(former.pidfd.as_fd(), tree.as_fd(), Path::new(&former.mount.path)).map_err(stage)
    }
}
