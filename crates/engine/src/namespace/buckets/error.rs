//! Why a bucket can't be used, and what to do about it.

use std::io;

use arenite_model::{ErrorCode, VolumeId};
use thiserror::Error;

use super::super::storage::StorageError;

/// Why a bucket can't be used.
#[derive(Debug, Error)]
pub enum BucketError {
    #[error("there is no bucket {name:?} for volumes")]
    Unknown { name: String, known: Vec<String> },
    #[error("volumes in buckets are not available here: {reason}")]
    NoClient { reason: String },
    #[error("the file of the bucket {name} can't be used: {reason}")]
    File { name: String, reason: String },
    #[error("the bucket {name} can't be reached: {reason}")]
    Unreachable { name: String, reason: String },
    #[error("could not {what}: {source}")]
    Host { what: String, source: io::Error },
    #[error("volume {id} is mounted, and its sandboxes use it")]
    InUse { id: VolumeId },
}

impl BucketError {
    pub(super) fn host(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Host { what, source }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::InvalidRequest,
            Self::NoClient { .. } => ErrorCode::Unsupported,
            Self::InUse { .. } => ErrorCode::Conflict,
            // What failed is another server.
            Self::Unreachable { .. } => ErrorCode::SandboxFailed,
            Self::File { .. } | Self::Host { .. } => ErrorCode::Internal,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => {
                Some("the operator declares buckets with the setting bucket: see docs/VOLUMES.md".to_owned())
            }
            Self::Unknown { known, .. } => Some(format!("there are {}", known.join(", "))),
            Self::NoClient { .. } => Some(
                "install rclone 1.75 or later in PATH, or name it with the setting rclone; arenite doctor says what was found"
                    .to_owned(),
            ),
            Self::File { .. } => Some("docs/VOLUMES.md has an example of the file; it is read again at each mount".to_owned()),
            Self::Unreachable { .. } => Some(
                "see that the bucket exists, that its server answers, and that the credentials may list, read and write"
                    .to_owned(),
            ),
            Self::InUse { .. } => Some("delete these sandboxes first".to_owned()),
            Self::Host { .. } => None,
        }
    }
}

pub(super) fn of_storage(error: StorageError) -> BucketError {
    match error {
        StorageError::Io { what, source } => BucketError::Host { what, source },
        other => BucketError::Host { what: "use the storage".to_owned(), source: io::Error::other(other) },
    }
}
