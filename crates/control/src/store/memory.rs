use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arenite_model::{SandboxId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;

use super::{Contents, Record, RecordId, RecordKind, Store, StoreError, VolumeRow};
use crate::Sandbox;
use crate::tenants::{Reserved, TenantLimits};

/// A store without a file: the twin of the real one, for tests that move time.
#[derive(Default)]
pub struct MemoryStore {
    rows: Mutex<Rows>,
}

#[derive(Default)]
struct Rows {
    by_id: BTreeMap<SandboxId, Sandbox>,
    records: BTreeMap<RecordId, Record>,
    closed: bool,
}

impl Rows {
    fn check(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        let others = self.by_id.values().filter(|row| row.tenant == sandbox.tenant && row.id != sandbox.id);
        let used: Reserved = others.map(Reserved::from_sandbox).sum();
        Ok(used.check(&Reserved::from_sandbox(sandbox), limits)?)
    }

    fn update(&mut self, sandbox: &Sandbox) {
        if let Some(row) = self.by_id.get_mut(&sandbox.id) {
            row.state = sandbox.state;
            row.reason.clone_from(&sandbox.reason);
            row.died.clone_from(&sandbox.died);
            row.spec.clone_from(&sandbox.spec);
            row.expires_at = sandbox.expires_at;
            row.revision = sandbox.revision;
            row.state_since = sandbox.state_since;
            row.isolation.clone_from(&sandbox.isolation);
            row.last_used_at = sandbox.last_used_at;
        }
    }
}

impl MemoryStore {
    fn rows(&self) -> Result<MutexGuard<'_, Rows>, StoreError> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        match rows.closed {
            true => Err(StoreError::Closed),
            false => Ok(rows),
        }
    }

    /// Reopens it after a close, like a file.
    pub fn reopen(&self) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).closed = false;
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError> {
        Ok(self.rows()?.by_id.values().cloned().collect())
    }

    async fn insert_within(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        let mut rows = self.rows()?;
        let taken =
            rows.by_id.values().any(|row| row.id == sandbox.id || (row.tenant == sandbox.tenant && row.name == sandbox.name));
        if taken {
            return Err(StoreError::Taken);
        }
        rows.check(sandbox, limits)?;
        let row = Sandbox { stages: Vec::new(), ..sandbox.clone() };
        if let Some(record) = sandbox.key_record()? {
            rows.records.entry(record.id.clone()).or_insert(record);
        }
        rows.by_id.insert(row.id.clone(), row);
        Ok(())
    }

    async fn reserve(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        let mut rows = self.rows()?;
        rows.check(sandbox, limits)?;
        rows.update(sandbox);
        Ok(())
    }

    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError> {
        self.rows()?.update(sandbox);
        Ok(())
    }

    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError> {
        let mut rows = self.rows()?;
        for (id, at) in used {
            if let Some(row) = rows.by_id.get_mut(&id) {
                row.last_used_at = at;
            }
        }
        Ok(())
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.rows()?.by_id.remove(id);
        Ok(())
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        Ok(self.rows()?.records.values().filter(|record| record.id.kind == kind).cloned().collect())
    }

    async fn records_of(&self, kind: RecordKind, tenant: &TenantId) -> Result<Vec<Record>, StoreError> {
        let rows = self.rows()?;
        Ok(rows.records.values().filter(|record| record.id.kind == kind && record.id.tenant == *tenant).cloned().collect())
    }

    async fn record(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.rows()?.records.get(id).cloned())
    }

    async fn count_records(&self, kind: RecordKind, tenant: &TenantId) -> Result<u64, StoreError> {
        Ok(self.rows()?.records.keys().filter(|id| id.kind == kind && id.tenant == *tenant).count() as u64)
    }

    async fn put_record(&self, record: Record) -> Result<(), StoreError> {
        self.rows()?.records.insert(record.id.clone(), record);
        Ok(())
    }

    async fn put_volume(
        &self,
        record: Record,
        size_bytes: u64,
        before: Option<String>,
        limits: &TenantLimits,
    ) -> Result<(), StoreError> {
        let mut rows = self.rows()?;
        if rows.records.get(&record.id).map(|found| &found.value) != before.as_ref() {
            return Err(StoreError::Taken);
        }
        let others = rows.records.values().filter(|other| {
            other.id.kind == RecordKind::Volume && other.id.tenant == record.id.tenant && other.id.key != record.id.key
        });
        let sizes: Vec<u64> = others
            .filter_map(|other| serde_json::from_str::<serde_json::Value>(&other.value).ok()?["size_bytes"].as_u64())
            .collect();
        let row = VolumeRow { record, size_bytes, before, limits: limits.clone() };
        row.check(sizes.len() as u64, sizes.iter().sum())?;
        rows.records.insert(row.record.id.clone(), row.record);
        Ok(())
    }

    async fn remove_record(&self, id: &RecordId) -> Result<(), StoreError> {
        self.rows()?.records.remove(id);
        Ok(())
    }

    async fn remove_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        self.rows()?.records.retain(|_, record| record.expires_at.is_none_or(|end| end >= now));
        Ok(())
    }

    async fn import(&self, contents: Contents, replace: bool) -> Result<(), StoreError> {
        let mut current = self.rows()?;
        if !replace && !current.by_id.is_empty() {
            return Err(StoreError::NotEmpty { rows: current.by_id.len() });
        }
        let mut names = BTreeSet::new();
        let mut by_id = BTreeMap::new();
        for row in contents.sandboxes {
            let is_free = names.insert((row.tenant.to_string(), row.name.to_string()));
            if !is_free || by_id.insert(row.id.clone(), Sandbox { stages: Vec::new(), ..row }).is_some() {
                return Err(StoreError::Taken);
            }
        }
        current.by_id = by_id;
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.rows().map(drop)
    }

    async fn close(&self) {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}
