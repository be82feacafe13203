//! A copy of a row that the engine keeps with the sandbox, to recreate a lost store.

use arenite_engine::Row;
use arenite_model::{Death, SandboxId, SandboxName, SandboxSpec, SandboxState, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::sandbox::first_revision;
use crate::{Provenance, Sandbox};

/// The parts of a row that the engine can't report. A change of one of them is written to the engine as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memo {
    pub(crate) tenant: TenantId,
    pub(crate) name: SandboxName,
    spec: SandboxSpec,
    #[serde(default)]
    template: Option<String>,
    #[serde(default)]
    origin: String,
    created_at: Timestamp,
    #[serde(default)]
    expires_at: Option<Timestamp>,
    #[serde(default = "first_revision")]
    revision: u64,
    #[serde(default)]
    provenance: Provenance,
}

impl Memo {
    pub(crate) fn from_sandbox(sandbox: &Sandbox) -> Self {
        Self {
            tenant: sandbox.tenant.clone(),
            name: sandbox.name.clone(),
            spec: sandbox.spec.clone(),
            template: sandbox.template.clone(),
            origin: sandbox.origin.clone(),
            created_at: sandbox.created_at,
            expires_at: sandbox.expires_at,
            revision: sandbox.revision,
            provenance: sandbox.provenance.clone(),
        }
    }

    /// Parses a memo.
    ///
    /// # Errors
    /// A description, if another version wrote it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("its record does not say whose it is: {error}"))
    }

    /// Recreates the row. Its last use is now.
    pub(crate) fn sandbox(self, id: SandboxId, state: SandboxState, died: Option<Death>, now: Timestamp) -> Sandbox {
        Sandbox {
            id,
            tenant: self.tenant,
            name: self.name,
            state,
            pause_kind: None,
            spec: self.spec,
            template: self.template,
            reason: died.as_ref().map(|death| death.message.clone()),
            died,
            isolation: Vec::new(),
            origin: self.origin,
            created_at: self.created_at,
            last_used_at: now,
            state_since: now,
            expires_at: self.expires_at,
            revision: self.revision,
            provenance: self.provenance,
            stages: Vec::new(),
            node: None,
        }
    }
}

/// The row for the engine.
pub(crate) fn row(sandbox: &Sandbox) -> Row {
    let memo = serde_json::to_string(&Memo::from_sandbox(sandbox)).expect("names, a spec and times are JSON");
    Row { id: sandbox.id.clone(), name: sandbox.name.clone(), memo }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_memo() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut spec = SandboxSpec::of_image("base".parse().unwrap());
        spec.env.insert("A".to_owned(), "b".to_owned());
        let memo = Memo {
            tenant: TenantId::default_tenant(),
            name: "demo".parse().unwrap(),
            spec,
            template: Some("default".to_owned()),
            origin: "api".to_owned(),
            created_at: now,
            expires_at: Some(now),
            revision: 3,
            provenance: Provenance { client_tag: Some("t".to_owned()), ..Provenance::default() },
        };
        let sandbox = memo.clone().sandbox(SandboxId::random(), SandboxState::Paused, None, now);
        assert_eq!(Memo::read(&row(&sandbox).memo).unwrap(), memo);
        assert!(Memo::read("{}").is_err());
    }
}
