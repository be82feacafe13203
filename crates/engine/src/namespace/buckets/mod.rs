//! Volumes in S3-compatible buckets: rclone mounts each by FUSE, outside sandboxes, and sandboxes get that mount.
//!
//! ```text
//!            first use                     no use for a while, and all is uploaded
//! (nothing) ──────────► mounted by rclone ─────────────────────────────────────────► (nothing)
//!                         ▲        │ rclone ends by itself
//!                         └────────┘ it is started again, and sandboxes get the new mount
//!
//!  root/volumes/<id>            rclone's cache: what is not uploaded yet; the volume's size bounds it
//!  root/volumes/<id>.bucket     the bucket's name and the folder in it
//!  data_dir/buckets/<id>        the mount point
//!  data_dir/buckets/<id>.json   the process; removed after a clean end, so that a start knows what to complete
//!  data_dir/buckets/user        the host's user that runs rclone
//! ```
//!
//! This process mounts FUSE itself and leaves the device to rclone as its standard output, so rclone needs no rights: it runs as
//! a user that owns nothing but the cache. Credentials are in a file beside that, while it runs. It outlives the server, as
//! sandboxes do, and the next start adopts it.

mod client;
mod error;
mod look;
mod process;
mod store;
mod unsent;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use arenite_isolation::cgroup::Cgroups;
use arenite_model::VolumeId;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

pub use self::client::find_rclone;
pub use self::error::BucketError;
use self::error::of_storage;
pub(super) use self::process::end_everything;
use self::process::{Questions, Rclone};
pub use self::store::BucketStore;
use super::slot::{IdRanges, wait_end};
use super::storage::Storage;

/// Time from the start of a client to the first answer of its mount.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For how long the result of a look at a bucket is given again.
const LOOK_AGE: Duration = Duration::from_secs(2);

type Result<T> = std::result::Result<T, BucketError>;

/// Where a volume's objects are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    /// The name that the operator declared.
    pub bucket: String,
    /// Below the declared prefix, without slashes at its ends.
    pub folder: String,
}

/// What is known of a volume in a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketFacts {
    /// Why it can't be read or written now.
    pub problem: Option<String>,
    /// Files that wait for their upload, or are being uploaded; none: unknown.
    pub waiting_uploads: Option<u64>,
}

/// The declared buckets, and the volumes that are mounted. Its calls block.
#[derive(Debug)]
pub struct Buckets {
    declared: BTreeMap<String, PathBuf>,
    rclone: Option<PathBuf>,
    data_dir: PathBuf,
    storage: Arc<Storage>,
    cgroups: Cgroups,
    ids: Arc<IdRanges>,
    user: Mutex<Option<u32>>,
    mounts: Mutex<HashMap<VolumeId, Arc<BucketMount>>>,
    /// A use has ended or a process was started.
    pub(super) changed: Notify,
}

/// A volume that is mounted, or is to be.
#[derive(Debug)]
struct BucketMount {
    id: VolumeId,
    /// Held during a start and an end.
    process: Mutex<Option<Rclone>>,
    state: Mutex<MountState>,
}

#[derive(Debug, Default)]
struct MountState {
    /// Creates of sandboxes and calls that have it now.
    uses: usize,
    idle_since: Option<Instant>,
    /// Failed starts, and when the next one is due.
    failures: u32,
    next_start: Option<Instant>,
    looked: Option<(Instant, Option<String>)>,
    /// Sandboxes have a former mount of it.
    is_remounted: bool,
    /// A thread waits for its first answer.
    is_awaited: bool,
}

/// A use of a mounted volume. It stays mounted until this is dropped, and a little longer.
#[derive(Debug)]
pub struct BucketUse {
    buckets: Arc<Buckets>,
    mount: Arc<BucketMount>,
}

impl Drop for BucketUse {
    fn drop(&mut self) {
        self.mount.state().uses -= 1;
        self.buckets.changed.notify_one();
    }
}

