//! States of a sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A sandbox's state.
///
/// ```text
///            create            pause
/// (nothing) ───────► Creating ─────► Running ◄────► Paused
///                       │               │  resume     │
///                       ▼               ▼             ▼
///                    Failed          Deleting ◄───────┘
///                                       │
///        host rebooted: Lost ───────────┴──► (nothing)
/// ```
///
/// `Failed` and `Lost` become `Running` when the sandbox is started again on its disk. So does a sandbox that is `Paused` to its
/// disk (see [`crate::PauseKind`]).
///
/// `Creating` is in the store before the engine is asked, so that a crash leaves a row to clean up after.
/// `Failed` keeps the reason until it is deleted or its time is up. `Lost` has no processes any more, only a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Creating,
    Running,
    Paused,
    Deleting,
    Failed,
    Lost,
}

impl SandboxState {
    pub const ALL: [Self; 6] = [Self::Creating, Self::Running, Self::Paused, Self::Deleting, Self::Failed, Self::Lost];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Deleting => "deleting",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }

    /// Whether a sandbox may go from this state to `next`.
    pub fn may_become(self, next: Self) -> bool {
        use SandboxState::*;
        matches!(
            (self, next),
            (Creating, Running | Failed | Deleting)
                | (Running, Paused | Deleting | Failed | Lost)
                | (Paused, Running | Deleting | Failed | Lost)
                | (Failed | Lost, Running | Deleting)
        )
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for SandboxState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| format!("unknown sandbox state {text:?}"))
    }
}
