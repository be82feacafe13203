//! Resources that all sandboxes of an installation share: the launcher, cgroups, storage, networks, ids, images.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arenite_image::ImageStore;
use arenite_isolation::cgroup::{Cgroups, Layout};
use arenite_isolation::launcher::Launcher;
use arenite_isolation::mounts::{self, Attributes};
use arenite_model::{Resources, SandboxId, Tier};

use super::buckets::{Buckets, BucketsConfig};
use super::ceilings;
use super::data_dir;
use super::gvisor;
use super::lock::{ServerLock, for_build};
use super::network::{Network, NetworkConfig};
use super::program::Program;
use super::record::Records;
use super::slot::{IdRanges, cgroup, kill, wait_end};
use super::storage::{Storage, StorageConfig, StorageError};
use super::volumes::{self, Volume};
use crate::EngineError;

/// A launcher that delays a request for longer is reported as a problem. A little later it is replaced.
const SILENT_LIMIT: Duration = Duration::from_secs(1);
/// Timeout for freezing all processes of a sandbox.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// Interval between looks at cgroups that freeze: version 1 has no event for it.
const FREEZE_PAUSE: Duration = Duration::from_micros(200);

/// Settings of the namespace engine.
#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Directory of all persistent state: images, writable layers, records.
    pub data_dir: PathBuf,
    /// This program: it is started as `launcher` on the host and as `guest` in sandboxes.
    pub program: PathBuf,
    pub storage: StorageConfig,
    pub network: NetworkConfig,
    /// Number of prepared slots.
    pub prepared_slots: usize,
    /// Limits of prepared slots; other limits cost a little more at create.
    pub default_resources: Resources,
    /// Maximum number of open descriptors of a process in a sandbox.
    pub open_files: u64,
    /// PEM file of certificates that sandboxes trust, in addition to their image's.
    pub extra_ca: Option<PathBuf>,
    /// Host directories that sandboxes may mount, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// The tier of sandboxes that request none, unless their image has a VM.
    pub default_tier: Tier,
    /// gVisor's program; none: the one in `PATH`.
    pub runsc: Option<PathBuf>,
    /// Buckets for volumes, by name: the files that have their addresses and credentials.
    pub buckets: BTreeMap<String, PathBuf>,
    /// The program that mounts buckets; none: the one in `PATH`.
    pub rclone: Option<PathBuf>,
}

pub(super) struct Host {
    pub(super) config: NamespaceConfig,
    pub(super) records: Records,
    pub(super) storage: Arc<Storage>,
    pub(super) images: ImageStore,
    pub(super) cgroups: Cgroups,
    pub(super) ids: Arc<IdRanges>,
    /// Volumes in buckets.
    pub(super) buckets: Arc<Buckets>,
    /// This program, which is also the launcher and the guest.
    pub(super) program: Program,
    network: Option<Network>,
    launcher: Mutex<Arc<Launcher>>,
    /// Why the last launcher was given up, until another runs.
    launcher_fault: Mutex<Option<String>>,
    _lock: HeldLock,
}

/// How the process uses the data directory.
#[derive(Debug)]
pub(super) enum Role {
    Server(ServerLock),
    Build,
}

/// Held for the life of the process: one server for a data directory, and one build.
enum HeldLock {
    Server { _lock: ServerLock },
    Build { _file: File },
}

pub(crate) fn at(stage: &str, source: io::Error) -> EngineError {
    EngineError::Stage { stage: stage.to_owned(), source, hint: None }
}

/// Five letters and digits that mark the host's objects (cgroups, interfaces, tables) of one data directory.
pub(crate) fn tag(data_dir: &Path) -> String {
    // FNV-1a: short, stable across versions, and it need not be hard to guess.
    let hash = data_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    let digit = |n: u64| char::from_digit((n % 36) as u32, 36).expect("a digit below 36");
    (0..5)
        .scan(hash, |rest, _| {
            let d = digit(*rest);
            *rest /= 36;
            Some(d)
        })
        .collect()
}

