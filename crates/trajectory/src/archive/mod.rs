//! The archive: trajectories in object storage, where they outlive their nodes.
//!
//! ```text
//!  the end of a trajectory ──► its log and its bodies are stored, and read back ──► its entry in the index ──► a receipt here
//!            a start: all that have no receipt ──┘
//! ```
//!
//! The entry is what makes a trajectory part of the archive, so a crash before it leaves objects that the next attempt uses. Objects
//! are compared with their BLAKE3 after they were stored, and each time they are read. The local log stays until the time of
//! [`Settings::keep_local`] is over.
//!
//! A trajectory that was continued after it was archived is archived again. Of two that nodes have with the same first step, the
//! longer one stays.

mod names;
mod objects;
mod reader;
mod upload;

use std::collections::HashMap;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read as _, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arenite_model::TenantId;
use futures_util::StreamExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::{Limits, Recorder, Summary, TrajectoryError, TrajectoryKey};
use names::Names;
pub use objects::{Content, Object, ObjectError, Objects, Pieces};
use reader::{ArchivedBlobs, ArchivedLog};
pub use upload::ArchiveCounters;
use upload::Status;

/// Version of an entry.
const VERSION: u32 = 1;
/// Largest entry, in bytes.
const MAX_ENTRY: usize = 64 << 10;
/// Time to find out what the archive has.
const LOOK_UP: Duration = Duration::from_secs(10);
/// Time for the next piece of an object to arrive.
const STALL: Duration = Duration::from_secs(30);
/// Names of one reading of the index, and entries that are read at once.
const PAGE: usize = 1000;
const READS: usize = 32;
/// The most entries that are read for one page of a list.
const MAX_READ: usize = 5000;
/// Entries that are remembered, and for how long: a trajectory may be continued.
const MAX_KNOWN: usize = 50_000;
const KNOWN: Duration = Duration::from_secs(300);
/// Logs that are fetched at once.
const FETCHES: usize = 4;
/// Ends of trajectories that wait for the archive; beyond this, its next look at all logs finds them.
const ENDED: usize = 4096;

/// What an archive does with local logs.
pub struct Settings {
    /// How long a local log stays after its last step, if it is archived. None: for ever.
    pub keep_local: Option<Duration>,
    /// Where fetched logs are kept, and the most bytes of them together.
    pub cache_dir: PathBuf,
    pub cache_bytes: u64,
}

