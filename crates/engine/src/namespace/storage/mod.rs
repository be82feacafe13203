//! The copy-on-write pool of sandboxes' writable layers and of images.
//!
//! ```text
//!  data_dir/pool.img (sparse) ── loop device ── btrfs on data_dir/pool     StorageKind::BtrfsSimpleQuota | BtrfsQgroups
//!  data_dir on a btrfs that counts quotas already ── data_dir/subvolumes   the same kinds
//!  neither ── data_dir/plain                                               StorageKind::Plain: no disk limit, and it says why
//!
//!  root/uppers/<id>/upper   the overlay's upper directory   (root/uppers/<id> is a subvolume with a quota)
//!  root/uppers/<id>/work    the overlay's work directory
//!  root/uppers/<id>/unused  exists until a guest starts on it
//!  root/processes/          images of processes (`processes`)
//!  root/volumes/            tenants' volumes (`volumes`)
//!  root/trash/              plain layers and volumes that are being removed
//! ```
//!
//! The mount outlives the server while there are sandboxes, and the next start finds it by the file system's UUID. Without
//! sandboxes, its last user unmounts it.
//!
//! On the host, the pool is mounted `nosuid,nodev` and its top directory is closed to other users. Its files carry the ids that
//! sandboxes gave them, so a sandbox's set-uid root program is one on disk, too.
//!
//! A btrfs of the host without quotas is left unchanged: simple quotas make a file system unmountable for older kernels. It
//! gets a pool image like any other file system, without copy-on-write for that file.

mod commits;
mod error;
mod guard;
mod mark;
mod pool;
mod processes;
mod states;
mod tree;
mod volumes;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use arenite_isolation::{btrfs, kernel_file};
use arenite_model::SandboxId;
use rustix::fs::{FlockOperation, flock, fstatfs, statvfs};
use serde::Serialize;

pub use self::commits::Commit;
use self::commits::Commits;
pub use self::error::StorageError;
use self::guard::{Guard, Watched};
pub use self::mark::LayerUse;
pub(super) use self::pool::{has_mount, mounted_data_dirs};
pub(super) use self::tree::open as open_dir;
use super::record;

/// Settings of the storage.
#[derive(Debug, Clone, Default)]
pub struct StorageConfig {
    /// Size of a new pool, in bytes; a larger number than an existing pool's grows it. None: 80 % of the free space for a new
    /// pool, at most 256 GiB.
    pub size_bytes: Option<u64>,
    pub mode: PoolMode,
    /// Free bytes of the host's file system below which sandboxes' writes are held, so that the pool stays intact. None: they
    /// are not held, and nothing watches.
    pub floor_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PoolMode {
    /// A pool if one can be created, otherwise plain directories with the reason reported.
    #[default]
    Auto,
    /// Plain directories.
    Off,
}

/// The kind of storage, which determines whether disk limits are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    BtrfsSimpleQuota,
    /// Enforced limits, but snapshots and deletions cost several times as much: a kernel before 6.7.
    BtrfsQgroups,
    /// No disk limit.
    Plain,
}

impl StorageKind {
    pub fn disk_limit_enforced(self) -> bool {
        self != Self::Plain
    }
}

type Result<T> = std::result::Result<T, StorageError>;

/// Maximum number of listed layer ids; more than a host holds sandboxes.
const MAX_LAYERS: usize = 100_000;
const MAX_NAME: usize = 64;

/// The storage of one data directory. Its calls are quick but block; [`Storage::open`], [`Storage::snapshot`] and the
/// deletion of plain layers may take seconds.
#[derive(Debug)]
pub struct Storage {
    root: PathBuf,
    data_dir: PathBuf,
    kind: StorageKind,
    /// The kernel's directory of this file system's quota groups.
    qgroups: Option<PathBuf>,
    /// True when the root is a mount of ours.
    mounted: bool,
    notes: Vec<String>,
    discarded: AtomicU64,
    /// Protects the pool from a full disk.
    guard: Option<Guard>,
    /// Shared by all processes that use the storage: a server, a build, commands.
    users: Option<File>,
    /// None: the storage is plain.
    commits: Option<Arc<Commits>>,
}

