use std::path::{Path, PathBuf};

use thiserror::Error as ThisError;

/// Why something can't be indexed, read or searched.
#[derive(Debug, ThisError)]
pub enum Error {
    #[error("could not {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A truncated, damaged or different file. Never a panic.
    #[error("{} can't be used: {reason}", path.display())]
    Corrupt { path: PathBuf, reason: String },
    #[error("a vector has {found} dimensions, and the index has {wanted}")]
    Dimension { wanted: usize, found: usize },
    /// An invalid request, with a message for the caller.
    #[error("{0}")]
    Invalid(String),
    /// A model could not be loaded, or returned an unusable answer.
    #[error("the embedder {name} failed: {reason}")]
    Embedder { name: String, reason: String },
}

impl Error {
    /// For `map_err` on errors of the file system.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), reason: reason.into() }
    }
}
