//! Sets aside a store that can't be read and creates another: the engine's records hold the content of its rows.
//!
//! Nothing is deleted, and only a file that is certainly no store of ours is set aside. A store that is locked, or on a failing
//! disk, stays where it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};

use super::StoreError;

/// Other files of a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Whether the error means that the file itself is no usable store.
pub(super) fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Checks an entire database with an up-to-date schema. Returns what is wrong with it, if anything.
pub(super) fn fault(db: &Connection) -> rusqlite::Result<Option<String>> {
    let checked: rusqlite::Result<String> = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match checked {
        Ok(verdict) if verdict != "ok" => return Ok(Some(verdict)),
        Err(error) if is_unreadable(&error) => return Ok(Some(error.to_string())),
        other => drop(other?),
    }
    match super::sqlite::load(db) {
        Err(error @ StoreError::BadRow { .. }) => Ok(Some(error.to_string())),
        // The schema's version is ours, and a table or a column is missing.
        Err(StoreError::Database(message)) if message.starts_with("no such") => Ok(Some(message)),
        _ => Ok(None),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Renames the database and its journals, and returns the database's new path. `None` if none existed.
pub(super) fn set_aside(path: &Path) -> io::Result<Option<PathBuf>> {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let free = |number: &u32| !with_suffix(path, &format!(".unreadable-{stamp}-{number}")).exists();
    let number = (1..).find(free).unwrap_or_default();
    let aside = with_suffix(path, &format!(".unreadable-{stamp}-{number}"));
    let mut moved = false;
    for suffix in [""].into_iter().chain(BESIDE) {
        match fs::rename(with_suffix(path, suffix), with_suffix(&aside, suffix)) {
            Ok(()) => moved = true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(moved.then_some(aside))
}

/// Whether there are journals with a missing or empty database: SQLite would delete them.
pub(super) fn has_orphans(path: &Path) -> io::Result<bool> {
    let is_empty = match fs::metadata(path) {
        Ok(about) => about.len() == 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    Ok(is_empty && BESIDE.iter().any(|suffix| fs::metadata(with_suffix(path, suffix)).is_ok_and(|about| about.len() > 0)))
}
