//! The persistent store of sandboxes: SQLite in the data directory, or a Postgres database.

mod annotations;
pub mod archive;
mod contents;
mod database;
mod memory;
mod postgres;
mod record;
mod reserve;
mod sqlite;
mod sqlite_annotations;
mod sqlite_tenants;
mod sqlite_usage;
mod sqlite_webhooks;
mod tenants;
mod unreadable;
mod usage;
mod waits;
mod webhooks;
mod writer;

use std::path::Path;
use std::sync::Arc;

use arenite_model::{SandboxId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;
use thiserror::Error;

pub use annotations::{AnnotationRow, AnnotationStore, MostAnnotations};
pub use contents::{Contents, TenantContents, TenantRow, UsageContents};
pub use memory::MemoryStore;
pub use postgres::{AddressError, PostgresAddress, PostgresStore};
pub use record::{Record, RecordId, RecordKind};
pub use sqlite::SqliteStore;
pub use tenants::{RemovedTenant, TenantStore};
pub use usage::UsageStore;
pub use waits::{StoreWaits, counted_here, current_waits};
pub use webhooks::WebhookStore;

use crate::nodes::{NodeClaim, NodeStore};
use crate::tenants::{QuotaExceeded, Reserved, TenantLimits};
use crate::{ControlError, Sandbox};

/// The file of the SQLite store in a data directory.
const SQLITE: &str = "control.sqlite";

/// A migration of both databases: the kind of a pause.
const PAUSE_KINDS: &str = "ALTER TABLE sandboxes ADD COLUMN pause_kind TEXT;";

/// A migration of both databases: since then, the amounts of a row are what it reserves in its state.
const DEAD_RESERVE_NOTHING: &str = "UPDATE sandboxes SET cpu_millis = 0, memory_bytes = 0 WHERE state IN ('failed', 'lost');";

/// Opens the store of a server: the database, or without one, SQLite in the data directory. Migrates its schema.
///
/// # Errors
/// [`ControlError::StoreInUse`] if another process has it; [`ControlError::NewerStore`] if a newer version made it.
pub async fn open(data_dir: &Path, database: Option<&PostgresAddress>) -> Result<Arc<dyn Store>, ControlError> {
    if let Some(address) = database {
        return Ok(Arc::new(PostgresStore::open(address.clone(), data_dir).await?));
    }
    let path = data_dir.join(SQLITE);
    let store = tokio::task::spawn_blocking(move || SqliteStore::open(path)).await.map_err(|_| ControlError::Stopping)??;
    Ok(Arc::new(store))
}

/// Opens the database for a node, which shares it with the others of its cluster.
///
/// # Errors
/// Those of [`open`], also if a server without a cluster has the database, or another one is this node.
pub async fn open_node(data_dir: &Path, database: &PostgresAddress, node: NodeClaim) -> Result<Arc<dyn Store>, ControlError> {
    Ok(Arc::new(PostgresStore::open_node(database.clone(), data_dir, node).await?))
}

/// Reads all rows of a store, which a server may use meanwhile, and changes nothing.
///
/// # Errors
/// If there is no store, or one with another version of the schema.
pub async fn read(data_dir: &Path, database: Option<&PostgresAddress>) -> Result<Contents, ControlError> {
    if let Some(address) = database {
        return postgres::read(address, data_dir).await;
    }
    let path = data_dir.join(SQLITE);
    tokio::task::spawn_blocking(move || sqlite::read(&path)).await.map_err(|_| ControlError::Stopping)?
}

/// A change of the rows, or a request to read them.
enum Op {
    Load,
    Check,
    Insert(Box<Sandbox>, TenantLimits),
    /// An update to a state in which the sandbox reserves more.
    Reserve(Box<Sandbox>, TenantLimits),
    Update(Box<Sandbox>),
    Touch(Vec<(SandboxId, Timestamp)>),
    Remove(SandboxId),
    Records(RecordKind),
    RecordsOf(RecordKind, TenantId),
    FindRecord(RecordId),
    CountRecords(RecordKind, TenantId),
    PutRecord(Record),
    PutVolume(Box<VolumeRow>),
    RemoveRecord(RecordId),
    RemoveExpired(Timestamp),
    /// Needs a transaction around it.
    Import {
        contents: Box<Contents>,
        replace: bool,
    },
    Close,
}

impl Op {
    /// It changes nothing.
    fn is_read(&self) -> bool {
        matches!(self, Self::Load | Self::Records(_) | Self::RecordsOf(..) | Self::FindRecord(_) | Self::CountRecords(..))
    }
}

/// The record of a volume, to be added or changed.
#[derive(Debug, Clone)]
struct VolumeRow {
    record: Record,
    size_bytes: u64,
    /// The value that it takes the place of; none: it is new.
    before: Option<String>,
    limits: TenantLimits,
}

impl VolumeRow {
    /// Refuses it beside the tenant's other volumes, of which there are `volumes` with `volume_bytes`.
    fn check(&self, volumes: u64, volume_bytes: u64) -> Result<(), StoreError> {
        let used = Reserved { volumes, volume_bytes, ..Reserved::default() };
        let more = Reserved { volumes: 1, volume_bytes: self.size_bytes, ..Reserved::default() };
        Ok(used.check(&more, &self.limits)?)
    }
}

/// What was read, if anything.
#[derive(Debug, Default)]
struct Rows {
    sandboxes: Vec<Sandbox>,
    records: Vec<Record>,
    count: u64,
}

type Answer = Result<Rows, StoreError>;

/// Refuses to read a schema of another version, which only a server's start changes.
fn check_version(store: &str, found: i64, known: i64) -> Result<(), ControlError> {
    match found.cmp(&known) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(ControlError::NewerStore { store: store.to_owned(), found, known }),
        std::cmp::Ordering::Less => Err(ControlError::Store {
            what: "be read",
            source: StoreError::Database(format!(
                "{store} has schema version {found}, and this arenite reads version {known}; start the server once, which updates it"
            )),
        }),
    }
}

