//! Stores sessions on disk, so that they survive a killed server.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, params};

use crate::session::Facts;

/// A stored session.
pub(crate) struct Kept {
    pub(crate) tenant: String,
    pub(crate) facts: Facts,
    pub(crate) sandbox: Option<String>,
    pub(crate) compatible: bool,
}

pub(crate) struct Store(Mutex<Connection>);

impl Store {
    /// Opens the file, or creates it.
    pub(crate) fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A kill loses nothing; a power cut may lose the last sessions, and also the sandboxes in which they work.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS sessions (
                id TEXT PRIMARY KEY, tenant TEXT NOT NULL, facts TEXT NOT NULL, sandbox TEXT, compatible INTEGER NOT NULL
            )",
        )?;
        Ok(Self(Mutex::new(connection)))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(
        &self,
        tenant: &str,
        facts: &Facts,
        sandbox: Option<&str>,
        compatible: bool,
    ) -> Result<(), rusqlite::Error> {
        let text = serde_json::to_string(facts).unwrap_or_default();
        let connection = self.connection();
        let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4, ?5)")?;
        insert.execute(params![facts.id, tenant, text, sandbox, compatible]).map(drop)
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), rusqlite::Error> {
        let connection = self.connection();
        connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id]).map(drop)
    }

    /// In the order of their creation.
    pub(crate) fn all(&self) -> Result<Vec<Kept>, rusqlite::Error> {
        let connection = self.connection();
        let mut select = connection.prepare("SELECT tenant, facts, sandbox, compatible FROM sessions ORDER BY rowid")?;
        let rows = select.query_map([], |row| {
            let facts: String = row.get(1)?;
            Ok((row.get(0)?, serde_json::from_str(&facts), row.get(2)?, row.get(3)?))
        })?;
        let mut all = Vec::new();
        for row in rows {
            // A row of another version is ignored.
            if let (tenant, Ok(facts), sandbox, compatible) = row? {
                all.push(Kept { tenant, facts, sandbox, compatible });
            }
        }
        Ok(all)
    }
}
