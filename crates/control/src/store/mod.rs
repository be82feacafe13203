//! The persistent store of sandboxes.

pub mod archive;
mod memory;
mod reserve;
mod sqlite;
mod unreadable;
mod writer;

use arenite_model::SandboxId;
use async_trait::async_trait;
use jiff::Timestamp;
use thiserror::Error;

pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

use crate::Sandbox;

/// A store of sandboxes. Acknowledged changes survive a kill of the server; a power cut may lose the last moments.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All sandboxes. Read once, at start.
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError>;
    /// Adds a sandbox.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if its id exists, or its name within its tenant.
    async fn insert(&self, sandbox: &Sandbox) -> Result<(), StoreError>;
    /// Writes state, reason, `state_since`, isolation and last use. Does nothing if the row doesn't exist.
    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError>;
    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError>;
    /// Removes a row if it exists. A removal that can't be written now is written as soon as possible, before any other row;
    /// until then only a restart shows the row again.
    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError>;
    /// Adds all rows in one transaction, or none of them. With `replace`, they take the place of all rows that are there.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`] without `replace`, if there are rows; [`StoreError::Taken`] if an id or a name repeats.
    async fn import(&self, rows: Vec<Sandbox>, replace: bool) -> Result<(), StoreError>;
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
    #[error("it holds {rows} sandboxes already")]
    NotEmpty { rows: usize },
    #[error("it is closed")]
    Closed,
    #[error("row {id} can't be read: {reason}")]
    BadRow { id: String, reason: String },
    #[error("another process has locked it")]
    Locked,
    #[error("it can only be read")]
    ReadOnly,
    #[error("the disk of the data directory is full")]
    Full,
    #[error("{0}")]
    Database(String),
}

impl StoreError {
    /// The error without details that only an operator may read, such as paths.
    pub(crate) fn public(&self) -> String {
        match self {
            Self::Database(_) | Self::BadRow { .. } => "the server's log says why".to_owned(),
            other => other.to_string(),
        }
    }
}
