//! Where sandboxes are remembered across restarts.

mod memory;
mod sqlite;
mod unreadable;

use arenite_model::SandboxId;
use async_trait::async_trait;
use jiff::Timestamp;
use thiserror::Error;

pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

use crate::Sandbox;

/// What control remembers. What a call acknowledges survives the server's death; a power cut may take the last moments.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All sandboxes. Read once, at start.
    async fn load(&self) -> Result<Vec<Sandbox>, StoreError>;
    /// # Errors
    /// [`StoreError::Taken`] when its id, or its name within its tenant, is there already.
    async fn insert(&self, sandbox: &Sandbox) -> Result<(), StoreError>;
    /// Writes state, reason, `state_since`, isolation and last use. One that isn't there is left so.
    async fn update(&self, sandbox: &Sandbox) -> Result<(), StoreError>;
    async fn touch(&self, used: Vec<(SandboxId, Timestamp)>) -> Result<(), StoreError>;
    /// One that isn't there is fine.
    async fn remove(&self, id: &SandboxId) -> Result<(), StoreError>;
    /// What an operator should know of it, in words.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Finishes what was asked and lets go of files. Later calls fail.
    async fn close(&self);
}

/// Why a store could not do it.
#[derive(Debug, Error, Clone)]
pub enum StoreError {
    #[error("the id or the name is taken")]
    Taken,
    #[error("it is closed")]
    Closed,
    #[error("row {id} can't be read: {reason}")]
    BadRow { id: String, reason: String },
    #[error("{0}")]
    Database(String),
}
