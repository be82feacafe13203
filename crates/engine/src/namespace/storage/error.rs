use std::io;
use std::path::{Path, PathBuf};

use arenite_model::{SandboxId, VolumeId};
use thiserror::Error;

/// Why an operation of the storage failed.
#[derive(Debug, Error)]
pub enum StorageError {
    #[error("could not run {program}: {source}")]
    Program { program: &'static str, source: io::Error },
    #[error("{program} failed: {message}")]
    Failed { program: &'static str, message: String },
    #[error("a pool of {bytes} bytes is too small; the least is {least}")]
    TooSmall { bytes: u64, least: u64 },
    #[error("{name:?} is not a snapshot's name: lower-case letters, digits and dashes, at most 64")]
    BadName { name: String },
    #[error("there is no layer {id}")]
    NoLayer { id: SandboxId },
    #[error("the storage has no volume {id}")]
    NoVolume { id: VolumeId },
    #[error("the storage pool is read-only, after an error of the disk below it")]
    ReadOnly { data_dir: PathBuf },
    #[error("the disk is nearly full, so sandboxes can't write")]
    Held,
    #[error("{} was removed or moved{}, and the storage pool in it is still mounted", image.display(), now_at(moved.as_deref()))]
    ImageGone { image: PathBuf, root: PathBuf, moved: Option<PathBuf> },
    #[error("{} is missing, and with it all images and sandboxes' disks", image.display())]
    ImageMissing { image: PathBuf, mark: PathBuf },
    #[error("the storage pool on {} is still used{}", device.display(), by(pids))]
    Used { device: PathBuf, pids: Vec<u32> },
    #[error("{} is a copy of a storage pool that is mounted, and this kernel mounts no two of one id", image.display())]
    Copy { image: PathBuf },
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl StorageError {
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => Some(
                "install btrfs-progs (Debian, Ubuntu: apt install btrfs-progs), or turn the pool off: disk limits are not enforced then".to_owned(),
            ),
            Self::TooSmall { .. } => {
                Some("free some space, or put the data directory on a larger disk".to_owned())
            }
            Self::ReadOnly { data_dir } => Some(format!(
                "stop the server and run: arenite recover-storage --data-dir {}",
                data_dir.display()
            )),
            Self::Held => Some("delete sandboxes, or free space on the disk of the data directory".to_owned()),
            Self::ImageGone { image, root, moved } => Some(match moved {
                Some(moved) => format!("put it back: mv {} {}", moved.display(), image.display()),
                None => format!(
                    "sandboxes live on; save what is needed from {}, then end them, unmount it and restore the file from a backup",
                    root.display()
                ),
            }),
            Self::ImageMissing { mark, .. } => Some(format!(
                "restore the file, or remove {} to start with an empty pool",
                mark.display()
            )),
            Self::Used { .. } => Some("end these processes, or those that have files of the pool open, then run it again".to_owned()),
            Self::Copy { image } => Some(format!("give the copy an id of its own: btrfstune -u {}", image.display())),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("the namespace engine needs root (CAP_SYS_ADMIN) and access to loop devices".to_owned())
            }
            _ => None,
        }
    }
}

fn now_at(moved: Option<&Path>) -> String {
    moved.map_or_else(String::new, |moved| format!(" to {}", moved.display()))
}

fn by(pids: &[u32]) -> String {
    match pids {
        [] => String::new(),
        pids => format!(" by the processes {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
