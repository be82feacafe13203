//! Directories of `RUN --mount=type=cache`, which stay for later builds.
//!
//! ```text
//! caches/<hash of the id>/files/       what steps see
//! caches/<hash of the id>/cache.json   its id and size, and when it was used
//! ```

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::copy::set_owner_and_mode;
use crate::digest::{FieldDigest, is_digest};
use crate::error::ImageError;
use crate::store::{ImageStore, StoreLock};
use crate::tree::disk_usage;

/// Size of all caches, in bytes. The next build removes the caches that were used longest ago.
const MAX_CACHE_BYTES: u64 = 10 << 30;
/// Number of caches.
const MAX_CACHES: usize = 200;

#[derive(Debug, Serialize, Deserialize)]
struct CacheRecord {
    id: String,
    bytes: u64,
    used_at: Timestamp,
}

impl ImageStore {
    /// The directory of a cache, which is created with this mode and owner if it is missing.
    pub(crate) fn cache(&self, _lock: &StoreLock, id: &str, mode: u32, owner: (u32, u32)) -> Result<PathBuf, ImageError> {
        let dir = self.cache_dir(id);
        let files = dir.join("files");
        if dir.join("cache.json").is_file() && files.is_dir() {
            return Ok(files);
        }
        let caches = self.dir().join("caches");
        DirBuilder::new().recursive(true).mode(0o700).create(&caches).map_err(ImageError::io("could not make", caches))?;
        let failed = || ImageError::io("could not make", &dir);
        self.storage().remove(&dir).map_err(failed())?;
        self.storage().create(&dir).map_err(failed())?;
        DirBuilder::new().mode(0o700).create(&files).map_err(failed())?;
        let opened = fs::File::open(&files).map_err(failed())?;
        set_owner_and_mode(&opened.into(), owner, mode).map_err(failed())?;
        self.write_record(&CacheRecord { id: id.to_owned(), bytes: 0, used_at: Timestamp::now() })?;
        Ok(files)
    }

    /// Measures a cache after its use. One that can't be measured is removed.
    pub(crate) fn close_cache(&self, _lock: &StoreLock, id: &str) {
        let dir = self.cache_dir(id);
        let measured = disk_usage(&dir.join("files"))
            .map_err(ImageError::io("could not measure", &dir))
            .and_then(|bytes| self.write_record(&CacheRecord { id: id.to_owned(), bytes, used_at: Timestamp::now() }));
        if let Err(error) = measured {
            tracing::warn!(?dir, %error, "removed a build cache");
            let _ = self.storage().remove(&dir);
        }
    }

    /// Removes the caches that were used longest ago until the others are within the bounds.
    pub(crate) fn limit_caches(&self, _lock: &StoreLock) {
        let mut caches = self.caches();
        caches.sort_by_key(|(_, record)| std::cmp::Reverse(record.used_at));
        let mut bytes = 0;
        for (index, (dir, record)) in caches.iter().enumerate() {
            bytes += record.bytes;
            if (bytes > MAX_CACHE_BYTES || index >= MAX_CACHES)
                && let Err(error) = self.storage().remove(dir)
            {
                tracing::warn!(?dir, %error, "could not remove a build cache");
            }
        }
    }

    /// Removes all caches of `RUN --mount=type=cache`; returns the number of bytes.
    pub fn remove_caches(&self) -> Result<u64, ImageError> {
        let _lock = self.try_lock()?.ok_or(ImageError::Busy)?;
        let mut freed = 0;
        for (dir, record) in self.caches() {
            self.storage().remove(&dir).map_err(ImageError::io("could not remove", dir))?;
            freed += record.bytes;
        }
        Ok(freed)
    }

    /// All caches. One without a record, which a crash left, counts as unused for ever.
    fn caches(&self) -> Vec<(PathBuf, CacheRecord)> {
        let entries = fs::read_dir(self.dir().join("caches")).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_digest)).map(|entry| entry.path());
        dirs.map(|dir| {
            let record = fs::read(dir.join("cache.json")).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let unknown = || CacheRecord { id: String::new(), bytes: MAX_CACHE_BYTES, used_at: Timestamp::UNIX_EPOCH };
            (dir, record.unwrap_or_else(unknown))
        })
        .collect()
    }

    fn write_record(&self, record: &CacheRecord) -> Result<(), ImageError> {
        let path = self.cache_dir(&record.id).join("cache.json");
        let json = serde_json::to_vec(record).expect("a cache's record is plain data");
        fs::write(&path, json).map_err(ImageError::io("could not write", path))
    }

    fn cache_dir(&self, id: &str) -> PathBuf {
        self.dir().join("caches").join(FieldDigest::new("cache").field("id", id).hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caches_that_were_used_longest_ago_go_first() {
        let scratch = tempfile::tempdir().unwrap();
        let store = ImageStore::open(scratch.path().to_owned()).unwrap();
        let lock = store.lock().unwrap();
        for (id, bytes, used_at) in [("old", 1, 10), ("big", MAX_CACHE_BYTES, 20), ("new", 5, 30)] {
            let files = store.cache(&lock, id, 0o755, (0, 0)).unwrap();
            fs::write(files.join("x"), id).unwrap();
            let used_at = Timestamp::from_second(used_at).unwrap();
            store.write_record(&CacheRecord { id: id.to_owned(), bytes, used_at }).unwrap();
        }
        store.limit_caches(&lock);
        let left: Vec<String> = store.caches().into_iter().map(|(_, record)| record.id).collect();
        assert_eq!(left, ["new"]);
        // It is as it was, and an id is no path.
        assert_eq!(fs::read(store.cache(&lock, "new", 0o755, (0, 0)).unwrap().join("x")).unwrap(), b"new");
        store.cache(&lock, "../../escape", 0o700, (7, 8)).unwrap();
        assert!(!scratch.path().parent().unwrap().join("escape").exists());
        drop(lock);
        assert_eq!(store.remove_caches().unwrap(), 5);
        assert!(store.caches().is_empty());
    }
}
