//! Bodies outside the log, named by their BLAKE3 hash.

use std::collections::HashSet;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::TrajectoryError;
use crate::reserve::Reserve;

/// A store of bodies.
pub trait BlobStore: Send + Sync {
    /// Creates a writer for one more body; none when the store is at its limit.
    fn create(&self) -> Result<Option<Box<dyn BlobWriter>>, TrajectoryError>;
    fn open(&self, digest: &str) -> Result<File, TrajectoryError>;
    /// Bytes kept, including those being written.
    fn bytes(&self) -> u64;
    /// Removes blobs that are not `wanted` and were not written within the last `grace`. Returns the bytes freed.
    fn sweep(&self, wanted: &HashSet<String>, grace: Duration) -> Result<u64, TrajectoryError>;
}

/// Writes a body to the store. Dropping it without `commit` leaves nothing.
pub trait BlobWriter: Send {
    /// False when the store's limit was reached: none of these bytes was kept.
    fn write(&mut self, bytes: &[u8]) -> io::Result<bool>;
    /// `digest` is the BLAKE3 hash of all bytes written.
    fn commit(self: Box<Self>, digest: &str) -> io::Result<()>;
}

/// A blob store with a file for each blob.
pub struct FileBlobs {
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    limit: u64,
    reserve: Arc<Reserve>,
    used: AtomicU64,
    next: AtomicU64,
    /// A sweep locks it for writing for each file that it checks, so that it never removes one just found to be a duplicate.
    sweeping: RwLock<()>,
}

impl FileBlobs {
    /// Opens the store in `dir` and empties its `tmp`. Existing blobs are counted in the background.
    pub(crate) fn open(dir: PathBuf, limit: u64, reserve: Arc<Reserve>) -> Result<Self, TrajectoryError> {
        let tmp = dir.join("tmp");
        match fs::remove_dir_all(&tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(TrajectoryError::io("empty", tmp, error));
            }
            _ => {}
        }
        fs::create_dir_all(&tmp).map_err(|e| TrajectoryError::io("make", &tmp, e))?;
        Ok(Self {
            shared: Arc::new(Shared {
                dir,
                limit,
                reserve,
                used: AtomicU64::new(0),
                next: AtomicU64::new(0),
                sweeping: RwLock::new(()),
            }),
        })
    }

    /// Returns a function that counts the blobs from before `opened`. It is slow with many blobs, so it is not part of opening.
    pub(crate) fn count(&self, opened: SystemTime) -> impl FnOnce() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            for_each_blob(&shared.dir, |_, meta, _| {
                if meta.modified().is_ok_and(|at| at < opened) {
                    shared.used.fetch_add(meta.len(), Ordering::Relaxed);
                }
            });
        }
    }
}

/// Calls `see` with path, metadata and digest of each blob.
fn for_each_blob(dir: &Path, mut see: impl FnMut(&Path, &fs::Metadata, &str)) {
    for prefix in fs::read_dir(dir).into_iter().flatten().flatten() {
        let prefix_name = prefix.file_name();
        let Some(head) = prefix_name.to_str().filter(|name| name.len() == 2) else {
            continue;
        };
        for blob in fs::read_dir(prefix.path()).into_iter().flatten().flatten() {
            let digest = format!("{head}{}", blob.file_name().to_string_lossy());
            if is_digest(&digest)
                && let Ok(meta) = blob.metadata()
            {
                see(&blob.path(), &meta, &digest);
            }
        }
    }
}

/// The BLAKE3 hash of a file from its current position, in hexadecimal.
pub(crate) fn digest_of(mut file: &File) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    io::copy(&mut file, &mut hash)?;
    Ok(hash.finalize().to_string())
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

impl Shared {
    fn path(&self, digest: &str) -> PathBuf {
        self.dir.join(&digest[..2]).join(&digest[2..])
    }

    fn give_back(&self, bytes: u64) {
        // Saturating: existing blobs are counted in the background. The closure never returns `None`.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
    }
}

impl BlobStore for FileBlobs {
    fn create(&self) -> Result<Option<Box<dyn BlobWriter>>, TrajectoryError> {
        let shared = &self.shared;
        if shared.used.load(Ordering::Relaxed) >= shared.limit {
            return Ok(None);
        }
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let path = shared.dir.join("tmp").join(number.to_string());
        let file =
            OpenOptions::new().write(true).create_new(true).open(&path).map_err(|e| TrajectoryError::io("make", &path, e))?;
        Ok(Some(Box::new(FileBlobWriter { shared: Arc::clone(shared), file, path, written: 0, kept: false })))
    }

    fn open(&self, digest: &str) -> Result<File, TrajectoryError> {
        if !is_digest(digest) {
            return Err(TrajectoryError::BadDigest { given: digest.chars().take(80).collect() });
        }
        let path = self.shared.path(digest);
        File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TrajectoryError::NoBlob { digest: digest.to_owned() },
            _ => TrajectoryError::io("open", path, error),
        })
    }

    fn bytes(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed)
    }

    fn sweep(&self, wanted: &HashSet<String>, grace: Duration) -> Result<u64, TrajectoryError> {
        let mut freed = 0;
        let mut failed = None;
        for_each_blob(&self.shared.dir, |path, _, digest| {
            if wanted.contains(digest) {
                return;
            }
            let _alone = self.shared.sweeping.write().unwrap_or_else(PoisonError::into_inner);
            // Checked again: a duplicate may have been stored since the directory was read.
            let Ok(meta) = path.metadata() else { return };
            let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_none_or(|age| age < grace) {
                return;
            }
            match fs::remove_file(path) {
                Ok(()) => {
                    freed += meta.len();
                    self.shared.give_back(meta.len());
                }
                Err(error) => failed = Some(TrajectoryError::io("remove", path, error)),
            }
        });
        failed.map_or(Ok(freed), Err)
    }
}

struct FileBlobWriter {
    shared: Arc<Shared>,
    file: File,
    path: PathBuf,
    written: u64,
    kept: bool,
}

impl BlobWriter for FileBlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let more = bytes.len() as u64;
        let before = self.shared.used.fetch_add(more, Ordering::Relaxed);
        if before.saturating_add(more) > self.shared.limit {
            self.shared.give_back(more);
            return Ok(false);
        }
        self.written += more;
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.shared.reserve.retry(rest.len(), || self.file.write(rest));
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn commit(mut self: Box<Self>, digest: &str) -> io::Result<()> {
        let target = self.shared.path(digest);
        let shared = Arc::clone(&self.shared);
        let _no_sweep = shared.sweeping.read().unwrap_or_else(PoisonError::into_inner);
        if let Ok(there) = File::open(&target)
            && there.metadata()?.len() == self.written
            && digest_of(&there)? == digest
        {
            // The new time protects it from a sweep.
            return there.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
        // A file with other bytes was damaged by a power cut or by the disk, and is replaced.
        if let Err(error) = fs::rename(&self.path, &target) {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(&self.path, &target)?;
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for FileBlobWriter {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.give_back(self.written);
            if let Err(error) = fs::remove_file(&self.path) {
                tracing::warn!(path = %self.path.display(), %error, "could not remove an unfinished blob");
            }
        }
    }
}
