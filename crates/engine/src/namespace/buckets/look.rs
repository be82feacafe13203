//! Looks at the mounts: what has ended and is needed starts again, and what nobody uses ends once all is uploaded.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_model::VolumeId;

use super::process::{self, Rclone};
use super::{BucketMount, Buckets, MountState, unsent};

/// Time without a use after which a volume is unmounted.
const GRACE: Duration = Duration::from_secs(10);
/// Interval between looks at uploads that an unmount waits for: rclone has no event for their end.
const UPLOAD_PAUSE: Duration = Duration::from_secs(2);
/// The pauses between attempts to start rclone again.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Time for uploads when the server stops.
const LAST_UPLOADS: Duration = Duration::from_secs(10);

/// What a look at all mounts has done, and when to look again.
#[derive(Debug, Default)]
pub(in crate::namespace) struct Looked {
    /// Volumes with another mount than before: sandboxes still have the former one.
    pub(in crate::namespace) remounted: Vec<VolumeId>,
    pub(in crate::namespace) next: Option<Duration>,
}

/// What follows a look at a mount.
enum Next {
    Nothing,
    Wait(Duration),
    Forget,
}

impl Buckets {
    /// Repeats what could not be done for sandboxes with a former mount.
    pub(in crate::namespace) fn remount_again(&self, id: &VolumeId) {
        if let Some(mount) = self.mounts().get(id) {
            mount.state().is_remounted = true;
        }
    }

    /// Starts again what has ended, and ends what nobody uses. `used` are the volumes that sandboxes have.
    pub(in crate::namespace) fn look_at_mounts(&self, used: &HashSet<VolumeId>) -> Looked {
        let mut looked = Looked::default();
        let mounts: Vec<_> = {
            let mut mounts = self.mounts();
            // What sandboxes have, and lost while no server ran.
            for id in used.iter().filter(|id| self.storage.volume_backing(id).is_some()) {
                let lost = || BucketMount::new(id, MountState { is_remounted: true, ..MountState::default() });
                mounts.entry(id.clone()).or_insert_with(lost);
            }
            mounts.values().cloned().collect()
        };
        for mount in mounts {
            // Another thread starts or ends it.
            let Ok(mut process) = mount.process.try_lock() else {
                looked.next = Some(looked.next.map_or(UPLOAD_PAUSE, |next| next.min(UPLOAD_PAUSE)));
                continue;
            };
            let is_used = used.contains(&mount.id) || mount.state().uses > 0;
            let next = match process.as_ref().is_none_or(Rclone::has_ended) {
                true => self.look_at_ended(&mount, &mut process, is_used),
                false => self.look_at_running(&mount, &mut process, is_used),
            };
            let is_running = process.is_some();
            drop(process);
            match next {
                Next::Forget => self.drop_unused(&mount),
                Next::Wait(pause) => looked.next = Some(looked.next.map_or(pause, |next| next.min(pause))),
                Next::Nothing => {}
            }
            if is_running && std::mem::take(&mut mount.state().is_remounted) {
                looked.remounted.push(mount.id.clone());
            }
        }
        looked
    }

    /// Starts what has ended again, if it is needed.
    fn look_at_ended(&self, mount: &BucketMount, process: &mut Option<Rclone>, is_used: bool) -> Next {
        let id = &mount.id;
        if let Some(ended) = process.take() {
            tracing::warn!(%id, reason = process::last_error(&self.cache(id)), "the client of a volume's bucket has ended");
            let lived = ended.started.elapsed();
            self.clear(id, Some(ended));
            let mut state = mount.state();
            state.is_remounted = true;
            // One that ends right after its start must not be started without a pause.
            state.failures = if lived < RETRY[1] { state.failures + 1 } else { 0 };
            state.next_start = (state.failures > 1).then(|| Instant::now() + pause(state.failures));
        }
        if !is_used && !unsent::is_any(&self.cache(id)) {
            return Next::Forget;
        }
        if let Some(wait) = mount.state().next_start.and_then(|at| at.checked_duration_since(Instant::now())) {
            return Next::Wait(wait);
        }
        match self.start(id) {
            Ok(started) => {
                tracing::info!(%id, "mounted a volume's bucket again");
                *process = Some(started);
                // The task that looks waits for its end from now on.
                Next::Wait(if is_used { RETRY[1] } else { UPLOAD_PAUSE })
            }
            Err(error) => {
                let mut state = mount.state();
                state.failures += 1;
                let pause = pause(state.failures);
                state.next_start = Some(Instant::now() + pause);
                tracing::error!(%id, %error, "a volume's bucket can't be mounted; the next try is in {pause:?}");
                Next::Wait(pause)
            }
        }
    }

    /// Ends what nobody uses, once all is uploaded.
    fn look_at_running(&self, mount: &BucketMount, process: &mut Option<Rclone>, is_used: bool) -> Next {
        if is_used {
            mount.state().idle_since = None;
            return Next::Nothing;
        }
        let idle = mount.state().idle_since.get_or_insert_with(Instant::now).elapsed();
        if let Some(rest) = GRACE.checked_sub(idle).filter(|rest| !rest.is_zero()) {
            return Next::Wait(rest);
        }
        match process.as_ref().map(Rclone::uploads) {
            Some(Ok(0)) => {
                let ended = process.take();
                self.clear(&mount.id, ended);
                Next::Forget
            }
            // It goes on until the bucket has everything.
            _ => Next::Wait(UPLOAD_PAUSE),
        }
    }

    /// Forgets an ended mount, unless it is used again by now.
    fn drop_unused(&self, mount: &Arc<BucketMount>) {
        if unsent::is_any(&self.cache(&mount.id)) {
            // Its record stays, so that a look or the next start completes it.
            self.changed.notify_one();
            return;
        }
        let mut mounts = self.mounts();
        if mount.state().uses == 0 {
            mounts.remove(&mount.id);
            process::forget(&self.data_dir, &mount.id);
        }
    }

    /// Ends mounts that no sandbox has, before the server stops. What is not uploaded in time is uploaded after the next start.
    pub(in crate::namespace) fn close(&self, used: &HashSet<VolumeId>) {
        let mounts: Vec<_> = self.mounts().values().filter(|mount| !used.contains(&mount.id)).cloned().collect();
        let deadline = Instant::now() + LAST_UPLOADS;
        for mount in mounts {
            let mut process = mount.process();
            while Instant::now() < deadline && process.as_ref().is_some_and(|process| process.uploads().is_ok_and(|n| n > 0)) {
                std::thread::sleep(Duration::from_millis(200));
            }
            if let Some(ended) = process.take() {
                self.clear(&mount.id, Some(ended));
            }
            if !unsent::is_any(&self.cache(&mount.id)) {
                process::forget(&self.data_dir, &mount.id);
            }
        }
        // It stays if a client runs on.
        self.cgroups.close();
    }
}

/// The pause before the next start, after this number of failures.
fn pause(failures: u32) -> Duration {
    RETRY[0].saturating_mul(1 << failures.min(6)).min(RETRY[1])
}
