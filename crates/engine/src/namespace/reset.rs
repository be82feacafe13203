//! Removes an installation from the host: its server, sandboxes, network, storage pool and files.
//!
//! An installation is a data directory and the objects of the host that carry its tag. The tag follows from the path, so
//! what is left of a data directory that was deleted by hand is found too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arenite_isolation::cgroup::{Cgroups, Layout};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::buckets;
use super::data_dir;
use super::host::{bucket_cgroup_prefix, build_cgroup_prefix, cgroup_prefix, end_all, failed_storage, remove_cgroups, tag};
use super::lock::{LockHolder, ServerLock, try_for_build};
use super::network::{self, NetworkError};
use super::slot::{cgroup, wait_end};
use super::storage;
use crate::EngineError;

/// How long a server may take to end after SIGTERM. Calls under way get ten seconds of it.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// What an installation has on this host.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Absolute, without symbolic links where it exists.
    pub data_dir: PathBuf,
    /// The server that runs on it.
    pub server: Option<LockHolder>,
    /// Sandboxes with cgroups; those that are prepared count too.
    pub sandboxes: usize,
    /// Processes in these.
    pub processes: usize,
    /// Network interfaces of the host.
    pub interfaces: Vec<String>,
    /// Whether the storage pool is mounted.
    pub has_mount: bool,
    /// Names of its files and directories in the data directory.
    pub entries: Vec<String>,
    /// Data directories of other installations with a mounted storage pool.
    pub others: Vec<PathBuf>,
}

impl Installation {
    /// Finds what there is, and changes nothing.
    ///
    /// # Errors
    /// [`EngineError::Storage`] for a directory that holds only other files.
    pub fn inspect(data_dir: &Path) -> Result<Self, EngineError> {
        let data_dir = resolve(data_dir)?;
        let entries = entries(&data_dir)?;
        let has_mount = storage::has_mount(&data_dir);
        let is_empty = fs::read_dir(&data_dir).is_ok_and(|mut listed| listed.next().is_none());
        if data_dir.parent().is_none() || (data_dir.exists() && !is_empty && !has_mount && !data_dir::has_mark(&entries)) {
            return Err(EngineError::Storage {
                reason: format!("{} is not a data directory of Arenite: it holds other files", data_dir.display()),
                hint: Some("name the right one with --data-dir".to_owned()),
            });
        }
        let mut found = Self {
            server: ServerLock::holder(&data_dir)?,
            sandboxes: 0,
            processes: 0,
            interfaces: network::interfaces(&tag(&data_dir)).map_err(failed_network)?,
            has_mount,
            entries,
            others: storage::mounted_data_dirs().into_iter().filter(|other| *other != data_dir).collect(),
            data_dir,
        };
        for cgroups in found.cgroups()? {
            for id in cgroups.list().map_err(cgroup)? {
                found.sandboxes += 1;
                found.processes += cgroups.processes(&id).len();
            }
        }
        Ok(found)
    }

