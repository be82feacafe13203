use std::io;
use std::path::PathBuf;

use arenite_model::ErrorCode;
use thiserror::Error;

use crate::{Format, MAX_BRANCHES};

/// An error while recording or reading back.
#[derive(Debug, Error)]
pub enum TrajectoryError {
    #[error("could not {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("another server records into {}", path.display())]
    InUse { path: PathBuf },
    #[error("trajectory id {given:?} is not valid: use 1 to 64 letters, digits, hyphens and underscores")]
    BadTrajectory { given: String },
    #[error("blob digest {given:?} is not valid: it is 64 lower-case hexadecimal digits")]
    BadDigest { given: String },
    #[error("there is no origin {given:?}; steps come from agent, person or system")]
    BadOrigin { given: String },
    #[error("there is no class {given:?}; failures are of the agent or of the infrastructure")]
    BadClass { given: String },
    #[error("there is no trajectory {trajectory}")]
    NoTrajectory { trajectory: String },
    #[error("there is no blob {digest}")]
    NoBlob { digest: String },
    #[error("the body {digest} is damaged: its bytes are not those that were recorded")]
    DamagedBlob { digest: String },
    /// The limit on all logs together is reached: calls are refused rather than made without a record.
    #[error("the trajectory logs use {used} bytes of {limit}, so no further call is accepted")]
    LogsFull { used: u64, limit: u64 },
    /// The limit on a tenant's logs is reached; other tenants' calls are recorded.
    #[error("the tenant's trajectory logs use {used} bytes of {limit}, so no further call of it is accepted")]
    TenantFull { used: u64, limit: u64 },
    #[error("the disk of the trajectory logs is full, so no further call is accepted")]
    DiskFull,
    #[error("trajectory {trajectory} has {open} calls under way, which is the most it may have")]
    TooManyOpen { trajectory: String, open: usize },
    #[error("trajectory {trajectory} is followed by {most} already, which is the most it may be")]
    TooManyFollowers { trajectory: String, most: usize },
    #[error("there is no export format {given:?}; there are {}", format_names())]
    BadFormat { given: String },
    #[error(
        "trajectory {trajectory} has {branches} branches; this format repeats for each what leads to it, and takes {MAX_BRANCHES}"
    )]
    TooManyBranches { trajectory: String, branches: usize },
    #[error("trajectory {trajectory} has calls under way, so it can't be removed")]
    Busy { trajectory: String },
    #[error("trajectory {trajectory} is archived, so nothing can be added to it")]
    Archived { trajectory: String },
    /// The object store does not answer, or refuses.
    #[error("the archive of trajectories at {place} can't be used: {reason}")]
    Archive { place: String, reason: String },
    #[error("the archived object {name} is damaged: {what}")]
    DamagedObject { name: String, what: String },
}

impl TrajectoryError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }

    /// The stable error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. }
            | Self::InUse { .. }
            | Self::DamagedBlob { .. }
            | Self::Archive { .. }
            | Self::DamagedObject { .. } => ErrorCode::Internal,
            Self::BadTrajectory { .. }
            | Self::BadDigest { .. }
            | Self::BadFormat { .. }
            | Self::BadOrigin { .. }
            | Self::BadClass { .. }
            | Self::TooManyBranches { .. } => ErrorCode::InvalidRequest,
            Self::NoTrajectory { .. } | Self::NoBlob { .. } => ErrorCode::NotFound,
            Self::LogsFull { .. }
            | Self::TenantFull { .. }
            | Self::DiskFull
            | Self::TooManyOpen { .. }
            | Self::TooManyFollowers { .. } => ErrorCode::Exhausted,
            Self::Busy { .. } | Self::Archived { .. } => ErrorCode::Conflict,
        }
    }

    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TenantFull { .. } => "export and remove old trajectories, or ask an operator for a higher limit",
            Self::LogsFull { .. } => "export and remove old trajectories, or raise the limit on trajectory logs",
            Self::DiskFull => "free space on the disk of the data directory, then retry",
            Self::TooManyOpen { .. } | Self::Busy { .. } => "wait for calls to end, then retry",
            Self::TooManyFollowers { .. } => "close a page that shows its steps, then retry",
            Self::TooManyBranches { .. } => "agentflow-synthesis, atif and jsonl have each step once",
            Self::InUse { .. } => "stop the other server, or give this one its own data directory",
            Self::NoBlob { .. } => "a body over the limit, or met while the blob store was full, has only its hash kept",
            Self::DamagedObject { .. } => "restore an older version of the object, if its store keeps versions",
            Self::DamagedBlob { .. } => "see what else is with: arenite trajectory verify; the disk may be failing",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn format_names() -> String {
    Format::ALL.map(Format::name).join(", ")
}