impl Storage {
    /// Opens or creates the storage of `data_dir`: an already mounted pool (the server was killed), the image of one (the host
    /// was restarted), or a new one.
    ///
    /// # Errors
    /// If an existing pool can't be mounted; it is never replaced.
    pub fn open(data_dir: &Path, config: &StorageConfig) -> Result<Self> {
        fs::create_dir_all(data_dir).map_err(StorageError::io(format!("make {}", data_dir.display())))?;
        let data_dir = data_dir.canonicalize().map_err(StorageError::io(format!("resolve {}", data_dir.display())))?;
        // Two concurrent servers must not both mount or create the pool.
        let lock = File::open(&data_dir).map_err(StorageError::io(format!("open {}", data_dir.display())))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| StorageError::io(format!("lock {}", data_dir.display()))(e.into()))?;
        let mut storage = Self::find_or_make(data_dir, config, &lock)?;
        storage.users = storage.mounted.then(|| join_users(&storage.data_dir)).transpose()?;
        make_directory(&storage.root.join("uppers"), 0o700)?;
        make_directory(&storage.root.join("snapshots"), 0o700)?;
        storage.make_volumes_directory()?;
        if let Some(kernel) = storage.qgroups.as_deref().and_then(Path::parent) {
            storage.commits = Some(Arc::new(Commits::new(&storage.root, kernel)));
        }
        storage.guard = storage.start_guard(config.floor_bytes)?;
        storage.empty_trash();
        storage.remove_stale_qgroups();
        Ok(storage)
    }

    fn find_or_make(data_dir: PathBuf, config: &StorageConfig, lock: &File) -> Result<Self> {
        let plain = data_dir.join("plain");
        let mut notes = Vec::new();
        if config.mode == PoolMode::Off {
            notes.push("disk limits are not enforced: the pool is turned off".to_owned());
            return Self::plain(data_dir, plain, notes);
        }
        if pool::exists(&data_dir)? {
            return Self::pool(data_dir, config, notes);
        }
        if plain.exists() {
            notes.push(format!(
                "disk limits are not enforced: {} was set up with plain directories; remove {} to have a pool made",
                data_dir.display(),
                plain.display()
            ));
            return Self::plain(data_dir, plain, notes);
        }
        if let Some(kind) = counted_btrfs(lock) {
            let root = data_dir.join("subvolumes");
            make_directory(&root, 0o700)?;
            return Ok(Self {
                qgroups: qgroup_directory(lock).ok(),
                root,
                data_dir,
                kind,
                mounted: false,
                notes,
                discarded: AtomicU64::new(0),
                guard: None,
                users: None,
                commits: None,
            });
        }
        match pool::make_image(&data_dir, config.size_bytes) {
            Ok(()) => match Self::pool(data_dir.clone(), config, notes) {
                Err(error) => {
                    // Nothing is in it yet; a host that can't mount it would fail at every later start.
                    pool::remove_image(&data_dir);
                    Self::without_pool(data_dir, plain, &error)
                }
                made => made,
            },
            Err(error) => Self::without_pool(data_dir, plain, &error),
        }
    }

    fn pool(data_dir: PathBuf, config: &StorageConfig, mut notes: Vec<String>) -> Result<Self> {
        let root = pool::mount(&data_dir, config.size_bytes, &mut notes)?;
        if pool::is_read_only(&root) {
            return Err(StorageError::ReadOnly { data_dir });
        }
        let top = open_directory(&root)?;
        let kind = enable_quotas(&top).inspect_err(|_| {
            let _ = pool::unmount(&root);
        })?;
        if kind == StorageKind::BtrfsQgroups {
            notes.push(
                "disk limits use classic quota groups, which slow snapshots and deletions: simple quotas need kernel 6.7"
                    .to_owned(),
            );
        }
        Ok(Self {
            qgroups: Some(qgroup_directory(&top)?),
            root,
            data_dir,
            kind,
            mounted: true,
            notes,
            discarded: AtomicU64::new(0),
            guard: None,
            users: None,
            commits: None,
        })
    }

    fn without_pool(data_dir: PathBuf, plain: PathBuf, error: &StorageError) -> Result<Self> {
        let mut note = format!("disk limits are not enforced: no pool could be made: {error}");
        if let Some(hint) = error.hint() {
            note = format!("{note}; {hint}");
        }
        Self::plain(data_dir, plain, vec![note])
    }

    fn plain(data_dir: PathBuf, root: PathBuf, notes: Vec<String>) -> Result<Self> {
        make_directory(&root, 0o700)?;
        Ok(Self {
            root,
            data_dir,
            kind: StorageKind::Plain,
            qgroups: None,
            mounted: false,
            notes,
            discarded: AtomicU64::new(0),
            guard: None,
            users: None,
            commits: None,
        })
    }

    /// Unmounts the pool, and thus frees its loop device, if nothing uses it: no other process that opened it, no sandbox. Call
    /// it last; to use the storage again, reopen it.
    pub fn release(&self) {
        if let Some(guard) = &self.guard {
            guard.stop();
        }
        let Some(users) = &self.users else { return };
        // No other process may open the pool during this check.
        let Ok(lock) = File::open(&self.data_dir) else { return };
        let alone =
            flock(&lock, FlockOperation::LockExclusive).is_ok() && flock(users, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _held = self.commits.as_deref().map(Commits::hold);
        if alone
            && !self.has_sandboxes()
            && let Err(error) = pool::unmount(&self.root)
        {
            tracing::warn!(%error, "the storage pool stays mounted; the next start uses it again");
        }
        let _ = flock(users, FlockOperation::Unlock);
    }

    /// Allocates what the pool's metadata needs, and starts to watch the disk.
    fn start_guard(&self, floor: Option<u64>) -> Result<Option<Guard>> {
        let (true, Some(qgroups)) = (self.mounted, &self.qgroups) else { return Ok(None) };
        let image = pool::image(&self.data_dir);
        let Some(floor) = floor else {
            if let Err(error) = guard::reserve_metadata(&self.root, &image, &mut Vec::new()) {
                tracing::warn!(%error, "a full disk could break the storage pool");
            }
            return Ok(None);
        };
        let watched =
            Watched { root: self.root.clone(), image, data_dir: self.data_dir.clone(), qgroups: qgroups.clone(), floor };
        Guard::start(watched).map(Some)
    }

    /// Checks that the pool accepts writes.
    ///
    /// # Errors
    /// If the pool is read-only or its writes are blocked. The check for blocked writes takes a moment.
    pub fn check_writable(&self) -> Result<()> {
        if self.mounted && pool::is_read_only(&self.root) {
            return Err(StorageError::ReadOnly { data_dir: self.data_dir.clone() });
        }
        match &self.guard {
            Some(guard) if guard.still_holds() => Err(StorageError::Held),
            _ => Ok(()),
        }
    }

    /// Why layers can't be created or written, as text without paths.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.mounted {
            problems.extend(pool::problem(&self.data_dir, &self.root));
        }
        if self.guard.as_ref().is_some_and(Guard::holds) {
            problems.push(StorageError::Held.to_string());
        }
        problems
    }

    /// Whether the engine has a record of any sandbox.
    fn has_sandboxes(&self) -> bool {
        record::has_sandboxes(&self.data_dir)
    }

    /// The top directory of the storage; images and their layers are on it too.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn kind(&self) -> StorageKind {
        self.kind
    }

    /// Notes for the operator, such as why disk limits are not enforced.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Creates the writable layer `id` with its directories `upper` and `work`, both owned by root, and returns its path.
    /// Beyond `limit_bytes` the layer's writes fail with `EDQUOT`, where [`StorageKind::disk_limit_enforced`].
    pub fn create_layer(&self, id: &SandboxId, limit_bytes: u64) -> Result<PathBuf> {
        let path = self.layer_path(id);
        if self.kind == StorageKind::Plain {
            DirBuilder::new().mode(0o700).create(&path).map_err(StorageError::io(format!("make layer {id}")))?;
        } else {
            btrfs::create_subvolume(self.uppers()?.as_fd(), id.as_str())
                .map_err(StorageError::io(format!("make subvolume {id}")))?;
        }
        let filled = self.fill_layer(id, &path, limit_bytes);
        if filled.is_err() {
            // The first error says more than one of the cleanup.
            let _ = self.delete_layer(id);
        }
        filled.map(|()| path)
    }

    fn fill_layer(&self, id: &SandboxId, path: &Path, limit_bytes: u64) -> Result<()> {
        self.set_limit(id, limit_bytes)?;
        make_directory(path, 0o700)?;
        make_directory(&path.join("upper"), 0o755)?;
        make_directory(&path.join("work"), 0o700)
    }

    /// Prepares the layer `id` for another overlay, with its content.
    pub fn reuse_layer(&self, id: &SandboxId) -> Result<PathBuf> {
        self.open_layer(id)?;
        let path = self.layer_path(id);
        // Left by the previous overlay: it was mounted `volatile`, which a directory marks that prevents other mounts.
        let work = path.join("work");
        tree::remove(&work).map_err(StorageError::io(format!("empty the work directory of layer {id}")))?;
        make_directory(&work, 0o700)?;
        Ok(path)
    }

    /// Changes the limit of a layer. Below its usage, every further write fails.
    pub fn set_limit(&self, id: &SandboxId, limit_bytes: u64) -> Result<()> {
        if self.kind == StorageKind::Plain {
            return Ok(());
        }
        btrfs::limit(self.open_layer(id)?.as_fd(), limit_bytes).map_err(StorageError::io(format!("limit layer {id}")))
    }

    /// The layer's size in bytes, including its metadata; none if the storage can't tell.
    pub fn usage(&self, id: &SandboxId) -> Option<u64> {
        self.usage_of(&self.open_layer(id).ok()?)
    }

    fn usage_of(&self, inside: &File) -> Option<u64> {
        let qgroups = self.qgroups.as_ref()?;
        let subvolume = btrfs::subvolume_id(inside.as_fd()).ok()?;
        read_number(&qgroups.join(format!("0_{subvolume}/referenced")))
    }

    /// Removes a layer, if it exists. Its space is freed a little later.
    pub fn delete_layer(&self, id: &SandboxId) -> Result<()> {
        self.delete_tree("uppers", id.as_str(), &format!("delete layer {id}"))
    }

    /// Removes the subvolume or directory `name` of a directory of the storage, if it exists.
    fn delete_tree(&self, directory: &str, name: &str, what: &str) -> Result<()> {
        let parent = self.root.join(directory);
        let path = parent.join(name);
        if self.kind == StorageKind::Plain {
            let trash = self.root.join("trash");
            make_directory(&trash, 0o700)?;
            let n = self.discarded.fetch_add(1, Ordering::Relaxed);
            let discarded = trash.join(format!("{name}.{}.{n}", std::process::id()));
            return match fs::rename(&path, &discarded) {
                Ok(()) => tree::remove(&discarded).map_err(StorageError::io(what)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(e) => Err(StorageError::io(what)(e)),
            };
        }
        let parent = open_directory(&parent)?;
        let deleted = match btrfs::delete_subvolume(parent.as_fd(), name) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tree::remove_contents(&path).and_then(|()| btrfs::delete_subvolume(parent.as_fd(), name))
            }
            other => other,
        };
        self.deleted(deleted, what)
    }

    /// The result of deleting a subvolume, which may not exist. What it held is freed soon.
    fn deleted(&self, deleted: io::Result<()>, what: &str) -> Result<()> {
        match deleted {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => {
                if let Some(commits) = &self.commits {
                    commits.free_soon();
                }
                other.map_err(StorageError::io(what))
            }
        }
    }

    /// The ids of all layers, sorted; at most 100,000.
    pub fn list_layers(&self) -> Result<Vec<SandboxId>> {
        let uppers = self.root.join("uppers");
        let what = || format!("list {}", uppers.display());
        let mut ids = Vec::new();
        for entry in fs::read_dir(&uppers).map_err(StorageError::io(what()))? {
            let name = entry.map_err(StorageError::io(what()))?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
            if ids.len() == MAX_LAYERS {
                break;
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Creates the snapshot `root/snapshots/<name>` of the layer `id` and returns its path. The cost does not depend on the
    /// layer's size. The snapshot has everything that the layer's processes wrote before. Waits for the disk.
    ///
    /// # Errors
    /// `Unsupported` on plain storage.
    pub fn snapshot(&self, id: &SandboxId, name: &str, read_only: bool) -> Result<PathBuf> {
        check_name(name)?;
        let what = || format!("snapshot layer {id} as {name}");
        if self.kind == StorageKind::Plain {
            return Err(StorageError::io(what())(io::Error::new(
                io::ErrorKind::Unsupported,
                "plain directories have no snapshots",
            )));
        }
        let layer = self.open_layer(id)?;
        let snapshots = self.root.join("snapshots");
        btrfs::snapshot(layer.as_fd(), open_directory(&snapshots)?.as_fd(), name, read_only).map_err(StorageError::io(what()))?;
        Ok(snapshots.join(name))
    }

    /// Removes a snapshot, if it exists.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let snapshots = open_directory(&self.root.join("snapshots"))?;
        self.deleted(btrfs::delete_subvolume(snapshots.as_fd(), name), &format!("delete snapshot {name}"))
    }

    /// Begins to commit what was written before, except cached content of files, so that the next snapshot has less to write.
    pub fn begin_commit(&self) -> Commit {
        self.commits.as_ref().map_or(Commit::NONE, Commits::begin)
    }

    /// Bytes that can still be written, and the storage's size. A pool's image is sparse, so free space of the host's disk
    /// counts as well.
    pub fn free(&self) -> Result<(u64, u64)> {
        let (available, total) = space(&self.root)?;
        let (host_available, _) = space(&self.data_dir)?;
        Ok((available.min(host_available), total))
    }

    /// Writes everything to disk and frees the space of deleted layers soon, rather than within a minute. Waits for the disk;
    /// call it when [`Self::free`] returns too little.
    pub fn settle(&self) -> Result<()> {
        if self.kind == StorageKind::Plain {
            return Ok(());
        }
        btrfs::sync(open_directory(&self.root)?.as_fd()).map_err(StorageError::io("sync the pool"))
    }

    /// Unmounts the pool, for tests and for the removal of an installation. Fails while sandboxes use it.
    pub fn unmount(&self) -> Result<()> {
        if self.mounted {
            let _held = self.commits.as_deref().map(Commits::hold);
            pool::unmount(&self.root)?;
        }
        Ok(())
    }

    pub(super) fn layer_path(&self, id: &SandboxId) -> PathBuf {
        self.root.join("uppers").join(id.as_str())
    }

    fn uppers(&self) -> Result<File> {
        open_directory(&self.root.join("uppers"))
    }

    fn open_layer(&self, id: &SandboxId) -> Result<File> {
        match open_directory(&self.layer_path(id)) {
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(StorageError::NoLayer { id: id.clone() })
            }
            other => other,
        }
    }

    /// Removes plain layers that an interrupted removal left.
    fn empty_trash(&self) {
        let trash = self.root.join("trash");
        if trash.exists() {
            let spawned = thread::Builder::new().name("trash".to_owned()).spawn(move || tree::remove_contents(&trash));
            if let Err(error) = spawned {
                tracing::warn!(%error, "discarded layers stay until the next start");
            }
        }
    }

    /// Removes quota groups that kernels before 6.11 leave after the deletion of a subvolume. An existing subvolume never
    /// counts 0: its root alone takes a block.
    fn remove_stale_qgroups(&self) {
        let (Some(qgroups), Ok(top)) = (&self.qgroups, open_directory(&self.root)) else {
            return;
        };
        for entry in fs::read_dir(qgroups).into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|n| n.strip_prefix("0_")).and_then(|n| n.parse::<u64>().ok());
            if let Some(id) = id.filter(|id| *id >= btrfs::SUBVOLUME_INODE)
                && read_number(&entry.path().join("referenced")) == Some(0)
                && let Err(error) = btrfs::remove_qgroup(top.as_fd(), id)
            {
                tracing::debug!(%error, id, "a stale quota group stays");
            }
        }
    }
}