    /// Whether there is nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.server.is_none()
            && self.sandboxes == 0
            && self.interfaces.is_empty()
            && !self.has_mount
            && self.entries.is_empty()
            && !self.data_dir.exists()
    }

    /// Removes all of it. `report` gets each step that is done, in words. Fine to repeat after a failure.
    ///
    /// # Errors
    /// What could not be removed; what comes after it is still there.
    pub fn remove(&self, report: &mut dyn FnMut(String)) -> Result<(), EngineError> {
        if crate::docker::has_sandboxes(&self.data_dir) {
            return Err(EngineError::Storage {
                reason: format!("{} has sandboxes of the engine docker", self.data_dir.display()),
                hint: Some("start a server with --engine docker --remove-sandboxes, and stop it: that deletes them".to_owned()),
            });
        }
        if let Some(server) = &self.server {
            self.stop(server)?;
            report(format!("stopped the server (pid {})", server.pid));
        }
        // A server or a build that starts meanwhile must not find half of it.
        let _locks = match self.data_dir.exists() {
            true => Some((ServerLock::take(&self.data_dir)?, try_for_build(&self.data_dir)?)),
            false => None,
        };
        let mut ended = 0;
        for cgroups in self.cgroups()? {
            ended += end_all(&cgroups)?;
            for id in cgroups.list().map_err(cgroup)? {
                remove_cgroups(&cgroups, &id).map_err(host(format!("could not remove the cgroups of sandbox {id}")))?;
            }
            cgroups.close();
        }
        report(format!("ended the processes of {ended} sandboxes"));
        let clients = Cgroups::existing(Layout::of_host().map_err(cgroup)?, &bucket_cgroup_prefix(&tag(&self.data_dir)));
        // Before any file is removed: a mounted bucket would lose its objects.
        let mounts =
            buckets::end_everything(&self.data_dir, &clients).map_err(host("could not end the mounts of buckets".to_owned()))?;
        if mounts > 0 {
            report(format!("ended {mounts} mounts of buckets, whose objects stay"));
        }
        network::remove(&tag(&self.data_dir)).map_err(failed_network)?;
        report(format!("removed {} network interfaces and the firewall table", self.interfaces.len()));
        storage::remove_pool_mount(&self.data_dir).map_err(failed_storage)?.into_iter().for_each(&mut *report);
        self.remove_files(report)
    }

    fn remove_files(&self, report: &mut dyn FnMut(String)) -> Result<(), EngineError> {
        // Listed again: stopping a server can leave other files than it had.
        for name in entries(&self.data_dir)? {
            let path = self.data_dir.join(&name);
            storage::remove_tree(&path).map_err(host(format!("could not remove {}", path.display())))?;
        }
        match fs::remove_dir(&self.data_dir) {
            Ok(()) => report(format!("removed {}", self.data_dir.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                report(format!("kept {}, which holds other files", self.data_dir.display()));
            }
            // It is a mount point.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                report(format!("emptied {}, which is in use", self.data_dir.display()));
            }
            Err(error) => return Err(host(format!("could not remove {}", self.data_dir.display()))(error)),
        }
        Ok(())
    }

    fn stop(&self, server: &LockHolder) -> Result<(), EngineError> {
        let could_not = |source: io::Error| host(format!("could not stop the server ({server})"))(source);
        let pid = i32::try_from(server.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| could_not(io::Error::other("it has not said which process it is")))?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(()),
            other => other.map_err(|error| could_not(error.into()))?,
        };
        // Opened first, compared after: the number can't change hands between the two.
        if ServerLock::holder(&self.data_dir)?.is_none_or(|holder| holder.pid != server.pid) {
            return Ok(());
        }
        pidfd_send_signal(&pidfd, Signal::TERM).map_err(|error| could_not(error.into()))?;
        match wait_end(&pidfd, STOP_LIMIT) {
            true => Ok(()),
            false => Err(EngineError::Timeout { what: "stopping the server", limit: STOP_LIMIT }),
        }
    }

    fn cgroups(&self) -> Result<[Cgroups; 2], EngineError> {
        let layout = Layout::of_host().map_err(cgroup)?;
        let tag = tag(&self.data_dir);
        Ok([build_cgroup_prefix(&tag), cgroup_prefix(&tag)].map(|prefix| Cgroups::existing(layout.clone(), &prefix)))
    }
}

fn entries(dir: &Path) -> Result<Vec<String>, EngineError> {
    data_dir::entries(dir).map_err(host(format!("could not read the data directory {}", dir.display())))
}

/// The absolute path, also of a directory that is gone: its tag was computed from the path without symbolic links.
fn resolve(data_dir: &Path) -> Result<PathBuf, EngineError> {
    let failed = |source| host(format!("could not find {}", data_dir.display()))(source);
    let path = std::path::absolute(data_dir).map_err(failed)?;
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.join(name)),
        _ => Ok(path),
    }
}

fn host(what: String) -> impl FnOnce(io::Error) -> EngineError {
    move |source| EngineError::Host { what, source }
}

pub(super) fn failed_network(error: NetworkError) -> EngineError {
    EngineError::Stage { stage: "network".to_owned(), hint: error.hint(), source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_other_files_is_refused_and_a_missing_one_is_empty() {
        let top = tempfile::tempdir().unwrap();
        let gone = Installation::inspect(&top.path().join("gone")).unwrap();
        assert!(gone.is_empty() && gone.entries.is_empty(), "{gone:?}");

        // Names that a data directory has too do not make it one.
        let other = top.path().join("other");
        fs::create_dir_all(other.join("run")).unwrap();
        fs::write(other.join("letter"), "").unwrap();
        let error = Installation::inspect(&other).unwrap_err();
        assert!(error.to_string().contains("not a data directory"), "{error}");
        assert!(Installation::inspect("/".as_ref()).is_err());
    }

    #[test]
    fn only_its_own_files_are_removed() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("data");
        fs::create_dir_all(dir.join("run/deep")).unwrap();
        for name in ["server.lock", "control.sqlite", "control.sqlite.unreadable-1-1", "letter"] {
            fs::write(dir.join(name), "").unwrap();
        }
        let found = Installation::inspect(&dir).unwrap();
        assert_eq!(found.entries, ["control.sqlite", "control.sqlite.unreadable-1-1", "run", "server.lock"]);
        let mut done = Vec::new();
        found.remove_files(&mut |line| done.push(line)).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "the letter stays");
        assert!(done[0].contains("holds other files"), "{done:?}");
        fs::remove_file(dir.join("letter")).unwrap();
        fs::write(dir.join("server.lock"), "").unwrap();
        found.remove_files(&mut |_| {}).unwrap();
        assert!(!dir.exists());
    }
}