/// Trajectories in object storage, and those of the local recorder on their way there.
pub struct Archive {
    objects: Arc<dyn Objects>,
    recorder: Recorder,
    settings: Settings,
    /// Ends of trajectories. Taken by the task that uploads.
    ended: Mutex<Option<mpsc::Receiver<TrajectoryKey>>>,
    status: Mutex<Status>,
    known: Mutex<HashMap<String, (Arc<Entry>, Instant)>>,
    fetches: Semaphore,
    archived: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

/// An archived trajectory, as the index has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    v: u32,
    tenant: TenantId,
    summary: Summary,
    log: LogObject,
    /// Bodies that are in the archive, and those that the node had lost.
    bodies: u64,
    lost_bodies: u64,
    archived_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LogObject {
    blake3: String,
    bytes: u64,
}

/// Archived trajectories of a list.
#[derive(Debug, Default)]
pub struct Listed {
    /// The newest first.
    pub summaries: Vec<Summary>,
    /// The archive was read up to this position and goes on after it. None: up to its end.
    pub until: Option<(i64, String)>,
}

impl Archive {
    /// An archive for what the recorder records. [`Archive::run`] uploads.
    ///
    /// # Errors
    /// [`TrajectoryError::Io`] if the directory for fetched logs can't be created.
    pub fn new(objects: Arc<dyn Objects>, recorder: Recorder, settings: Settings) -> Result<Self, TrajectoryError> {
        fs::create_dir_all(&settings.cache_dir).map_err(|e| TrajectoryError::io("make", &settings.cache_dir, e))?;
        let (sender, ended) = mpsc::channel(ENDED);
        recorder.report_ends(sender);
        Ok(Self {
            objects,
            recorder,
            settings,
            ended: Mutex::new(Some(ended)),
            status: Mutex::default(),
            known: Mutex::default(),
            fetches: Semaphore::new(FETCHES),
            archived: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// A recorder that reads one archived trajectory, the newest with this id. None: there is none. Call it in a runtime.
    ///
    /// # Errors
    /// [`TrajectoryError::Archive`] if the object store can't be read, [`TrajectoryError::DamagedObject`] if the log is not the one
    /// that was stored.
    pub async fn open(&self, tenant: &TenantId, trajectory: &str) -> Result<Option<Recorder>, TrajectoryError> {
        let key = TrajectoryKey::new(tenant, trajectory)?;
        let Some((names, entry)) = self.find(&key).await? else { return Ok(None) };
        let file = self.log_file(&names, &entry).await?;
        let log = ArchivedLog::new(key, file, entry.log.bytes, entry.summary.clone());
        let blobs = ArchivedBlobs::new(Arc::clone(&self.objects), names, self.settings.cache_dir.clone());
        Ok(Some(Recorder::with(Arc::new(log), Arc::new(blobs), Limits::default())))
    }

    /// Up to `most` archived trajectories of a tenant that fit, the newest first, from the one after `after`: the time of its first
    /// step, in microseconds since 1970, and its id. May end early, if few fit.
    ///
    /// # Errors
    /// [`TrajectoryError::Archive`] if the object store can't be read.
    pub async fn list(
        &self,
        tenant: &TenantId,
        after: Option<&(i64, String)>,
        most: usize,
        fits: impl Fn(&Summary) -> bool,
    ) -> Result<Listed, TrajectoryError> {
        let folder = names::index_folder(tenant);
        let mut after = after.map(|(first_at, trajectory)| names::index_at(tenant, *first_at, trajectory));
        let (mut listed, mut read) = (Listed::default(), 0);
        loop {
            let limit = if listed.summaries.is_empty() { PAGE.min(most + 1) } else { PAGE };
            let names = self.look_up(self.objects.list(&folder, after.as_deref(), limit)).await?;
            let is_last = names.len() < limit;
            let mut read_entries = Vec::with_capacity(names.len());
            for object in &names {
                read_entries.push(self.known_entry(tenant, &object.name));
            }
            let mut entries = futures_util::stream::iter(read_entries).buffered(READS);
            let mut at = names.iter();
            while let Some(entry) = entries.next().await {
                let Some(object) = at.next() else { break };
                read += 1;
                // One that was deleted meanwhile, or that can't be read, is left out.
                if let Some(entry) = entry?
                    && fits(&entry.summary)
                {
                    listed.summaries.push(entry.summary.clone());
                }
                if listed.summaries.len() == most || read == MAX_READ {
                    listed.until = names::position(&object.name);
                    return Ok(listed);
                }
            }
            if is_last {
                return Ok(listed);
            }
            after = names.last().map(|object| object.name.clone());
        }
    }

    async fn find(&self, key: &TrajectoryKey) -> Result<Option<(Names, Arc<Entry>)>, TrajectoryError> {
        let folder = names::logs_folder(key.tenant(), key.trajectory());
        // Names start with the time, which descends.
        for log in self.look_up(self.objects.list(&folder, None, PAGE)).await? {
            if let Some(names) = Names::of_log(key.tenant(), key.trajectory(), &log.name)
                && let Some(entry) = self.look_up(self.entry(&names.index)).await?
                && entry.tenant == *key.tenant()
                && entry.summary.trajectory == key.trajectory()
            {
                return Ok(Some((names, Arc::new(entry))));
            }
        }
        Ok(None)
    }

    async fn look_up<T>(&self, looked_up: impl Future<Output = Result<T, ObjectError>>) -> Result<T, TrajectoryError> {
        match timeout(LOOK_UP, looked_up).await {
            Ok(found) => found.map_err(|error| unreachable(&*self.objects, &error)),
            Err(_) => Err(no_answer(&*self.objects)),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, (Arc<Entry>, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn known_entry(&self, tenant: &TenantId, name: &str) -> Result<Option<Arc<Entry>>, TrajectoryError> {
        if let Some((entry, at)) = self.known().get(name)
            && at.elapsed() < KNOWN
        {
            return Ok(Some(Arc::clone(entry)));
        }
        let Some(entry) = self.look_up(self.entry(name)).await?.filter(|entry| entry.tenant == *tenant) else { return Ok(None) };
        let entry = Arc::new(entry);
        let mut known = self.known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(name.to_owned(), (Arc::clone(&entry), Instant::now()));
        Ok(Some(entry))
    }

    /// The entry with a name. None: there is none, or it can't be understood.
    async fn entry(&self, name: &str) -> Result<Option<Entry>, ObjectError> {
        let Some(bytes) = read(&*self.objects, name, MAX_ENTRY).await? else { return Ok(None) };
        match serde_json::from_slice::<Entry>(&bytes) {
            Ok(entry) if entry.v <= VERSION => Ok(Some(entry)),
            Ok(entry) => {
                tracing::error!(name, version = entry.v, "an archived trajectory is of a later version of the server");
                Ok(None)
            }
            Err(error) => {
                tracing::error!(name, %error, "the entry of an archived trajectory is damaged");
                Ok(None)
            }
        }
    }

    /// The log of an entry, fetched if it is not here yet.
    async fn log_file(&self, names: &Names, entry: &Entry) -> Result<File, TrajectoryError> {
        let path = self.settings.cache_dir.join(&entry.log.blake3);
        let cached = |path: &Path| File::open(path).ok().filter(|file| file.metadata().is_ok_and(|m| m.len() == entry.log.bytes));
        if let Some(file) = cached(&path) {
            // The next eviction takes others first.
            let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
            return Ok(file);
        }
        let _permit = self.fetches.acquire().await;
        if let Some(file) = cached(&path) {
            return Ok(file);
        }
        let name = names.log(&entry.log.blake3);
        let (mut file, new) = new_file(&self.settings.cache_dir)?;
        let fetched = match fetch(&*self.objects, &name, &mut file).await {
            Ok(true) => check(&mut file, &new, &name, &entry.log),
            Ok(false) => Err(TrajectoryError::DamagedObject { name, what: "it is missing".to_owned() }),
            Err(error) => Err(unreachable(&*self.objects, &error)),
        };
        let kept = fetched.and_then(|()| fs::rename(&new, &path).map_err(|e| TrajectoryError::io("make", &path, e)));
        if kept.is_err() {
            // It may be gone already.
            let _ = fs::remove_file(&new);
        }
        kept?;
        evict(&self.settings.cache_dir, self.settings.cache_bytes, &path);
        Ok(file)
    }
}

/// Compares a fetched log with its entry.
fn check(file: &mut File, path: &Path, name: &str, wanted: &LogObject) -> Result<(), TrajectoryError> {
    let failed = |error| TrajectoryError::io("read", path, error);
    let bytes = file.metadata().map_err(failed)?.len();
    file.rewind().map_err(failed)?;
    let digest = crate::blob::digest_of(file).map_err(failed)?;
    let what = match () {
        () if bytes != wanted.bytes => format!("it has {bytes} bytes, and {} were stored", wanted.bytes),
        () if digest != wanted.blake3 => format!("its BLAKE3 is {digest}, and {} was stored", wanted.blake3),
        () => return Ok(()),
    };
    Err(TrajectoryError::DamagedObject { name: name.to_owned(), what })
}

/// A new file for something to fetch, which is open for reading, too.
fn new_file(dir: &Path) -> Result<(File, PathBuf), TrajectoryError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("new-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    Ok((file.map_err(|error| TrajectoryError::io("make", &path, error))?, path))
}

/// Removes the fetched logs that were used least recently, except `keep`. Open ones can be read to their end.
fn evict(dir: &Path, most: u64, keep: &Path) {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut logs: Vec<(SystemTime, PathBuf, u64)> = files
        .filter_map(|file| {
            let meta = file.metadata().ok()?;
            Some((meta.modified().ok()?, file.path(), meta.len()))
        })
        .filter(|(_, path, _)| path.file_name().and_then(|name| name.to_str()).is_some_and(crate::blob::is_digest))
        .collect();
    logs.sort();
    let mut bytes: u64 = logs.iter().map(|(_, _, bytes)| bytes).sum();
    for (_, path, size) in logs.iter().filter(|(_, path, _)| path != keep) {
        if bytes <= most {
            return;
        }
        match fs::remove_file(path) {
            Ok(()) => bytes -= size,
            Err(error) => tracing::warn!(path = %path.display(), %error, "a fetched log could not be removed"),
        }
    }
}

/// The next piece of an object, within the time that it may take.
async fn next(name: &str, pieces: &mut Pieces) -> Result<Option<bytes::Bytes>, ObjectError> {
    match timeout(STALL, pieces.next()).await {
        Ok(piece) => piece.transpose(),
        Err(_) => Err(ObjectError::new("read", name, format!("nothing came for {STALL:?}"))),
    }
}

/// Writes an object to a file. False: there is none.
async fn fetch(objects: &dyn Objects, name: &str, file: &mut File) -> Result<bool, ObjectError> {
    let Some(mut pieces) = objects.get(name).await? else { return Ok(false) };
    while let Some(piece) = next(name, &mut pieces).await? {
        // A short write to the page cache.
        file.write_all(&piece).map_err(|error| ObjectError::new("write a copy of", name, error))?;
    }
    Ok(true)
}

/// Length and BLAKE3 of an object. None: there is none.
async fn digest(objects: &dyn Objects, name: &str) -> Result<Option<(u64, String)>, ObjectError> {
    let Some(mut pieces) = objects.get(name).await? else { return Ok(None) };
    let (mut bytes, mut hash) = (0, blake3::Hasher::new());
    while let Some(piece) = next(name, &mut pieces).await? {
        bytes += piece.len() as u64;
        hash.update(&piece);
    }
    Ok(Some((bytes, hash.finalize().to_string())))
}

/// A small object. None: there is none.
async fn read(objects: &dyn Objects, name: &str, most: usize) -> Result<Option<Vec<u8>>, ObjectError> {
    let Some(mut pieces) = objects.get(name).await? else { return Ok(None) };
    let mut bytes = Vec::new();
    while let Some(piece) = next(name, &mut pieces).await? {
        if bytes.len() + piece.len() > most {
            return Err(ObjectError::new("read", name, format!("it is larger than {most} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

fn unreachable(objects: &dyn Objects, error: &ObjectError) -> TrajectoryError {
    TrajectoryError::Archive { place: objects.place(), reason: error.to_string() }
}

fn no_answer(objects: &dyn Objects) -> TrajectoryError {
    TrajectoryError::Archive { place: objects.place(), reason: format!("no answer within {LOOK_UP:?}") }
}

/// Length and BLAKE3 of the start of a file.
fn digest_of_start(mut file: File, bytes: u64) -> io::Result<String> {
    file.rewind()?;
    let mut hash = blake3::Hasher::new();
    let read = io::copy(&mut file.take(bytes), &mut hash)?;
    match read == bytes {
        true => Ok(hash.finalize().to_string()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests;