impl BucketMount {
    fn new(id: &VolumeId, state: MountState) -> Arc<Self> {
        Arc::new(Self { id: id.clone(), process: Mutex::default(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, MountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How to ask its process, unless that is being started or ended.
    fn questions(&self) -> Option<Questions> {
        self.process.try_lock().ok()?.as_ref().map(Rclone::questions)
    }

    fn process(&self) -> MutexGuard<'_, Option<Rclone>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Buckets`] needs of its host.
pub(super) struct BucketsConfig {
    pub(super) declared: BTreeMap<String, PathBuf>,
    pub(super) rclone: Option<PathBuf>,
    pub(super) data_dir: PathBuf,
    pub(super) storage: Arc<Storage>,
    pub(super) cgroups: Cgroups,
    pub(super) ids: Arc<IdRanges>,
}

impl Buckets {
    pub(super) fn new(config: BucketsConfig) -> Self {
        let BucketsConfig { declared, rclone, data_dir, storage, cgroups, ids } = config;
        let user = fs::read_to_string(data_dir.join(DIRECTORY).join(USER)).ok().and_then(|text| text.trim().parse().ok());
        if let Some(user) = user {
            ids.adopt(user);
        }
        Self {
            declared,
            rclone,
            data_dir,
            storage,
            cgroups,
            ids,
            user: Mutex::new(user),
            mounts: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn mounts(&self) -> MutexGuard<'_, HashMap<VolumeId, Arc<BucketMount>>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a volume's objects are. None: it is not in a bucket.
    pub fn backing(&self, id: &VolumeId) -> Option<Backing> {
        serde_json::from_str(&self.storage.volume_backing(id)?).ok()
    }

    /// The declared bucket.
    fn store(&self, name: &str) -> Result<BucketStore> {
        let file = self
            .declared
            .get(name)
            .ok_or_else(|| BucketError::Unknown { name: name.to_owned(), known: self.declared.keys().cloned().collect() })?;
        BucketStore::read(file).map_err(|reason| BucketError::File { name: name.to_owned(), reason })
    }

    /// Checks that a bucket is declared, and that it can be mounted here.
    pub fn check(&self, name: &str) -> Result<()> {
        self.store(name)?;
        self.client().map(drop)
    }

    /// Makes an existing, empty volume one in a bucket: creates its folder there.
    ///
    /// # Errors
    /// [`BucketError::Unreachable`] if the bucket does not accept it. The volume is unchanged then.
    pub fn create(&self, id: &VolumeId, backing: &Backing) -> Result<()> {
        let store = self.store(&backing.bucket)?;
        self.client()?.make_folder(&store, backing)?;
        let text = serde_json::to_string(backing).map_err(|error| BucketError::host("describe a volume")(error.into()))?;
        self.storage.write_volume_backing(id, &text).map_err(of_storage)
    }

    /// Mounts a volume unless it is mounted, and opens its top directory.
    pub fn open_volume(self: &Arc<Self>, id: &VolumeId) -> Result<(OwnedFd, BucketUse)> {
        let mount = {
            let mut mounts = self.mounts();
            let mount = mounts.entry(id.clone()).or_insert_with(|| BucketMount::new(id, MountState::default()));
            // Before the lock is released, so that it is not unmounted in between.
            let mut state = mount.state();
            (state.uses, state.idle_since) = (state.uses + 1, None);
            drop(state);
            Arc::clone(mount)
        };
        let held = BucketUse { buckets: Arc::clone(self), mount: Arc::clone(&mount) };
        let mut process = mount.process();
        if process.as_ref().is_none_or(Rclone::has_ended) {
            if process.is_some() || process::is_mounted(&self.mount_point(id)) {
                self.clear(id, process.take());
                mount.state().is_remounted = true;
            }
            *process = Some(self.start(id)?);
            self.changed.notify_one();
        }
        let (pidfd, is_ready) = process
            .as_ref()
            .map(|process| (process.pidfd.clone(), process.is_ready.clone()))
            .ok_or_else(|| BucketError::host(format!("mount volume {id}"))(io::ErrorKind::NotConnected.into()))?;
        drop(process);
        let top = self.open_top(&mount, &pidfd, &is_ready).map_err(|source| self.explain_mount(id, source))?;
        Ok((top, held))
    }

    /// Opens the top of a mount. The kernel waits for a process that starts, without a limit, so another thread does that: a
    /// client looks first for all files that wait for their upload, which takes long while the bucket does not answer.
    fn open_top(&self, mount: &Arc<BucketMount>, pidfd: &OwnedFd, is_ready: &Arc<AtomicBool>) -> io::Result<OwnedFd> {
        let point = self.mount_point(&mount.id);
        if is_ready.load(Ordering::Acquire) {
            return process::open_top(&point);
        }
        if std::mem::replace(&mut mount.state().is_awaited, true) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (sender, receiver) = mpsc::channel();
        let (waiting, is_ready) = (Arc::clone(mount), Arc::clone(is_ready));
        let waiter = std::thread::Builder::new().name("bucket".to_owned()).spawn(move || {
            let opened = process::open_top(&point);
            is_ready.store(opened.is_ok(), Ordering::Release);
            waiting.state().is_awaited = false;
            // Nobody waits any more, if this fails.
            let _ = sender.send(opened);
        });
        if let Err(error) = waiter {
            mount.state().is_awaited = false;
            return Err(error);
        }
        match receiver.recv_timeout(START_LIMIT) {
            Ok(opened) => opened,
            Err(_) if wait_end(pidfd, Duration::ZERO) => Err(io::ErrorKind::NotConnected.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// What is known of a volume. With `look`, its bucket is asked, if that was not done just before; this waits for some seconds
    /// if the bucket is gone.
    pub fn facts(&self, id: &VolumeId, look: bool) -> BucketFacts {
        let Some(backing) = self.backing(id) else { return BucketFacts::default() };
        let store = match self.store(&backing.bucket) {
            Ok(store) => store,
            Err(error) => return BucketFacts { problem: Some(error.to_string()), waiting_uploads: None },
        };
        let mount = self.mounts().get(id).cloned();
        let Some(mount) = mount else {
            let problem = if look { self.look(&store, &backing) } else { None };
            return BucketFacts { problem, waiting_uploads: Some(unsent::count(&self.cache(id))) };
        };
        let known = mount.state().looked.clone().filter(|(at, _)| at.elapsed() < LOOK_AGE || !look);
        let problem = match known {
            Some((_, problem)) => problem,
            None if look => {
                let problem = self.look(&store, &backing).or_else(|| self.problem_of_uploads(&mount, &backing));
                mount.state().looked = Some((Instant::now(), problem.clone()));
                problem
            }
            None => None,
        };
        let uploads = mount.questions().and_then(|questions| questions.uploads().ok());
        BucketFacts { problem, waiting_uploads: uploads.or_else(|| Some(unsent::count(&self.cache(id)))) }
    }

    /// A bucket that can be listed may still refuse uploads.
    fn problem_of_uploads(&self, mount: &BucketMount, backing: &Backing) -> Option<String> {
        let failed = mount.questions()?.failed_uploads().ok().filter(|failed| *failed > 0)?;
        let reason = process::last_error(&self.cache(&mount.id)).unwrap_or_else(|| "no message".to_owned());
        Some(format!("the bucket {} has refused {failed} files, and their uploads are repeated: {reason}", backing.bucket))
    }

    fn look(&self, store: &BucketStore, backing: &Backing) -> Option<String> {
        self.client().and_then(|client| client.look(store, backing)).err().map(|error| error.to_string())
    }

    /// Removes all objects of a volume, after its mount has ended without an upload of what waits. Fine to repeat.
    ///
    /// # Errors
    /// [`BucketError::Unreachable`]: objects may be left. [`BucketError::InUse`] during a use.
    pub fn remove_objects(&self, id: &VolumeId) -> Result<()> {
        let Some(backing) = self.backing(id) else { return Ok(()) };
        self.forget(id)?;
        let store = self.store(&backing.bucket)?;
        self.client()?.remove_folder(&store, &backing)
    }

    /// Ends the mount of a volume that is being removed.
    pub fn forget(&self, id: &VolumeId) -> Result<()> {
        let mount = {
            let mut mounts = self.mounts();
            let used = mounts.get(id).is_some_and(|mount| mount.state().uses > 0);
            if used {
                return Err(BucketError::InUse { id: id.clone() });
            }
            mounts.remove(id)
        };
        let process = mount.and_then(|mount| mount.process().take());
        self.clear(id, process);
        process::forget(&self.data_dir, id);
        Ok(())
    }

    /// Processes that are watched for their end.
    pub(super) fn running(&self) -> Vec<Arc<OwnedFd>> {
        let mounts: Vec<_> = self.mounts().values().cloned().collect();
        let pidfd = |mount: &Arc<BucketMount>| mount.process.try_lock().ok()?.as_ref().map(|process| process.pidfd.clone());
        mounts.iter().filter_map(pidfd).collect()
    }

    fn mount_point(&self, id: &VolumeId) -> PathBuf {
        self.data_dir.join(DIRECTORY).join(id.as_str())
    }

    fn cache(&self, id: &VolumeId) -> PathBuf {
        self.storage.volume_path(id)
    }

    /// An error of a mount, with what the client wrote last.
    fn explain_mount(&self, id: &VolumeId, source: io::Error) -> BucketError {
        let name = self.backing(id).map_or_else(|| id.to_string(), |backing| backing.bucket);
        let late = || (source.kind() == io::ErrorKind::TimedOut).then(|| "its client has not answered yet".to_owned());
        match process::last_error(&self.cache(id)).or_else(late) {
            Some(reason) => BucketError::Unreachable { name, reason },
            None => BucketError::host(format!("open the mount of volume {id}"))(source),
        }
    }
}

/// Below the data directory.
const DIRECTORY: &str = "buckets";
const USER: &str = "user";

fn make_private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
