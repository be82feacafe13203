//! Trajectories in the formats of other programs. A file per format.
//!
//! Formats share these: [`tree`] has which step continues which, [`source`] reads steps with their large bodies, [`call`]
//! describes one step as a call with its result, [`conversation`] has the turns of models, [`shown`] converts an answer to the
//! text that a model sees. Bodies are read by their shape, without knowledge of dialects.
//!
//! Annotations are not in the record: the caller passes them ([`Annotations`]), and each format has them where it has a place.
//!
//! # Memory
//!
//! Steps are read a page at a time, and each is written before the next is read. A body of more than [`MAX_PARSED`] bytes is
//! referenced, not shown. What a format needs of the whole is numbers: about 40 bytes a step. With calls of models, it is also one
//! conversation, and about 100 bytes a message.
//!
//! # Unknown answers
//!
//! A step that is open, interrupted, or left by its client has no answer here. Formats that allow it omit the answer or contain
//! null; the others contain a line in brackets with the reason. Questions, reasoning and final answers are those of recorded calls
//! of models. Without such calls, the server never sees them, and no format has any.

mod annotations;
mod asciicast;
mod atif;
mod call;
mod conversation;
mod jsonl;
mod messages;
mod rollout;
mod sharegpt;
mod shown;
mod source;
mod synthesis;
mod tree;
mod writer;

use std::io::Write;
use std::str::FromStr;

use arenite_model::TenantId;

use crate::{Filter, Recorder, TrajectoryError};
pub use annotations::Annotations;
pub(crate) use call::is_envelope;
pub use call::tool;
pub(crate) use shown::picture;
use source::Source;
use tree::Tree;
use writer::Writer;

/// Largest body that an export reads, in bytes; a larger one is referenced by its hash. JSON in memory may be sixteen times as
/// large.
pub const MAX_PARSED: u64 = 4 << 20;
/// The most branches of one trajectory in formats that repeat the steps before each.
pub const MAX_BRANCHES: usize = 1000;

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One step a line, with everything that was recorded.
    Jsonl,
    /// AgentFlow's rollout: a line for each branch.
    AgentflowRollout,
    /// AgentFlow's exploration tree.
    AgentflowSynthesis,
    /// Agent Trajectory Interchange Format 1.7.
    Atif,
    /// Chat API messages with tool calls: a line for each branch.
    OpenaiMessages,
    /// Conversations with function calls: a line for each branch.
    Sharegpt,
    /// The commands as a terminal recording, version 2.
    Asciicast,
}

impl Format {
    pub const ALL: [Self; 7] = [
        Self::Jsonl,
        Self::AgentflowRollout,
        Self::AgentflowSynthesis,
        Self::Atif,
        Self::OpenaiMessages,
        Self::Sharegpt,
        Self::Asciicast,
    ];

    /// The format's name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::AgentflowRollout => "agentflow-rollout",
            Self::AgentflowSynthesis => "agentflow-synthesis",
            Self::Atif => "atif",
            Self::OpenaiMessages => "openai-messages",
            Self::Sharegpt => "sharegpt",
            Self::Asciicast => "asciicast",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Jsonl | Self::AgentflowRollout | Self::OpenaiMessages | Self::Sharegpt => "application/x-ndjson",
            Self::AgentflowSynthesis | Self::Atif => "application/json",
            Self::Asciicast => "application/x-asciicast",
        }
    }

    /// The extension of a file name, after the format's own name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Jsonl | Self::AgentflowRollout | Self::OpenaiMessages | Self::Sharegpt => "jsonl",
            Self::AgentflowSynthesis | Self::Atif => "json",
            Self::Asciicast => "cast",
        }
    }

    /// Whether its readers know other fields than the format's own, or ignore them. The others get annotations on request only.
    pub fn has_place_for_annotations(self) -> bool {
        !matches!(self, Self::OpenaiMessages | Self::Sharegpt)
    }
}

impl FromStr for Format {
    type Err = TrajectoryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| TrajectoryError::BadFormat { given: text.chars().take(80).collect() })
    }
}

impl Recorder {
    /// Writes the steps that pass the filter in a format, with annotations where the format has a place for them, and returns the
    /// number of steps.
    ///
    /// # Errors
    /// [`TrajectoryError::TooManyBranches`] above [`MAX_BRANCHES`], in formats that write branches one by one.
    pub fn export_as(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        (format, filter, annotations): (Format, &Filter, &Annotations),
        out: &mut dyn Write,
    ) -> Result<u64, TrajectoryError> {
        let mut out = Writer::new(out, trajectory);
        if format == Format::Jsonl {
            return jsonl::write(self, (tenant, trajectory), (filter, annotations), &mut out);
        }
        let mut source = Source::new(self, tenant, (trajectory, annotations));
        let tree = Tree::read(&mut source, filter)?;
        match format {
            Format::Jsonl => {}
            Format::AgentflowRollout => rollout::write(&mut source, &tree, &mut out)?,
            Format::AgentflowSynthesis => synthesis::write(&mut source, &tree, &mut out)?,
            Format::Atif => atif::write(&mut source, &tree, &mut out)?,
            Format::OpenaiMessages => messages::write(&mut source, &tree, &mut out)?,
            Format::Sharegpt => sharegpt::write(&mut source, &tree, &mut out)?,
            Format::Asciicast => asciicast::write(&mut source, &tree, &mut out)?,
        }
        Ok(tree.all_numbers().len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_their_names_alone() {
        for format in Format::ALL {
            assert_eq!(format.name().parse::<Format>().unwrap(), format);
        }
        let error = "ATIF".parse::<Format>().unwrap_err();
        assert!(error.to_string().contains("openai-messages"), "{error}");
    }
}