/// Unmounts the pool of `data_dir` and waits until its loop device is free. Returns descriptions of what was done.
///
/// # Errors
/// [`StorageError::Used`] if processes outside of sandboxes keep it.
pub(super) fn detach(data_dir: &Path) -> Result<Vec<String>> {
    let lock = join_users(data_dir)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|e| StorageError::io("lock the pool, which another arenite command uses")(e.into()))?;
    pool::detach(data_dir)
}

/// Takes the pool of `data_dir` off the host for good, also one with a missing image. What was done, in words.
pub(super) fn remove_pool_mount(data_dir: &Path) -> Result<Vec<String>> {
    if pool::image(data_dir).exists() { detach(data_dir) } else { pool::unmount_all(data_dir) }
}

/// Removes a file, a link or a directory with all that sandboxes left in it. Links are not followed.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    // On a btrfs of the host's: a read-only snapshot can't be emptied.
    for parent in ["uppers", "snapshots", volumes::DIRECTORY].map(|name| path.join(name)) {
        let Ok(directory) = File::open(&parent) else { continue };
        for entry in fs::read_dir(&parent)?.flatten() {
            if let Some(name) = entry.file_name().to_str() {
                // What is no subvolume is removed below.
                let _ = btrfs::delete_subvolume(directory.as_fd(), name);
            }
        }
    }
    tree::remove(path)
}

