use std::collections::BTreeMap;

use arenite_model::{KeyId, SandboxName, TenantId};

use super::{ApiKey, Binding, Role};
use crate::Sandbox;

/// An identified caller: its tenant and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: TenantId,
    /// None: the configured key, a server without authentication, or the server itself.
    pub key: Option<KeyId>,
    /// None: no rights at all.
    pub role: Option<Role>,
    /// It may act on what belongs to the server.
    pub operator: bool,
    /// The sandboxes that it is restricted to; empty: all of its tenant.
    pub bound: Vec<Binding>,
}

impl Principal {
    pub(super) fn of_key(key: &ApiKey) -> Self {
        Self {
            tenant: key.tenant.clone(),
            key: Some(key.id.clone()),
            role: Some(key.role),
            operator: key.operator,
            bound: key.bound.clone(),
        }
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
        Self { tenant, key: None, role: Some(Role::Admin), operator: false, bound: Vec::new() }
    }

    pub fn may(&self, role: Role) -> bool {
        self.role >= Some(role)
    }

    pub fn is_bound(&self) -> bool {
        !self.bound.is_empty()
    }

    /// Whether a sandbox of its tenant exists for it.
    pub fn sees(&self, sandbox: &Sandbox) -> bool {
        self.covers(Some(&sandbox.name), &sandbox.spec.labels)
    }

    /// Whether its bounds cover a sandbox with this name and these labels. Without a name, no bound names it.
    pub fn covers(&self, name: Option<&SandboxName>, labels: &BTreeMap<String, String>) -> bool {
        !self.is_bound() || self.bound.iter().any(|binding| binding.covers(name, labels))
    }
}
