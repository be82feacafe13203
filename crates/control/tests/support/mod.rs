//! Shared parts of control's tests.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]
#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod cluster;
pub(crate) mod home;

use std::sync::{Arc, Mutex};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{Contents, MemoryStore, Record, RecordId, RecordKind, Store, StoreError};
use arenite_control::tenants::TenantLimits;
use arenite_control::{Control, ControlConfig, CreateRequest, Provenance, Sandbox, Volume};
use arenite_model::{SandboxId, SandboxName, SandboxSpec, SandboxState, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn tenant() -> TenantId {
    TenantId::default_tenant()
}

pub(crate) fn name(text: &str) -> SandboxName {
    text.parse().unwrap()
}

/// The row of a volume that is on no node and in no bucket.
pub(crate) fn volume_record(volume: &Volume) -> Record {
    let Volume { tenant, name, id, size_bytes, labels, created_at, is_removing, .. } = volume;
    let value = serde_json::json!({
        "id": id, "size_bytes": size_bytes, "labels": labels, "created_at": created_at, "is_removing": is_removing,
    });
    let id = RecordId { kind: RecordKind::Volume, tenant: tenant.clone(), key: name.to_string() };
    Record { id, value: value.to_string(), expires_at: None }
}

pub(crate) fn removing(volume: &Volume) -> Volume {
    Volume { is_removing: true, ..volume.clone() }
}

pub(crate) fn config() -> ControlConfig {
    ControlConfig::new("unused".into(), "base".parse().unwrap())
}

pub(crate) fn named(text: &str) -> CreateRequest {
    CreateRequest { name: Some(name(text)), origin: "test".to_owned(), ..CreateRequest::default() }
}

pub(crate) async fn start(config: ControlConfig, engine: &Arc<FakeEngine>) -> Arc<Control> {
    start_on(config, engine, Arc::new(MemoryStore::default())).await
}

pub(crate) async fn start_on(config: ControlConfig, engine: &Arc<FakeEngine>, store: Arc<dyn Store>) -> Arc<Control> {
    let engine: Arc<FakeEngine> = Arc::clone(engine);
    Control::start_with(config, engine, store).await.unwrap()
}

/// A row with something in each column.
pub(crate) fn sandbox(tenant: &str, name: &str) -> Sandbox {
    let at = Timestamp::from_microsecond(1_700_000_000_123_456).unwrap();
    let mut spec = SandboxSpec::of_image("team/tools:2".parse().unwrap());
    spec.env.insert("A".to_owned(), "b\nc".to_owned());
    spec.idle_timeout_seconds = Some(60);
    Sandbox {
        id: SandboxId::random(),
        tenant: tenant.parse().unwrap(),
        name: name.parse().unwrap(),
        state: SandboxState::Creating,
        pause_kind: None,
        spec,
        template: Some("aio".to_owned()),
        reason: None,
        died: None,
        revision: 1,
        isolation: Vec::new(),
        origin: "test".to_owned(),
        created_at: at,
        last_used_at: at,
        state_since: at,
        expires_at: Some(at),
        provenance: Provenance { client_tag: Some("tag".to_owned()), ..Provenance::default() },
        stages: Vec::new(),
        node: None,
    }
}

/// All of a row, to compare.
pub(crate) fn text(sandbox: &Sandbox) -> String {
    serde_json::to_string(sandbox).unwrap()
}

/// A moment of the store at which a server may die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeInsert,
    AfterInsert,
    BeforeUpdate,
    AfterUpdate,
    BeforeRecord,
    AfterRecord,
    BeforeRemove,
    AfterRemove,
}

/// A store in memory that halts every caller at a chosen moment, for good.
#[derive(Default)]
pub(crate) struct HaltingStore {
    rows: MemoryStore,
    halt: Mutex<Option<Moment>>,
    pub(crate) reached: Notify,
}

impl HaltingStore {
    pub(crate) fn halt(&self, moment: Option<Moment>) {
        *self.halt.lock().unwrap() = moment;
    }

    async fn pass(&self, moment: Moment) {
        if *self.halt.lock().unwrap() == Some(moment) {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Store for HaltingStore {
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError> {
        self.rows.load().await
    }

    async fn insert_within(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        self.pass(Moment::BeforeInsert).await;
        self.rows.insert_within(sandbox, limits).await?;
        self.pass(Moment::AfterInsert).await;
        Ok(())
    }

    async fn reserve(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
        self.rows.reserve(sandbox, limits).await
    }

    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError> {
        self.pass(Moment::BeforeUpdate).await;
        self.rows.update(sandbox).await?;
        self.pass(Moment::AfterUpdate).await;
        Ok(())
    }

    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError> {
        self.rows.touch(used).await
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.pass(Moment::BeforeRemove).await;
        self.rows.remove(id).await?;
        self.pass(Moment::AfterRemove).await;
        Ok(())
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.rows.records(kind).await
    }

    async fn records_of(&self, kind: RecordKind, tenant: &TenantId) -> Result<Vec<Record>, StoreError> {
        self.rows.records_of(kind, tenant).await
    }

    async fn put_volume(
        &self,
        record: Record,
        size_bytes: u64,
        before: Option<String>,
        limits: &TenantLimits,
    ) -> Result<(), StoreError> {
        self.rows.put_volume(record, size_bytes, before, limits).await
    }

    async fn record(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.rows.record(id).await
    }

    async fn count_records(&self, kind: RecordKind, tenant: &TenantId) -> Result<u64, StoreError> {
        self.rows.count_records(kind, tenant).await
    }

    async fn put_record(&self, record: Record) -> Result<(), StoreError> {
        self.pass(Moment::BeforeRecord).await;
        self.rows.put_record(record).await?;
        self.pass(Moment::AfterRecord).await;
        Ok(())
    }

    async fn remove_record(&self, id: &RecordId) -> Result<(), StoreError> {
        self.rows.remove_record(id).await
    }

    async fn remove_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        self.rows.remove_expired(now).await
    }

    async fn import(&self, contents: Contents, replace: bool) -> Result<(), StoreError> {
        self.rows.import(contents, replace).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.rows.check().await
    }

    async fn close(&self) {}
}
