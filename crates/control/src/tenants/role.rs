use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a key may do. Each role includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See sandboxes and what is recorded of them.
    Read,
    /// Call sandboxes.
    Use,
    /// Create, delete, pause, resume and start sandboxes.
    Manage,
    /// Manage the tenant's keys and read its audit log.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Read, Self::Use, Self::Manage, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Use => "use",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| "a role is read, use, manage or admin".to_owned())
    }
}
