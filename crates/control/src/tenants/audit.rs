//! Rows of the audit log: who did what, on what, from where, with which outcome. They contain no bodies.

use arenite_model::{IdError, KeyId, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Longest text of a field, in characters.
const MAX_TEXT: usize = 256;
/// Before a user's name, where keys' ids are. No id has a colon.
const USER: &str = "user:";

/// A row to append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// None: the caller did not identify itself.
    pub tenant: Option<TenantId>,
    /// None: a user with a token, the server itself, the configured key, or nobody.
    pub key: Option<KeyId>,
    /// A user with a token.
    pub subject: Option<String>,
    /// Such as `sandbox.create`.
    pub action: String,
    /// What it was done to, such as a sandbox's name.
    pub object: String,
    /// The client's address.
    pub client: Option<String>,
    /// `ok`, or the code of the error.
    pub outcome: String,
}

pub(super) fn actor(key: Option<&KeyId>, subject: Option<&str>) -> Option<String> {
    key.map(KeyId::to_string).or_else(|| subject.map(|subject| format!("{USER}{subject}")))
}

impl AuditEntry {
    /// The key or the user: a key's id, or `user:` and a name.
    pub fn actor(&self) -> Option<String> {
        actor(self.key.as_ref(), self.subject.as_deref())
    }

    /// Reads what [`Self::actor`] returned.
    pub(crate) fn read_actor(actor: Option<String>) -> Result<(Option<KeyId>, Option<String>), IdError> {
        let Some(actor) = actor else { return Ok((None, None)) };
        match actor.strip_prefix(USER) {
            Some(subject) => Ok((None, Some(subject.to_owned()))),
            None => Ok((Some(actor.parse()?), None)),
        }
    }

    /// The same with texts of limited length, without control characters.
    pub(crate) fn bounded(self) -> Self {
        let bounded = |text: String| match text.len() <= MAX_TEXT && !text.contains(|c: char| c.is_control()) {
            true => text,
            false => text.chars().take(MAX_TEXT).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        };
        Self {
            action: bounded(self.action),
            object: bounded(self.object),
            client: self.client.map(bounded),
            subject: self.subject.map(bounded),
            outcome: bounded(self.outcome),
            ..self
        }
    }
}

/// A stored row. Numbers grow with time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    pub number: u64,
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// Selects rows, the newest first.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    /// None: the rows of all tenants, and those without one.
    pub tenant: Option<TenantId>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// The last row of the page before.
    pub before: Option<u64>,
    pub limit: usize,
}
