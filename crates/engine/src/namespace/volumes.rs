//! Mounts of volumes: directories of tenants in the storage, and host directories that the operator declares.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use arenite_isolation::Bind;
use arenite_isolation::mounts::{self, Attributes};
use arenite_model::{SandboxSpec, VolumeMount};

use super::Host;
use super::storage::{Storage, StorageError};
use crate::EngineError;
use crate::file_tree::{FileTree, TreePath};

/// A declared directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub dir: PathBuf,
    pub read_only: bool,
}

/// Resolves the paths and refuses directories that can't be shared safely.
pub(crate) fn check(volumes: &mut BTreeMap<String, Volume>, data_dir: &Path) -> Result<(), EngineError> {
    for (name, volume) in volumes {
        let refuse =
            |reason: String| EngineError::Unsupported { what: format!("the volume {name} ({})", volume.dir.display()), reason };
        let dir = volume.dir.canonicalize().map_err(|error| refuse(error.to_string()))?;
        let is_dir = fs::metadata(&dir).map_err(|error| refuse(error.to_string()))?.is_dir();
        if !is_dir {
            return Err(refuse("it is not a directory".to_owned()));
        }
        if dir.starts_with(data_dir) || data_dir.starts_with(&dir) {
            return Err(refuse("it overlaps the data directory, which holds all sandboxes' files".to_owned()));
        }
        if !volume.read_only && !is_closed(&dir).map_err(|error| refuse(error.to_string()))? {
            return Err(refuse(format!(
                "other users of the host can enter it, and would run set-user-id programs that a sandbox leaves there; close it or a directory above it (chown root {0} && chmod 700 {0}), or declare it with :ro",
                dir.display()
            )));
        }
        volume.dir = dir;
    }
    Ok(())
}

