//! Volumes: directories of tenants that outlive sandboxes.
//!
//! ```text
//!  root/volumes/<id>        the volume's files; a subvolume with a quota where there is a pool
//!  root/volumes/<id>.json   what its owner needs to know it again; written last, removed first
//!  root/volumes/<id>.bucket where its files are, if they are in a bucket; the directory is a cache then
//! ```

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use arenite_isolation::btrfs;
use arenite_model::VolumeId;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, openat};
use rustix::io::Errno;

use super::{MAX_LAYERS, Result, Storage, StorageError, StorageKind, make_directory, open_directory, read_number};

pub(super) const DIRECTORY: &str = "volumes";
/// The user of all images of Arenite, and the owner of new volumes.
const OWNER: u32 = 1000;
/// Images may have other users, who can write too.
const MODE: u32 = 0o1777;

impl Storage {
    /// Creates an empty volume. Beyond `limit_bytes`, writes to it fail with `EDQUOT`, where
    /// [`StorageKind::disk_limit_enforced`].
    pub fn create_volume(&self, id: &VolumeId, limit_bytes: u64) -> Result<()> {
        let path = self.volume_path(id);
        let what = || format!("make volume {id}");
        if self.kind == StorageKind::Plain {
            DirBuilder::new().mode(0o700).create(&path).map_err(StorageError::io(what()))?;
        } else {
            btrfs::create_subvolume(self.volumes()?.as_fd(), id.as_str()).map_err(StorageError::io(what()))?;
        }
        let filled = self.limit_volume(id, limit_bytes).and_then(|()| {
            let directory = self.open_volume(id)?;
            let owned = fchown(&directory, Some(Uid::from_raw(OWNER)), Some(Gid::from_raw(OWNER)));
            owned.map_err(|error| StorageError::io(what())(error.into()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(MODE)).map_err(StorageError::io(what()))
        });
        if filled.is_err() {
            // The first error says more than one of the cleanup.
            let _ = self.delete_volume(id);
        }
        filled
    }

    /// Creates the volume `id` with the content of `source`. The cost does not depend on its size. Waits for the disk.
    ///
    /// # Errors
    /// `Unsupported` on plain storage.
    pub fn copy_volume(&self, source: &VolumeId, id: &VolumeId, limit_bytes: u64) -> Result<()> {
        let what = || format!("copy volume {source} as {id}");
        if self.kind == StorageKind::Plain {
            let error = io::Error::new(io::ErrorKind::Unsupported, "plain directories have no copies on write");
            return Err(StorageError::io(what())(error));
        }
        let from = self.open_volume(source)?;
        btrfs::snapshot(from.as_fd(), self.volumes()?.as_fd(), id.as_str(), false).map_err(StorageError::io(what()))?;
        let limited = self.limit_volume(id, limit_bytes);
        if limited.is_err() {
            let _ = self.delete_volume(id);
        }
        limited
    }

    /// Changes the limit of a volume. Below its usage, every further write fails.
    pub fn limit_volume(&self, id: &VolumeId, limit_bytes: u64) -> Result<()> {
        if self.kind == StorageKind::Plain {
            return Ok(());
        }
        btrfs::limit(self.open_volume(id)?.as_fd(), limit_bytes).map_err(StorageError::io(format!("limit volume {id}")))
    }

    /// The volume's size in bytes, including its metadata; none if the storage can't tell.
    pub fn volume_usage(&self, id: &VolumeId) -> Option<u64> {
        self.usage_of(&self.open_volume(id).ok()?.into())
    }

    /// Opens a volume's top directory.
    pub fn open_volume(&self, id: &VolumeId) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        openat(self.volumes()?, id.as_str(), flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => StorageError::NoVolume { id: id.clone() },
            error => StorageError::io(format!("open volume {id}"))(error.into()),
        })
    }

    /// The most bytes that a volume may hold; none if that is not enforced.
    pub fn volume_limit(&self, id: &VolumeId) -> Option<u64> {
        let qgroups = self.qgroups.as_ref()?;
        let subvolume = btrfs::subvolume_id(self.open_volume(id).ok()?.as_fd()).ok()?;
        read_number(&qgroups.join(format!("0_{subvolume}/max_referenced"))).filter(|limit| *limit > 0)
    }

    /// Removes a volume, if it exists, whatever of it is there. Its space is freed a little later. Objects in a bucket stay.
    pub fn delete_volume(&self, id: &VolumeId) -> Result<()> {
        self.remove_volume_memo(id)?;
        self.remove_note(&self.backing_path(id), id)?;
        self.delete_tree(DIRECTORY, id.as_str(), &format!("delete volume {id}"))
    }

    /// The ids of all volumes, complete or not, sorted; at most 100,000.
    pub fn list_volumes(&self) -> Result<Vec<VolumeId>> {
        let directory = self.root.join(DIRECTORY);
        let what = || format!("list {}", directory.display());
        let mut ids = Vec::new();
        for entry in fs::read_dir(&directory).map_err(StorageError::io(what()))? {
            let name = entry.map_err(StorageError::io(what()))?.file_name();
            // A memo alone is the rest of a volume that was being made or removed.
            let id = name.to_str().map(|name| name.strip_suffix(".json").unwrap_or(name));
            ids.extend(id.and_then(|id| id.parse::<VolumeId>().ok()));
            if ids.len() == 2 * MAX_LAYERS {
                break;
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Keeps a text with a volume.
    pub fn write_volume_memo(&self, id: &VolumeId, memo: &str) -> Result<()> {
        self.write_note(&self.memo_path(id), id, memo)
    }

    /// The text that is kept with a volume, if there is one.
    pub fn volume_memo(&self, id: &VolumeId) -> Option<String> {
        fs::read_to_string(self.memo_path(id)).ok()
    }

    /// Removes the text that is kept with a volume.
    pub fn remove_volume_memo(&self, id: &VolumeId) -> Result<()> {
        self.remove_note(&self.memo_path(id), id)
    }

    /// Keeps the place of a volume's files with it: that of a volume in a bucket.
    pub fn write_volume_backing(&self, id: &VolumeId, backing: &str) -> Result<()> {
        self.write_note(&self.backing_path(id), id, backing)
    }

    /// The place of a volume's files, if it is in a bucket.
    pub fn volume_backing(&self, id: &VolumeId) -> Option<String> {
        fs::read_to_string(self.backing_path(id)).ok()
    }

    fn write_note(&self, path: &Path, id: &VolumeId, text: &str) -> Result<()> {
        let next = path.with_added_extension("new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&next)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&next, path)
        };
        write().map_err(StorageError::io(format!("write the memo of volume {id}")))
    }

    fn remove_note(&self, path: &Path, id: &VolumeId) -> Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::io(format!("remove the memo of volume {id}"))(error))
            }
            _ => Ok(()),
        }
    }

    pub(in crate::namespace) fn volume_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(DIRECTORY).join(id.as_str())
    }

    fn memo_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(DIRECTORY).join(format!("{id}.json"))
    }

    fn backing_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(DIRECTORY).join(format!("{id}.bucket"))
    }

    fn volumes(&self) -> Result<File> {
        open_directory(&self.root.join(DIRECTORY))
    }

    pub(super) fn make_volumes_directory(&self) -> Result<()> {
        make_directory(&self.root.join(DIRECTORY), 0o700)
    }
}
