//! [`Store`] for databases, which carry out one operation after another.

use std::future::Future;
use std::sync::Arc;

use arenite_model::{SandboxId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;

use super::{
    AnnotationStore, Answer, Contents, Op, Record, RecordId, RecordKind, Store, StoreError, TenantStore, UsageStore, VolumeRow,
    WebhookStore,
};
use crate::Sandbox;
use crate::nodes::NodeStore;
use crate::tenants::TenantLimits;

/// A database with all tables, behind a queue of operations.
pub(super) trait Database: TenantStore + UsageStore + WebhookStore + AnnotationStore {
    /// Carries out an operation.
    fn ask(&self, op: Op) -> impl Future<Output = Answer> + Send;
    /// See [`Store::node_store`].
    fn node_store(self: Arc<Self>) -> Option<Arc<dyn NodeStore>> {
        None
    }
    /// See [`Store::notes`].
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Waits for what carries out the operations, after the last one.
    fn join(&self) -> impl Future<Output = ()> + Send;
}

#[async_trait]
impl<D: Database> Store for D {
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError> {
        Ok(self.ask(Op::Load).await?.sandboxes)
    }

    async fn insert_within(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        self.ask(Op::Insert(Box::new(sandbox.clone()), limits.clone())).await.map(drop)
    }

    async fn reserve(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        self.ask(Op::Reserve(Box::new(sandbox.clone()), limits.clone())).await.map(drop)
    }

    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError> {
        self.ask(Op::Update(Box::new(sandbox.clone()))).await.map(drop)
    }

    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError> {
        self.ask(Op::Touch(used)).await.map(drop)
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.ask(Op::Remove(id.clone())).await.map(drop)
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        Ok(self.ask(Op::Records(kind)).await?.records)
    }

    async fn records_of(&self, kind: RecordKind, tenant: &TenantId) -> Result<Vec<Record>, StoreError> {
        Ok(self.ask(Op::RecordsOf(kind, tenant.clone())).await?.records)
    }

    async fn record(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.ask(Op::FindRecord(id.clone())).await?.records.pop())
    }

    async fn count_records(&self, kind: RecordKind, tenant: &TenantId) -> Result<u64, StoreError> {
        Ok(self.ask(Op::CountRecords(kind, tenant.clone())).await?.count)
    }

    async fn put_record(&self, record: Record) -> Result<(), StoreError> {
        self.ask(Op::PutRecord(record)).await.map(drop)
    }

    async fn put_volume(
        &self,
        record: Record,
        size_bytes: u64,
        before: Option<String>,
        limits: &TenantLimits,
    ) -> Result<(), StoreError> {
        let row = VolumeRow { record, size_bytes, before, limits: limits.clone() };
        self.ask(Op::PutVolume(Box::new(row))).await.map(drop)
    }

    async fn remove_record(&self, id: &RecordId) -> Result<(), StoreError> {
        self.ask(Op::RemoveRecord(id.clone())).await.map(drop)
    }

    async fn remove_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        self.ask(Op::RemoveExpired(now)).await.map(drop)
    }

    async fn import(&self, contents: Contents, replace: bool) -> Result<(), StoreError> {
        self.ask(Op::Import { contents: Box::new(contents), replace }).await.map(drop)
    }

    fn tenant_store(self: Arc<Self>) -> Option<Arc<dyn TenantStore>> {
        Some(self)
    }

    fn webhook_store(self: Arc<Self>) -> Option<Arc<dyn WebhookStore>> {
        Some(self)
    }

    fn annotation_store(self: Arc<Self>) -> Option<Arc<dyn AnnotationStore>> {
        Some(self)
    }

    fn usage_store(self: Arc<Self>) -> Option<Arc<dyn UsageStore>> {
        Some(self)
    }

    fn node_store(self: Arc<Self>) -> Option<Arc<dyn NodeStore>> {
        Database::node_store(self)
    }

    fn notes(&self) -> Vec<String> {
        Database::notes(self)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.ask(Op::Check).await.map(drop)
    }

    async fn close(&self) {
        // Already closed is fine.
        let _ = self.ask(Op::Close).await;
        self.join().await;
    }
}
