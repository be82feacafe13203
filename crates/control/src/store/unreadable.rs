//! A store that can't be read is set aside and made again: the engine's records hold what its rows are made of.
//!
//! Nothing is deleted, and only what is certain to be no store of ours is set aside. One that is locked, or on a disk
//! that fails, stays where it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, ErrorCode};

use super::StoreError;

/// Files of a database besides it.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Whether the error says of the file itself that it is no usable store.
pub(super) fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Looks through the whole of a database whose schema is up to date. What is wrong with it, if anything is.
pub(super) fn fault(db: &Connection) -> rusqlite::Result<Option<String>> {
    let checked: rusqlite::Result<String> = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match checked {
        Ok(verdict) if verdict != "ok" => return Ok(Some(verdict)),
        Err(error) if is_unreadable(&error) => return Ok(Some(error.to_string())),
        other => drop(other?),
    }
    match super::sqlite::load(db) {
        Err(error @ StoreError::BadRow { .. }) => Ok(Some(error.to_string())),
        // The schema's version is ours, and a table or a column is not there.
        Err(StoreError::Database(message)) if message.starts_with("no such") => Ok(Some(message)),
        _ => Ok(None),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Gives the database and its journals other names, and returns the database's. `None`: there was nothing.
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

/// Journals whose database is missing or empty: SQLite would delete them.
pub(super) fn has_orphans(path: &Path) -> io::Result<bool> {
    let is_empty = match fs::metadata(path) {
        Ok(about) => about.len() == 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    Ok(is_empty && BESIDE.iter().any(|suffix| fs::metadata(with_suffix(path, suffix)).is_ok_and(|about| about.len() > 0)))
}