/// Removes the content of an open directory.
///
/// # Errors
/// `TimedOut` if something still fills it at that time.
pub(crate) fn remove_contents_until(directory: &OwnedFd, until: Instant) -> io::Result<()> {
    tree::remove_contents_until(directory, until)
}

fn join_users(data_dir: &Path) -> Result<File> {
    let path = data_dir.join("pool.lock");
    let what = || format!("lock {}", path.display());
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(StorageError::io(what()))?;
    flock(&file, FlockOperation::LockShared).map_err(|e| StorageError::io(what())(e.into()))?;
    Ok(file)
}

/// The kind of a data directory on a btrfs with quotas that the host enabled.
fn counted_btrfs(data_dir: &File) -> Option<StorageKind> {
    if !is_btrfs(data_dir) {
        return None;
    }
    quota_mode(&qgroup_directory(data_dir).ok()?)
}

fn is_btrfs(directory: &File) -> bool {
    fstatfs(directory).is_ok_and(|s| u64::try_from(s.f_type).is_ok_and(|magic| magic == btrfs::MAGIC))
}

fn enable_quotas(top: &File) -> Result<StorageKind> {
    let qgroups = qgroup_directory(top)?;
    if let Some(kind) = quota_mode(&qgroups) {
        return Ok(kind);
    }
    match btrfs::enable_simple_quotas(top.as_fd()) {
        Ok(()) => Ok(StorageKind::BtrfsSimpleQuota),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            btrfs::enable_qgroups(top.as_fd()).map_err(StorageError::io("enable quota groups"))?;
            Ok(StorageKind::BtrfsQgroups)
        }
        Err(e) => Err(StorageError::io("enable simple quotas")(e)),
    }
}

