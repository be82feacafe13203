use std::io;

use thiserror::Error;

/// Why storage could not do it.
#[derive(Debug, Error)]
pub enum StorageError {
    #[error("could not run {program}: {source}")]
    Program { program: &'static str, source: io::Error },
    #[error("{program} failed: {message}")]
    Failed { program: &'static str, message: String },
    #[error("a pool of {bytes} bytes is too small; the least is {least}")]
    TooSmall { bytes: u64, least: u64 },
    #[error("{id:?} is not a layer's id: lower-case letters, digits and dashes, at most 64")]
    BadId { id: String },
    #[error("there is no layer {id}")]
    NoLayer { id: String },
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
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("the namespace engine needs root (CAP_SYS_ADMIN) and access to loop devices".to_owned())
            }
            _ => None,
        }
    }
}
