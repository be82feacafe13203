//! Why a document can't be read.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An error that is passed between processes, so it is plain data.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DocumentError {
    #[error("it is not a readable {format}: {reason}")]
    Malformed { format: String, reason: String },
    #[error("it is protected by a password")]
    Encrypted,
    #[error("it is larger than what is read here: {what}")]
    TooLarge { what: String },
    #[error("{what} can't be read here")]
    Unsupported { what: String },
    /// A range or a name that does not exist in the document.
    #[error("{message}")]
    Selection { message: String },
}

impl DocumentError {
    pub(crate) fn malformed(format: &str, reason: impl std::fmt::Display) -> Self {
        // Readers quote their input; an error stays short anyway.
        let reason: String = reason.to_string().chars().filter(|c| !c.is_control()).take(300).collect();
        Self::Malformed { format: format.to_owned(), reason }
    }

    pub(crate) fn too_large(what: impl Into<String>) -> Self {
        Self::TooLarge { what: what.into() }
    }

    pub(crate) fn selection(message: impl Into<String>) -> Self {
        Self::Selection { message: message.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Malformed { .. } => Some("look at it with the command file, or get it with /v1/file/download"),
            Self::Encrypted => Some("store it without a password first"),
            Self::TooLarge { .. } => Some("read a part of it with a program of your own, such as one in Python"),
            Self::Unsupported { .. } => Some("convert it to PDF, Office Open XML, HTML or text first"),
            Self::Selection { .. } => None,
        }
    }
}
