//! Tiers: what isolates a sandbox from the host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What isolates a sandbox from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Linux namespaces and filters. Its programs call the host's kernel.
    #[default]
    Namespace,
    /// gVisor inside those namespaces: its programs call gVisor's kernel, which is a process.
    Gvisor,
    /// An image with a VM, in QEMU inside those namespaces. The VM's programs call its own kernel. Commands of the sandbox run
    /// beside the VM, as in [`Tier::Namespace`].
    Machine,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::Namespace, Self::Gvisor, Self::Machine];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Gvisor => "gvisor",
            Self::Machine => "machine",
        }
    }

    /// Whether a sandbox of this tier fulfils a minimum. A VM does not stand for gVisor: commands of its sandbox call the host's
    /// kernel.
    pub fn satisfies(self, minimum: Self) -> bool {
        minimum == Self::Namespace || self == minimum
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Tier {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|tier| tier.as_str() == text);
        found.ok_or_else(|| format!("there is no tier {text:?}; there are {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_does_not_stand_for_gvisor() {
        for tier in Tier::ALL {
            assert_eq!(tier.as_str().parse(), Ok(tier));
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.as_str());
            assert!(tier.satisfies(Tier::Namespace) && tier.satisfies(tier), "{tier}");
        }
        assert!(!Tier::Namespace.satisfies(Tier::Gvisor) && !Tier::Machine.satisfies(Tier::Gvisor));
        assert!(!Tier::Gvisor.satisfies(Tier::Machine));
        assert!("vm".parse::<Tier>().unwrap_err().contains("namespace, gvisor, machine"));
    }
}