/// Whether only root can enter the directory: it or one above it is closed to others.
fn is_closed(dir: &Path) -> io::Result<bool> {
    for part in dir.ancestors() {
        let about = fs::metadata(part)?;
        if about.uid() == 0 && about.mode() & 0o077 == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The mounts of a spec, and their targets. Files keep their ids of the host: 0 to 65535 are the same numbers in the sandbox.
pub(super) fn mounts(host: &Host, spec: &SandboxSpec, userns: BorrowedFd<'_>) -> Result<Vec<(Bind, OwnedFd)>, EngineError> {
    let bind = |mount: &VolumeMount| Bind { target: mount.path.clone(), directory: true };
    spec.volumes.iter().map(|mount| Ok((bind(mount), tree(host, mount, userns)?))).collect()
}

/// A detached mount of a volume, for the sandbox of a user namespace.
pub(super) fn tree(host: &Host, mount: &VolumeMount, userns: BorrowedFd<'_>) -> Result<OwnedFd, EngineError> {
    let opened = open(host, mount)?;
    let mut attributes = Attributes { read_only: opened.is_read_only || mount.read_only, restricted: true, idmap: Some(userns) };
    let mut tree = mounts::detached_at(opened.directory.as_fd(), attributes);
    if opened.is_bucket && tree.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
        // Before Linux 6.12, FUSE maps no ids: files belong to nobody there, and everybody may write to them.
        attributes.idmap = None;
        tree = mounts::detached_at(opened.directory.as_fd(), attributes);
    }
    tree.map_err(|error| EngineError::Stage {
        stage: format!("volume {}", mount.name),
        hint: (error.kind() == io::ErrorKind::InvalidInput)
            .then(|| "its file system can't map ids: ext4, XFS and btrfs can".to_owned()),
        source: error,
    })
}

/// The volumes of a spec that are in buckets.
pub(super) fn in_buckets(host: &Host, spec: &SandboxSpec) -> Vec<VolumeMount> {
    let is_in_bucket = |mount: &&VolumeMount| mount.volume_id.as_ref().is_some_and(|id| host.buckets.backing(id).is_some());
    spec.volumes.iter().filter(is_in_bucket).cloned().collect()
}

/// A directory to mount.
struct Opened {
    directory: OwnedFd,
    /// Sandboxes may only read it.
    is_read_only: bool,
    is_bucket: bool,
}

/// Opens the directory to mount. What sandboxes left in it may lead anywhere, so the way to a directory below it follows no link.
fn open(host: &Host, mount: &VolumeMount) -> Result<Opened, EngineError> {
    let failed = |source: io::Error| EngineError::Stage { stage: format!("volume {}", mount.name), source, hint: None };
    let (tree, is_read_only, is_bucket) = match &mount.volume_id {
        Some(id) if host.buckets.backing(id).is_some() => {
            let (top, held) = host.buckets.open_volume(id)?;
            (FileTree::of_bucket(top, held), false, true)
        }
        Some(id) => {
            let top = host.storage.open_volume(id).map_err(|error| no_volume(&host.config.volumes, mount, error))?;
            (FileTree::new(top), false, false)
        }
        None => {
            let declared = &host.config.volumes;
            let volume = declared.get(&mount.name).ok_or_else(|| unknown(declared, &mount.name))?;
            (FileTree::new(File::open(&volume.dir).map_err(failed)?.into()), volume.read_only, false)
        }
    };
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let directory = TreePath::parse(sub_path.as_bytes())
        .and_then(|path| if is_read_only { tree.directory(&path) } else { tree.make_directories(&path) })
        .map_err(|source| EngineError::SubPath { name: mount.name.clone(), source })?;
    Ok(Opened { directory, is_read_only, is_bucket })
}

/// Refuses names that are not there, before anything is created. Without `storage`, the engine has no volumes of tenants.
pub(crate) fn find_all(
    volumes: &BTreeMap<String, Volume>,
    storage: Option<&Storage>,
    spec: &SandboxSpec,
) -> Result<(), EngineError> {
    for mount in &spec.volumes {
        match (&mount.volume_id, storage) {
            (Some(id), Some(storage)) => storage.open_volume(id).map(drop).map_err(|error| no_volume(volumes, mount, error))?,
            (Some(_), None) => {
                return Err(EngineError::Unsupported {
                    what: format!("the volume {}", mount.name),
                    reason: "this engine mounts directories that the operator declared, and no volumes of tenants".to_owned(),
                });
            }
            (None, _) if !volumes.contains_key(&mount.name) => return Err(unknown(volumes, &mount.name)),
            (None, None) if mount.sub_path.is_some() => {
                return Err(EngineError::Unsupported {
                    what: "sub_path of a volume".to_owned(),
                    reason: "this engine mounts whole directories".to_owned(),
                });
            }
            (None, _) => {}
        }
    }
    Ok(())
}

/// A volume that was removed has no directory.
fn no_volume(volumes: &BTreeMap<String, Volume>, mount: &VolumeMount, error: StorageError) -> EngineError {
    match error {
        StorageError::NoVolume { .. } => unknown(volumes, &mount.name),
        error => EngineError::Storage { hint: error.hint(), reason: error.to_string() },
    }
}

fn unknown(volumes: &BTreeMap<String, Volume>, name: &str) -> EngineError {
    EngineError::NoVolume { name: name.to_owned(), known: volumes.keys().cloned().collect() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_closed_directories_are_writable_and_none_overlaps_the_data_directory() {
        let top = tempfile::tempdir().unwrap();
        let (data, open) = (top.path().join("data"), top.path().join("open"));
        for dir in [&data, &open] {
            fs::create_dir(dir).unwrap();
        }
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let declared = |dir: &Path, read_only| {
            let mut volumes = BTreeMap::from([("v".to_owned(), Volume { dir: dir.to_owned(), read_only })]);
            check(&mut volumes, &data).map_err(|error| error.to_string())
        };
        assert!(declared(&data, true).unwrap_err().contains("data directory"));
        assert!(declared(top.path(), true).unwrap_err().contains("data directory"));
        assert!(declared(&top.path().join("missing"), true).is_err());
        declared(&open, true).unwrap();
        if fs::metadata(&open).unwrap().uid() == 0 && !is_closed(top.path()).unwrap() {
            assert!(declared(&open, false).unwrap_err().contains("chmod 700"));
            fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
            declared(&open, false).unwrap();
        }
    }
}
