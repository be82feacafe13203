use std::collections::BTreeMap;

use arenite_model::{KeyId, SandboxId, SandboxName, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ApiKey, Binding, Role, audit};
use crate::Sandbox;

/// An identified caller: its tenant and its rights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    pub tenant: TenantId,
    /// None: a user with a token, the configured key, a server without authentication, or the server itself.
    pub key: Option<KeyId>,
    /// A user with a token.
    pub subject: Option<String>,
    /// When a user's token expires.
    pub expires_at: Option<Timestamp>,
    /// None: no rights at all.
    pub role: Option<Role>,
    /// It may act on what belongs to the server.
    pub operator: bool,
    /// The sandboxes that it is restricted to; empty: all of its tenant.
    pub bound: Vec<Binding>,
    /// It is the agent in this sandbox, restricted to the sandboxes below.
    pub inside: Option<SandboxId>,
}

impl Principal {
    pub(super) fn of_key(key: &ApiKey) -> Self {
        Self {
            tenant: key.tenant.clone(),
            key: Some(key.id.clone()),
            subject: None,
            // Its key says it, which may change.
            expires_at: None,
            role: Some(key.role),
            operator: key.operator,
            bound: key.bound.clone(),
            inside: None,
        }
    }

    /// The agent in a sandbox, with the token of that sandbox.
    pub(crate) fn agent(tenant: TenantId, key: KeyId, inside: SandboxId) -> Self {
        Self { key: Some(key), role: Some(Role::Manage), inside: Some(inside), ..Self::server(tenant) }
    }

    /// A caller without rights.
    pub fn nobody() -> Self {
        Self { role: None, ..Self::server(TenantId::default_tenant()) }
    }

    /// The operator, in the tenant `default`.
    pub fn operator() -> Self {
        Self { operator: true, ..Self::server(TenantId::default_tenant()) }
    }

    /// The server itself, on behalf of a tenant.
    pub fn server(tenant: TenantId) -> Self {
        let (key, subject, expires_at, bound) = (None, None, None, Vec::new());
        Self { tenant, key, subject, expires_at, role: Some(Role::Admin), operator: false, bound, inside: None }
    }

    /// A user of a tenant, with a token of an issuer.
    pub fn of_user(tenant: TenantId, subject: String, role: Role, expires_at: Timestamp) -> Self {
        Self { role: Some(role), subject: Some(subject), expires_at: Some(expires_at), ..Self::server(tenant) }
    }

    /// Its key or its user: a key's id, or `user:` and a name.
    pub fn actor(&self) -> Option<String> {
        audit::actor(self.key.as_ref(), self.subject.as_deref())
    }

    /// Whether it has a credential that may end before its connection does.
    pub fn may_end(&self) -> bool {
        (self.key.is_some() || self.subject.is_some()) && self.inside.is_none()
    }

    pub fn may(&self, role: Role) -> bool {
        self.role >= Some(role)
    }

    pub fn is_bound(&self) -> bool {
        !self.bound.is_empty() || self.inside.is_some()
    }

    /// Whether a sandbox of its tenant exists for it.
    pub fn sees(&self, sandbox: &Sandbox) -> bool {
        match &self.inside {
            Some(id) => sandbox.provenance.ancestors.contains(id),
            None => self.covers(Some(&sandbox.name), &sandbox.spec.labels),
        }
    }

    /// Whether its bounds cover a sandbox with this name and these labels. Without a name, no bound names it.
    pub fn covers(&self, name: Option<&SandboxName>, labels: &BTreeMap<String, String>) -> bool {
        !self.is_bound() || self.bound.iter().any(|binding| binding.covers(name, labels))
    }
}
