//! Unmounts a storage pool that an error made read-only, and mounts it again.

use std::path::Path;

use arenite_isolation::cgroup::{Cgroups, Layout};

use super::buckets;
use super::host::{bucket_cgroup_prefix, cgroup_prefix, end_all, failed_storage, tag};
use super::lock::ServerLock;
use super::slot::cgroup;
use super::storage::{self, Storage, StorageConfig, StorageError};
use crate::EngineError;

/// Ends what uses the pool of `data_dir` and mounts it again, if it is read-only. Returns descriptions of what was done.
///
/// # Errors
/// [`EngineError::InUse`] while a server runs, and anything else that keeps the pool from being mounted.
pub fn recover_storage(data_dir: &Path) -> Result<Vec<String>, EngineError> {
    let _lock = ServerLock::take(data_dir)?;
    let config = StorageConfig::default();
    match Storage::open(data_dir, &config) {
        Ok(storage) => {
            storage.release();
            return Ok(vec!["the storage pool can be written to; nothing was changed".to_owned()]);
        }
        Err(StorageError::ReadOnly { .. }) => {}
        Err(error) => return Err(failed_storage(error)),
    }
    let data_dir = data_dir
        .canonicalize()
        .map_err(|source| EngineError::Host { what: format!("could not resolve {}", data_dir.display()), source })?;
    let mut done = Vec::new();
    let cgroups = Cgroups::existing(Layout::of_host().map_err(cgroup)?, &cgroup_prefix(&tag(&data_dir)));
    done.push(format!("ended the processes of {} sandboxes", end_all(&cgroups)?));
    let clients = Cgroups::existing(Layout::of_host().map_err(cgroup)?, &bucket_cgroup_prefix(&tag(&data_dir)));
    let ended = buckets::end_everything(&data_dir, &clients);
    ended.map_err(|source| EngineError::Host { what: "could not end the mounts of buckets".to_owned(), source })?;
    done.extend(storage::detach(&data_dir).map_err(failed_storage)?);
    Storage::open(&data_dir, &config).map_err(failed_storage)?;
    done.push(format!("mounted {} again; it can be written to", data_dir.join("pool").display()));
    done.push("start the server: sandboxes that were ended are listed as lost, with their disks".to_owned());
    Ok(done)
}