fn quota_mode(qgroups: &Path) -> Option<StorageKind> {
    if read_number(&qgroups.join("enabled")) != Some(1) {
        return None;
    }
    // Kernels before 6.7 have no such file, and classic quota groups only.
    Some(match fs::read_to_string(qgroups.join("mode")) {
        Ok(mode) if mode.trim() == "squota" => StorageKind::BtrfsSimpleQuota,
        _ => StorageKind::BtrfsQgroups,
    })
}

fn qgroup_directory(inside: &File) -> Result<PathBuf> {
    let id = btrfs::file_system_id(inside.as_fd()).map_err(StorageError::io("ask for the file system's id"))?;
    Ok(Path::new("/sys/fs/btrfs").join(uuid(&id)).join("qgroups"))
}

fn uuid(id: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in id.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn read_number(path: &Path) -> Option<u64> {
    kernel_file::read(path).ok()?.trim().parse().ok()
}

fn space(path: &Path) -> Result<(u64, u64)> {
    let s = statvfs(path).map_err(|e| StorageError::io(format!("ask for the space on {}", path.display()))(e.into()))?;
    Ok((s.f_bavail * s.f_frsize, s.f_blocks * s.f_frsize))
}

fn check_name(name: &str) -> Result<()> {
    let is_valid =
        !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if is_valid { Ok(()) } else { Err(StorageError::BadName { name: name.to_owned() }) }
}

fn open_directory(path: &Path) -> Result<File> {
    File::open(path).map_err(StorageError::io(format!("open {}", path.display())))
}

/// Creates a directory with exactly this mode, with any umask, if it doesn't exist.
fn make_directory(path: &Path, mode: u32) -> Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    }
    .map_err(StorageError::io(format!("make {}", path.display())))
}
