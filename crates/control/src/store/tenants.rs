//! The persistent store of tenants, keys and the audit log.

use arenite_model::{KeyId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;

use super::StoreError;
use crate::tenants::{ApiKey, AuditEntry, AuditQuery, AuditRow, Tenant};

/// The result of a tenant's removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedTenant {
    Removed,
    /// It has this number of sandboxes, so nothing changed.
    HasSandboxes(u64),
}

/// A store of tenants. Each operation is one transaction.
#[async_trait]
pub trait TenantStore: Send + Sync + 'static {
    /// All tenants that are not removed.
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;
    /// Adds a tenant.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if a tenant has or had its name.
    async fn create_tenant(&self, tenant: &Tenant) -> Result<(), StoreError>;
    /// Writes limits and `disabled`.
    async fn set_tenant(&self, tenant: &Tenant) -> Result<(), StoreError>;
    /// Removes a tenant without sandboxes, with its keys. Its name stays taken.
    async fn remove_tenant(&self, name: &TenantId, at: Timestamp) -> Result<RemovedTenant, StoreError>;
    /// All keys.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;
    /// Adds a key, and deletes ended ones.
    async fn create_key(&self, key: &ApiKey, ended: &[KeyId]) -> Result<(), StoreError>;
    /// Writes the expiry of `old`, adds `new`, and deletes ended keys.
    async fn rotate_key(&self, old: &ApiKey, new: &ApiKey, ended: &[KeyId]) -> Result<(), StoreError>;
    /// Writes `revoked_at`.
    async fn revoke_key(&self, key: &ApiKey) -> Result<(), StoreError>;
    async fn append_audit(&self, rows: Vec<AuditEntry>) -> Result<(), StoreError>;
    /// Deletes the oldest rows of a tenant, or of callers without one, until `keep` are left.
    async fn trim_audit(&self, tenant: Option<&TenantId>, keep: u64) -> Result<(), StoreError>;
    async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditRow>, StoreError>;
}
