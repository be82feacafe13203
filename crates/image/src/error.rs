//! Errors of images.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use arenite_model::{ErrorCode, ImageName};
use thiserror::Error;

use crate::imagefile::ParseError;

/// Why an image could not be built, found or removed.
#[derive(Debug, Error)]
pub enum ImageError {
    #[error("image \"{name}\" is not built here")]
    NotFound { name: ImageName },
    /// An unreadable manifest, or a missing layer.
    #[error("image \"{name}\" is damaged: {reason}")]
    Damaged { name: String, reason: String },
    /// A file that is not an archive of images, or not a whole one.
    #[error("could not load {path:?}: {reason}")]
    Archive { path: PathBuf, reason: String },
    #[error("the snapshot can't be exported: {reason}")]
    Unpackable { reason: String },
    /// What a registry refuses, or does wrong.
    #[error("{reference}: {reason}")]
    Registry { reference: String, reason: String, hint: Option<String>, code: ErrorCode },
    #[error("it was cancelled")]
    Cancelled,
    #[error("the image store is in use by a build or a removal")]
    Busy,
    /// A context that a client sent.
    #[error("the context can't be used: {reason}")]
    Context { reason: String, code: ErrorCode },
    /// The layers of a build are larger than it may make them.
    #[error("line {line}: the build has more than {limit} bytes, its disk limit")]
    TooLarge { line: usize, limit: u64 },
    /// A `.dockerignore` that can't be read as one.
    #[error("{path:?}: {reason}")]
    Ignore { path: PathBuf, reason: String },
    /// A build argument, secret or label of the request.
    #[error("{reason}")]
    Option { reason: String, hint: Option<String> },
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A step that can't be executed as written.
    #[error("line {line}: {reason}")]
    Step { line: usize, reason: String, hint: Option<String> },
    /// A failed command of the build, with the end of its output.
    #[error("line {line}: {what} ended with exit code {code}")]
    Failed {
        line: usize,
        what: String,
        code: i32,
        /// The last lines of its output, at most 20.
        tail: Vec<String>,
    },
    #[error("line {line}: {what} took longer than {limit:?}")]
    Timeout { line: usize, what: String, limit: Duration },
    #[error("line {line}: the sandbox of this step failed: {source}")]
    Runner { line: usize, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{tool} is not installed on this host")]
    MissingTool { tool: &'static str },
    #[error("{what} {path:?}: {source}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl ImageError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::Busy | Self::Cancelled | Self::Unpackable { .. } => ErrorCode::Conflict,
            Self::Registry { code, .. } | Self::Context { code, .. } => *code,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Archive { .. }
            | Self::Ignore { .. }
            | Self::Option { .. }
            | Self::Parse(_)
            | Self::Step { .. }
            | Self::Failed { .. } => ErrorCode::InvalidRequest,
            Self::Timeout { .. } => ErrorCode::Timeout,
            Self::Runner { .. } => ErrorCode::SandboxFailed,
            Self::MissingTool { .. } => ErrorCode::Unsupported,
            Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                ErrorCode::Exhausted
            }
            Self::Damaged { .. } | Self::Io { .. } => ErrorCode::Internal,
        }
    }

    /// The line of the Dockerfile that it is about.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Parse(error) => Some(error.line),
            Self::Step { line, .. }
            | Self::Failed { line, .. }
            | Self::Timeout { line, .. }
            | Self::Runner { line, .. }
            | Self::TooLarge { line, .. } => Some(*line),
            _ => None,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { name } => Some(format!(
                "build it with: arenite image build {name}; or pull it: arenite image pull {name}; see what is there with: \
                     arenite image ls"
            )),
            Self::Damaged { name, .. } => Some(format!("build it again with: arenite image build {name}")),
            Self::Archive { .. } => {
                Some("if the file may be damaged, save the image again and compare the copies with sha256sum".to_owned())
            }
            Self::Registry { hint, .. } => hint.clone(),
            Self::Cancelled => Some("what was downloaded is kept for the next try".to_owned()),
            Self::Busy => Some("try again when it has ended".to_owned()),
            Self::Parse(error) => error.hint.clone(),
            Self::Step { hint, .. } | Self::Option { hint, .. } => hint.clone(),
            Self::MissingTool { tool } => Some(format!("install it with: apt-get install {tool}")),
            Self::Timeout { .. } => {
                Some("the step is waiting for something that does not come, such as input or a network".to_owned())
            }
            Self::TooLarge { .. } => {
                Some("remove what is not needed in the step that makes it, or request more with disk_bytes".to_owned())
            }
            _ => None,
        }
    }
}
