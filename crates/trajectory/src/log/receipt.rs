//! Receipts: which logs are in an archive. A receipt is a file beside the log, `TRAJECTORY.archived`, and counts while the log has
//! the length that it names.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{FileLog, StepLog, TrajectoryKey, read};
use crate::{Summary, TrajectoryError};

/// Says that a log is in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
}

/// A log without an open step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) bytes: u64,
    pub(crate) ended: bool,
}

/// A log with a receipt.
#[derive(Debug)]
pub(crate) struct Archived {
    pub(crate) key: TrajectoryKey,
    pub(crate) receipt: Receipt,
    pub(crate) ended: bool,
}

fn path_of(log: &Path) -> PathBuf {
    log.with_extension("archived")
}

/// The receipt of a log of this length.
pub(super) fn receipt(log: &Path, bytes: u64) -> Option<Receipt> {
    let receipt: Receipt = serde_json::from_slice(&fs::read(path_of(log)).ok()?).ok()?;
    (receipt.bytes == bytes).then_some(receipt)
}

pub(super) fn remove(log: &Path) {
    if let Err(error) = fs::remove_file(path_of(log))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(log = %log.display(), %error, "the receipt of a log could not be removed");
    }
}

impl FileLog {
    /// Up to `most` logs that have no receipt, and have ended or were not written to for `idle`.
    pub(crate) fn unarchived(&self, idle: Duration, most: usize) -> Vec<TrajectoryKey> {
        let wanted = |log: &PathBuf| {
            let Ok(meta) = log.metadata() else { return false };
            receipt(log, meta.len()).is_none() && (is_older(&meta, idle) || read::stand(log).is_ok_and(|(_, ended)| ended))
        };
        read::all_logs(&self.dir).filter(wanted).filter_map(|log| key_of(&log)).take(most).collect()
    }

    /// The log's length, and whether its end was recorded. None: it has open steps. Records steps that a dead server left open.
    pub(crate) fn settled(&self, key: &TrajectoryKey) -> Result<Option<Settled>, TrajectoryError> {
        let settled = self.change(key, false, |_, state| {
            if !state.open.is_empty() {
                return Ok(None);
            }
            if state.ended {
                self.close(state);
            }
            Ok(Some(Settled { bytes: state.len, ended: state.ended }))
        });
        self.forget(key);
        settled
    }

    /// None: it has no step.
    pub(crate) fn summary(&self, key: &TrajectoryKey) -> Result<Option<Summary>, TrajectoryError> {
        let path = self.path(key);
        read::summary(&path, key.trajectory()).map_err(|error| TrajectoryError::io("read", path, error))
    }

    /// The log's file, for reading.
    pub(crate) fn file(&self, key: &TrajectoryKey) -> Result<File, TrajectoryError> {
        self.open_to_read(key).map(|(_, file)| file)
    }

    pub(crate) fn set_receipt(&self, key: &TrajectoryKey, receipt: &Receipt) -> Result<(), TrajectoryError> {
        let path = path_of(&self.path(key));
        let written = serde_json::to_vec(receipt).map_err(io::Error::from).and_then(|text| fs::write(&path, text));
        written.map_err(|error| TrajectoryError::io("write", path, error))
    }

    pub(crate) fn remove_receipt(&self, key: &TrajectoryKey) {
        remove(&self.path(key));
    }

    /// The logs with a receipt that were not written to for `age`.
    pub(crate) fn archived(&self, age: Duration) -> Vec<Archived> {
        let of = |log: PathBuf| {
            let meta = log.metadata().ok().filter(|meta| is_older(meta, age))?;
            let receipt = receipt(&log, meta.len())?;
            Some(Archived { key: key_of(&log)?, receipt, ended: read::stand(&log).ok()?.1 })
        };
        read::all_logs(&self.dir).filter_map(of).collect()
    }

    /// Removes a log if it still has the length of its receipt.
    pub(crate) fn drop_archived(&self, archived: &Archived) -> Result<(), TrajectoryError> {
        self.remove(&archived.key, Some(archived.receipt.bytes))
    }
}

fn is_older(meta: &fs::Metadata, age: Duration) -> bool {
    let modified = meta.modified().ok();
    modified.and_then(|at| SystemTime::now().duration_since(at).ok()).is_some_and(|past| past >= age)
}

fn key_of(log: &Path) -> Option<TrajectoryKey> {
    let tenant = log.parent()?.file_name()?.to_str()?.parse().ok()?;
    TrajectoryKey::new(&tenant, log.file_stem()?.to_str()?).ok()
}
