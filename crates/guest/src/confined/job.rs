//! What a confined process is asked, and what it answers. Both cross as JSON.

use std::path::PathBuf;
use std::time::Duration;

use arenite_documents::{Content, DocumentError, Selection};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// The document at descriptor 0, a part of it as text.
    View { name: String, selection: Selection },
    /// The document at descriptor 0 as Markdown.
    Markdown { name: String },
    /// The document in the data URI at descriptor 0 as Markdown.
    DataUri,
    /// What an address serves as Markdown.
    Fetch {
        uri: String,
        /// Ports of loopback that it may not be.
        closed: Vec<u16>,
    },
    /// The skills in a directory.
    FindSkills { directory: PathBuf },
    /// Unpacks the archive at descriptor 0 and moves what it holds into `directory`.
    UnpackSkills {
        directory: PathBuf,
        /// Where to unpack: a new directory in `directory`, removed at the end.
        scratch: PathBuf,
        /// What to call it there; none: as the archive does.
        name: Option<String>,
        /// What to call a skill that stands at the archive's root and has no name itself.
        fallback: String,
    },
}

/// What a job may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Waiting for a turn included.
    pub(super) time: Duration,
    /// The largest file that it may write, in bytes.
    pub(super) file_bytes: u64,
}

impl Job {
    pub(super) fn limits(&self) -> Limits {
        let (seconds, file_bytes) = match self {
            Self::View { .. } | Self::Markdown { .. } | Self::DataUri | Self::FindSkills { .. } => (30, 0),
            // Less than the 60 s after which AIO's clients give up.
            Self::Fetch { .. } => (50, 0),
            Self::UnpackSkills { .. } => (50, arenite_documents::MAX_UNPACKED_BYTES),
        };
        Limits { time: Duration::from_secs(seconds), file_bytes }
    }
}

/// A skill on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FoundSkill {
    /// From its front matter, else its directory's.
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    /// Its front matter.
    pub(crate) metadata: Map<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JobOutput {
    Content(Content),
    Skills(Vec<FoundSkill>),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub(crate) enum Fault {
    #[error("{0}")]
    Document(DocumentError),
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
    #[error("{message}: {reason}")]
    Io { message: String, reason: String },
}

impl Fault {
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), hint: None }
    }

    pub(crate) fn io(message: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Io { message: message.into(), reason: reason.to_string() }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Document(error) => error.hint().map(str::to_owned),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Io { .. } => None,
        }
    }
}

impl From<DocumentError> for Fault {
    fn from(error: DocumentError) -> Self {
        Self::Document(error)
    }
}
