//! The job and the answer of a confined process. Both are sent as JSON.

use std::path::PathBuf;
use std::time::Duration;

use arenite_documents::{Content, DocumentError, Selection};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

#[derive(Debug, Serialize, Deserialize)]
pub enum Job {
    /// Shows a part of the document at descriptor 0 as text.
    View { name: String, selection: Selection },
    /// Converts the document at descriptor 0 to Markdown.
    Markdown { name: String },
    /// Converts the document in the data URI at descriptor 0 to Markdown.
    DataUri,
    /// Fetches a URL and converts it to Markdown.
    Fetch {
        uri: String,
        /// Ports of loopback that must not be fetched from.
        closed: Vec<u16>,
    },
    /// Finds the skills in a directory.
    FindSkills { directory: PathBuf },
    /// Unpacks the archive at descriptor 0 and moves its skills into `directory`.
    UnpackSkills {
        directory: PathBuf,
        /// Where to unpack: a new directory in `directory`, removed at the end.
        scratch: PathBuf,
        /// The name of the skill's directory; `None`: the archive's name.
        name: Option<String>,
        /// The name of a skill at the archive's root that has no name itself.
        fallback: String,
    },
}

/// The limits of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Includes the wait for a slot.
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
pub struct FoundSkill {
    /// From its front matter, else its directory's name.
    pub name: String,
    pub directory: PathBuf,
    /// Its front matter.
    pub metadata: Map<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum JobOutput {
    Content(Content),
    Skills(Vec<FoundSkill>),
}

/// Why a job has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Fault {
    #[error("{0}")]
    Document(DocumentError),
    #[error("{message}")]
    Refused { message: String, hint: Option<String> },
    #[error("{message}: {reason}")]
    Io { message: String, reason: String },
}

impl Fault {
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), hint: None }
    }

    pub fn io(message: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Io { message: message.into(), reason: reason.to_string() }
    }

    pub fn hint(&self) -> Option<String> {
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
