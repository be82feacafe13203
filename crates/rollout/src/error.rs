use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::connector::ConnectorError;

/// Why tasks could not be run, or not to the end.
#[derive(Debug, Error)]
pub enum RolloutError {
    #[error("could not {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} can't be used:\n{}", path.display(), shown(faults, *more))]
    BadTasks { path: PathBuf, faults: Vec<Fault>, more: usize },
    #[error("{} has no tasks", path.display())]
    NoTasks { path: PathBuf },
    #[error("another runner is at work in {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} holds a run of {what}", path.display())]
    OtherRun { path: PathBuf, what: &'static str },
    #[error("line {line} of {} is not understood: {why}", path.display())]
    BadJournal { path: PathBuf, line: usize, why: String },
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    #[error("the API key can't be sent: it has characters that no header has")]
    BadKey,
    #[error("the server refuses the API key, or asks for one ({status})")]
    Refused { status: u16 },
    #[error("no server answers at {server}; waited {} s", waited.as_secs())]
    ServerGone { server: String, waited: Duration },
    #[error("stopped before the end")]
    Interrupted,
    #[error("could not write {}: {source}", path.display())]
    Parquet { path: PathBuf, source: parquet::errors::ParquetError },
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// The fault in one line of a tasks file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub line: usize,
    pub why: String,
}

/// Every fault on a separate line.
fn shown(faults: &[Fault], more: usize) -> String {
    let mut lines: Vec<_> = faults.iter().map(|fault| format!("  line {}: {}", fault.line, fault.why)).collect();
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n")
}

impl RolloutError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadTasks { .. } | Self::NoTasks { .. } => {
                "each line is a JSON object, such as {\"id\": \"sum\", \"question\": \"What is 6 * 7?\", \"answer\": \"42\"}"
            }
            Self::InUse { .. } => "wait for it, stop it, or name another directory with --out",
            Self::OtherRun { .. } => "name another directory with --out, or start over in this one with --fresh",
            Self::BadJournal { .. } => "start over with --fresh, or name another directory with --out",
            Self::Connector(error) => return error.hint(),
            Self::Refused { .. } => "set ARENITE_API_KEY, or pass --api-key",
            Self::ServerGone { .. } => {
                "start one with: sudo arenite serve; or name another with --server URL or ARENITE_SERVER. \
                 Then run the same command again: it goes on where it stopped"
            }
            Self::Interrupted => "run the same command again: it goes on where it stopped",
            Self::Io { .. } | Self::BadKey | Self::Parquet { .. } | Self::Random(_) => return None,
        };
        Some(hint.to_owned())
    }
}
