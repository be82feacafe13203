//! Kinds of a pause.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a pause keeps of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PauseKind {
    /// Its processes stop. They keep their memory, and a resume continues them.
    #[default]
    Freeze,
    /// Its processes end, which frees their memory. Its disk stays, and a resume starts it again.
    Disk,
}

impl PauseKind {
    pub const ALL: [Self; 2] = [Self::Freeze, Self::Disk];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for PauseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for PauseKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| format!("unknown kind of a pause {text:?}"))
    }
}