/// An amount as a number of a database. The largest one stands for all beyond it.
fn number(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| StoreError::Database(e.to_string()))
}

/// A store of sandboxes. Acknowledged changes survive a kill of the server; a power cut may lose the last moments.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All sandboxes. Read once, at start.
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError>;
    /// Adds a sandbox, if its tenant's quotas have room for it, and the record of the idempotency key that it was created with,
    /// unless the record is there: all in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if its id exists, or its name within its tenant; [`StoreError::Quota`] beyond a limit.
    async fn insert_within(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError>;
    /// The same, whatever its tenant's quotas are.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if its id exists, or its name within its tenant.
    async fn insert(&self, sandbox: &Sandbox) -> Result<(), StoreError> {
        self.insert_within(sandbox, &TenantLimits::default()).await
    }
    /// Updates a dead sandbox that is about to run, if its tenant's quotas have room for it: both in one transaction.
    ///
    /// # Errors
    /// [`StoreError::Quota`] beyond a limit.
    async fn reserve(&self, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError>;
    /// Writes what may change: state, kind of its pause, reason, death, `state_since`, isolation, last use, spec, end of lifetime and revision. Does
    /// nothing if the row doesn't exist. A database may write a failed update later, unless another of the same row follows.
    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError>;
    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError>;
    /// Removes a row if it exists. A removal that can't be written now is written as soon as possible, before any other row;
    /// until then only a restart shows the row again.
    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError>;
    /// All records of a kind.
    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError>;
    /// A tenant's records of a kind.
    async fn records_of(&self, kind: RecordKind, tenant: &TenantId) -> Result<Vec<Record>, StoreError>;
    async fn record(&self, id: &RecordId) -> Result<Option<Record>, StoreError>;
    /// The number of a tenant's records of a kind.
    async fn count_records(&self, kind: RecordKind, tenant: &TenantId) -> Result<u64, StoreError>;
    /// Adds a record, or replaces it.
    async fn put_record(&self, record: Record) -> Result<(), StoreError>;
    /// Adds the record of a volume, or replaces one with the value `before`, if its tenant's quotas have room for it: all in one
    /// transaction.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if there is another one of its name, or no longer the one to replace; [`StoreError::Quota`] beyond a
    /// limit.
    async fn put_volume(
        &self,
        record: Record,
        size_bytes: u64,
        before: Option<String>,
        limits: &TenantLimits,
    ) -> Result<(), StoreError>;
    /// Removes a record if it exists.
    async fn remove_record(&self, id: &RecordId) -> Result<(), StoreError>;
    /// Removes the records that expired before `now`.
    async fn remove_expired(&self, now: Timestamp) -> Result<(), StoreError>;
    /// Adds all rows in one transaction, or none of them. With `replace`, they take the place of all rows that are there.
    /// What contents lack stays as it is.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`] or [`StoreError::HasTenants`] without `replace`, if there are rows; [`StoreError::Taken`] if an
    /// id or a name repeats.
    async fn import(&self, contents: Contents, replace: bool) -> Result<(), StoreError>;
    /// The same store for tenants; none if it keeps only sandboxes.
    fn tenant_store(self: Arc<Self>) -> Option<Arc<dyn TenantStore>> {
        None
    }
    /// The same store for webhooks; none if it keeps only sandboxes.
    fn webhook_store(self: Arc<Self>) -> Option<Arc<dyn WebhookStore>> {
        None
    }
    /// The same store for annotations; none if it keeps only sandboxes.
    fn annotation_store(self: Arc<Self>) -> Option<Arc<dyn AnnotationStore>> {
        None
    }
    /// The same store for usage; none if it keeps none.
    fn usage_store(self: Arc<Self>) -> Option<Arc<dyn UsageStore>> {
        None
    }
    /// The same store for nodes; none if its server is not one of a cluster.
    fn node_store(self: Arc<Self>) -> Option<Arc<dyn NodeStore>> {
        None
    }
    /// Notes for the operator, as text.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether a new row could be written now. Quick, unless another process has locked the store.
    async fn check(&self) -> Result<(), StoreError>;
    /// Completes pending operations and closes the files. Later calls fail.
    async fn close(&self);
}

/// Why an operation of the store failed.
#[derive(Debug, Error, Clone)]
pub enum StoreError {
    #[error("the id or the name is taken")]
    Taken,
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    #[error("it holds {rows} sandboxes already")]
    NotEmpty { rows: usize },
    #[error("it holds {tenants} tenants with {keys} keys already")]
    HasTenants { tenants: usize, keys: usize },
    #[error("it is closed")]
    Closed,
    #[error("row {id} can't be read: {reason}")]
    BadRow { id: String, reason: String },
    #[error("another process has locked it")]
    Locked,
    #[error("it can only be read")]
    ReadOnly,
    #[error("its disk is full")]
    Full,
    #[error("the cluster has given this node up")]
    GivenUp,
    /// The database is gone, slow, or has another server.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Database(String),
}

impl StoreError {
    /// Whether it refused this change alone: it works, and nothing was written.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Taken | Self::Quota(_) | Self::NotEmpty { .. } | Self::HasTenants { .. })
    }

    /// Whether the store works again by itself once the cause is gone.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Full | Self::Locked | Self::ReadOnly | Self::Unavailable(_))
    }

    /// The error without details that only an operator may read, such as paths.
    pub(crate) fn public(&self) -> String {
        match self {
            Self::Database(_) | Self::Unavailable(_) | Self::BadRow { .. } => "the server's log says why".to_owned(),
            other => other.to_string(),
        }
    }
}
