//! Rows of the audit log: who did what, on what, from where, with which outcome. They contain no bodies.

use arenite_model::{KeyId, TenantId};
use jiff::Timestamp;

/// Longest text of a field, in characters.
const MAX_TEXT: usize = 256;

/// A row to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// None: the caller did not identify itself.
    pub tenant: Option<TenantId>,
    /// None: the server itself, the configured key, or nobody.
    pub key: Option<KeyId>,
    /// Such as `sandbox.create`.
    pub action: String,
    /// What it was done to, such as a sandbox's name.
    pub object: String,
    /// The client's address.
    pub client: Option<String>,
    /// `ok`, or the code of the error.
    pub outcome: String,
}

impl AuditEntry {
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
            outcome: bounded(self.outcome),
            ..self
        }
    }
}

/// A stored row. Numbers grow with time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    pub number: u64,
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