impl Host {
    pub(super) async fn open(mut config: NamespaceConfig, role: Role) -> Result<Self, EngineError> {
        let host = |what: &str| {
            let what = what.to_owned();
            move |source| EngineError::Host { what, source }
        };
        if !rustix::process::geteuid().is_root() {
            return Err(EngineError::Unsupported {
                what: "the namespace engine".to_owned(),
                reason: "it needs the host's root, to map ids and make networks".to_owned(),
            });
        }
        config.data_dir = data_dir::open(&config.data_dir)?;
        volumes::check(&mut config.volumes, &config.data_dir)?;
        // A socket's path has at most 107 bytes.
        if config.data_dir.as_os_str().len() > 70 {
            return Err(EngineError::Unsupported {
                what: format!("the data directory {}", config.data_dir.display()),
                reason: "its path is longer than 70 bytes, too long for the sockets in it".to_owned(),
            });
        }
        let mark = tag(&config.data_dir);
        let (lock, prefix) = match role {
            Role::Server(lock) => (HeldLock::Server { _lock: lock }, cgroup_prefix(&mark)),
            Role::Build => (HeldLock::Build { _file: for_build(&config.data_dir)? }, build_cgroup_prefix(&mark)),
        };
        let cgroups = Layout::of_host().and_then(|layout| Cgroups::open(layout, &prefix)).map_err(cgroup)?;
        let storage = Storage::open(&config.data_dir, &config.storage).map_err(|e| EngineError::Stage {
            stage: "storage".to_owned(),
            hint: e.hint(),
            source: io::Error::other(e),
        })?;
        let images = ImageStore::open(storage.root().to_owned()).map_err(|e| EngineError::Stage {
            stage: "images".to_owned(),
            source: io::Error::other(e),
            hint: None,
        })?;
        let network = match lock {
            HeldLock::Build { .. } => None,
            HeldLock::Server { .. } => {
                ceilings::raise();
                config.network.tag = mark.clone();
                config.network.extra_ca = config.extra_ca.clone();
                let opened = Network::open(config.network.clone()).await;
                Some(opened.map_err(|e| EngineError::Stage {
                    stage: "network".to_owned(),
                    hint: e.hint(),
                    source: io::Error::other(e),
                })?)
            }
        };
        let program =
            Program::open(&config.program, config.data_dir.join("program")).map_err(host("could not open this program"))?;
        if matches!(lock, HeldLock::Server { .. })
            && let Err(error) = program.keep()
        {
            tracing::warn!(%error, "this program's file has no name in the data directory yet; the next create tries again");
        }
        let launcher = Self::start_launcher(&program)?;
        let storage = Arc::new(storage);
        let spread = mark.bytes().fold(0u32, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
        let ids = Arc::new(IdRanges::new(spread));
        let layout = Layout::of_host().map_err(cgroup)?;
        let buckets = Buckets::new(BucketsConfig {
            declared: config.buckets.clone(),
            rclone: config.rclone.clone(),
            data_dir: config.data_dir.clone(),
            storage: Arc::clone(&storage),
            cgroups: Cgroups::existing(layout, &bucket_cgroup_prefix(&mark)),
            ids: Arc::clone(&ids),
        });
        Ok(Self {
            buckets: Arc::new(buckets),
            records: Records::open(&config.data_dir).map_err(host("could not make the directories of records"))?,
            ids,
            launcher: Mutex::new(launcher),
            launcher_fault: Mutex::default(),
            config,
            storage,
            images,
            cgroups,
            program,
            network,
            _lock: lock,
        })
    }

    pub(super) fn network(&self) -> Result<&Network, EngineError> {
        self.network.as_ref().ok_or_else(|| at("network", io::Error::other("image builds use the host's")))
    }

    /// gVisor's program, as a mount of its file.
    pub(super) fn runsc(&self) -> Result<OwnedFd, EngineError> {
        let missing = |reason| at("gVisor", io::Error::new(io::ErrorKind::NotFound, reason));
        let path = gvisor::find_runsc(self.config.runsc.as_deref()).map_err(missing)?;
        let read_only = Attributes { read_only: true, ..Attributes::default() };
        path.canonicalize().and_then(|path| mounts::detached(&path, read_only)).map_err(|e| at("gVisor", e))
    }

    fn start_launcher(program: &Program) -> Result<Arc<Launcher>, EngineError> {
        Launcher::start(&program.held()).map(Arc::new).map_err(|error| EngineError::Stage {
            stage: "launcher".to_owned(),
            source: io::Error::other(error),
            hint: Some("arenite doctor says what this host lacks".to_owned()),
        })
    }

    /// The launcher; starts another if it has ended.
    pub(super) fn launcher(&self) -> Result<Arc<Launcher>, EngineError> {
        let mut launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        if !launcher.alive() {
            tracing::warn!("the launcher has ended; starting another");
            self.set_launcher_fault(Some("the launcher has ended; another is being started".to_owned()));
            match Self::start_launcher(&self.program) {
                Ok(started) => *launcher = started,
                Err(error) => {
                    self.set_launcher_fault(Some(format!("the launcher has ended, and another could not be started: {error}")));
                    return Err(error);
                }
            }
            self.set_launcher_fault(None);
        }
        Ok(launcher.clone())
    }

    /// Checks that the launcher answers, and replaces one that doesn't. Blocks for as long as that takes.
    pub(super) fn check_launcher(&self) {
        let Ok(launcher) = self.launcher() else { return };
        if let Err(error) = launcher.ping() {
            tracing::warn!(%error, "the launcher does not answer");
            // A failure is logged; the next check tries again.
            let _ = self.launcher();
        }
    }

    /// Why no sandbox can be created now, if the launcher is the cause. Doesn't wait.
    pub(super) fn launcher_problem(&self) -> Option<String> {
        let fault = self.launcher_fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fault.or_else(|| {
            // A lock that is held for long is held for a start, which is a fault already.
            let silent = self.launcher.try_lock().ok()?.silent_for();
            (silent > SILENT_LIMIT).then(|| "the launcher does not answer; another is being started".to_owned())
        })
    }

    /// Ends the launcher, also one that would not notice the end of the server.
    pub(super) fn end_launcher(&self) {
        let launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        launcher.end();
    }

    fn set_launcher_fault(&self, fault: Option<String>) {
        *self.launcher_fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Removes everything of a sandbox except its record: processes, cgroups, address, writable layer. Idempotent.
    pub(super) fn sweep(&self, id: &SandboxId, uid_index: u32, net_index: Option<u32>) {
        self.end_processes(id);
        if let Err(error) = self.remove_objects(id) {
            tracing::warn!(%id, %error, "something of a sandbox could not be removed; the next start tries again");
        }
        self.release_ids(uid_index, net_index);
    }

    /// Releases the user ids and the address of a sandbox without processes.
    pub(super) fn release_ids(&self, uid_index: u32, net_index: Option<u32>) {
        self.ids.give_back(uid_index);
        if let (Some(network), Some(index)) = (&self.network, net_index) {
            network.release(index);
        }
    }

    /// Freezes everything in a sandbox's cgroups. On failure it runs on.
    pub(super) fn freeze(&self, id: &SandboxId) -> Result<(), EngineError> {
        let begun = Instant::now();
        loop {
            // Repeated, since version 1 fails on a process that was forking.
            self.cgroups.set_frozen(id, true).map_err(cgroup)?;
            if self.cgroups.is_frozen(id).map_err(cgroup)? {
                return Ok(());
            }
            if begun.elapsed() > FREEZE_LIMIT {
                self.cgroups.set_frozen(id, false).map_err(cgroup)?;
                return Err(EngineError::Timeout { what: "freezing the sandbox", limit: FREEZE_LIMIT });
            }
            std::thread::sleep(FREEZE_PAUSE);
        }
    }

    /// Removes what the processes of a sandbox needed, and keeps its disk. Releases its address.
    pub(super) fn end_again(&self, id: &SandboxId, net_index: Option<u32>) {
        self.end_processes(id);
        if let Err(error) = self.remove_cgroups(id) {
            tracing::warn!(%id, %error, "a sandbox's cgroups could not be removed");
        }
        if let (Some(network), Some(index)) = (&self.network, net_index) {
            network.release(index);
        }
    }

    /// Kills everything in a sandbox's cgroups, frozen or not, until they are empty.
    pub(super) fn end_processes(&self, id: &SandboxId) {
        end_processes(&self.cgroups, id);
    }

    /// Removes a sandbox's cgroups and writable layer.
    pub(super) fn remove_objects(&self, id: &SandboxId) -> io::Result<()> {
        let removed = self.remove_cgroups(id);
        let layer = self.storage.delete_layer(id);
        removed?;
        layer.map_err(io::Error::other)
    }

    pub(super) fn remove_cgroups(&self, id: &SandboxId) -> io::Result<()> {
        remove_cgroups(&self.cgroups, id)
    }
}

/// Removes a sandbox's cgroups, after its processes have ended.
pub(super) fn remove_cgroups(cgroups: &Cgroups, id: &SandboxId) -> io::Result<()> {
    // A cgroup stays busy for a moment after its last process ended.
    let mut removed = cgroups.remove(id);
    for _ in 0..100 {
        match &removed {
            Err(error) if error.source.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                std::thread::sleep(Duration::from_millis(5));
                removed = cgroups.remove(id);
            }
            _ => break,
        }
    }
    removed.map_err(io::Error::other)
}

/// The name of the cgroups of a data directory's sandboxes, by its tag.
pub(super) fn cgroup_prefix(tag: &str) -> String {
    format!("arenite-{tag}")
}

/// The same for image builds.
pub(super) fn build_cgroup_prefix(tag: &str) -> String {
    format!("arenite-{tag}-build")
}

/// The same for clients of buckets.
pub(super) fn bucket_cgroup_prefix(tag: &str) -> String {
    format!("arenite-{tag}-bucket")
}

pub(super) fn failed_storage(error: StorageError) -> EngineError {
    EngineError::Storage { hint: error.hint(), reason: error.to_string() }
}

/// Kills all processes of all sandboxes and returns the number of sandboxes that had any.
pub(super) fn end_all(cgroups: &Cgroups) -> Result<usize, EngineError> {
    let mut ended = 0;
    for id in cgroups.list().map_err(cgroup)? {
        if !cgroups.processes(&id).is_empty() {
            end_processes(cgroups, &id);
            ended += 1;
        }
    }
    Ok(ended)
}

/// Kills everything in a sandbox's cgroups, frozen or not, until they are empty.
pub(super) fn end_processes(cgroups: &Cgroups, id: &SandboxId) {
    // Every process is in the pid namespace of the first; killing that one kills all. Other processes found here are from an
    // interrupted setup, or were just forked.
    for round in 0..200 {
        let pids = cgroups.processes(id);
        if pids.is_empty() {
            return;
        }
        let pidfds: Vec<OwnedFd> = pids
            .iter()
            .filter_map(|pid| rustix::process::Pid::from_raw(*pid))
            .filter_map(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
            .collect();
        // A pid read a moment ago may have been reused: only a process that is still in the cgroup is killed.
        let still = cgroups.processes(id);
        for (pid, pidfd) in pids.iter().zip(&pidfds) {
            if still.contains(pid) {
                kill(pidfd);
            }
        }
        let _ = cgroups.set_frozen(id, false);
        for pidfd in &pidfds {
            wait_end(pidfd, Duration::from_millis(200));
        }
        if round > 3 {
            // Only zombies that their parent has not reaped yet, or processes stuck in the kernel.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn tags_are_short_and_differ() {
        let (a, b) = (super::tag("/a".as_ref()), super::tag("/b".as_ref()));
        assert_eq!(a.len(), 5);
        assert_ne!(a, b);
    }
}
