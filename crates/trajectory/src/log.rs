//! The log of steps, and its implementation with a file for each trajectory.

mod read;
mod receipt;
mod recover;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

pub(crate) use read::{refers, sessions, steps, verify};
pub(crate) use receipt::Receipt;

use arenite_model::TenantId;
use jiff::Timestamp;
use serde::Serialize;

use crate::network::{self, NetworkCount, NetworkRecord};
use crate::record::{EndRecord, SessionRecord};
use crate::reserve::{Reserve, is_full};
use crate::seal::{self, NO_SUM, Sum};
use crate::sync::Syncer;
use crate::{
    BlobRef, FORMAT_VERSION, Failures, IntentRecord, Kind, Limits, NetworkEvent, NetworkEvents, OutcomeRecord, SessionEvent,
    Step, StepResult, Summary, TrajectoryError, Verification,
};

/// How the ids of workers' trajectories start.
const WORKER: &str = "w-";

/// Identifies one trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrajectoryKey {
    tenant: TenantId,
    trajectory: String,
}

impl TrajectoryKey {
    /// Rejects ids that could lead out of a path.
    pub fn new(tenant: &TenantId, trajectory: &str) -> Result<Self, TrajectoryError> {
        let ok = (1..=64).contains(&trajectory.len())
            && trajectory.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !ok {
            return Err(TrajectoryError::BadTrajectory { given: trajectory.chars().take(80).collect() });
        }
        Ok(Self { tenant: tenant.clone(), trajectory: trajectory.to_owned() })
    }

    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    pub fn trajectory(&self) -> &str {
        &self.trajectory
    }

    /// Whether it is of a worker, and of no sandbox.
    pub(crate) fn is_of_worker(&self) -> bool {
        self.trajectory.starts_with(WORKER)
    }
}

/// A log of steps.
pub trait StepLog: Send + Sync {
    /// Logs an intent under the next number of its trajectory. Returns that number once the server's death can't lose the
    /// record.
    fn begin(&self, key: &TrajectoryKey, intent: IntentRecord) -> Result<u64, TrajectoryError>;
    /// Logs the outcome of an open step, once. Whatever it returns, the step is no longer open.
    fn finish(&self, key: &TrajectoryKey, outcome: OutcomeRecord) -> Result<(), TrajectoryError>;
    /// Records that the trajectory's sandbox was deleted.
    fn end(&self, key: &TrajectoryKey) -> Result<(), TrajectoryError>;
    /// Removes a log without open steps; with `bytes`, only one of this length.
    fn remove(&self, key: &TrajectoryKey, bytes: Option<u64>) -> Result<(), TrajectoryError>;
    /// A tenant's trajectories, the most recently used first.
    fn list(&self, tenant: &TenantId) -> Result<Vec<Summary>, TrajectoryError>;
    /// Up to `limit` steps after the given one, in order.
    fn steps(&self, key: &TrajectoryKey, after: u64, limit: usize) -> Result<Vec<Step>, TrajectoryError>;
    /// Logs the start or end of a session.
    fn session(&self, key: &TrajectoryKey, event: SessionEvent) -> Result<(), TrajectoryError>;
    /// Starts and ends of sessions, in order.
    fn sessions(&self, key: &TrajectoryKey) -> Result<Vec<SessionEvent>, TrajectoryError>;
    /// Logs a decision of the network policy. Counts it alone without `keep`, or beyond the most.
    fn note_network(&self, key: &TrajectoryKey, event: NetworkEvent, keep: bool) -> Result<(), TrajectoryError>;
    /// Decisions of the network policy, in order.
    fn network(&self, key: &TrajectoryKey) -> Result<NetworkEvents, TrajectoryError>;
    /// Checks all lines, and calls `see` with the step and the kept body of each reference.
    fn verify(
        &self,
        key: &TrajectoryKey,
        found: &mut Verification,
        see: &mut dyn FnMut(u64, BlobRef),
    ) -> Result<(), TrajectoryError>;
    /// Whether a step refers to the body.
    fn refers(&self, key: &TrajectoryKey, digest: &str) -> Result<bool, TrajectoryError>;
    /// Whether there is a log.
    fn has(&self, key: &TrajectoryKey) -> bool;
    /// The number of the last step, and whether the end was recorded; `(0, false)` without a log.
    fn stand(&self, key: &TrajectoryKey) -> Result<(u64, bool), TrajectoryError>;
    /// Calls `see` with each digest that any record of any tenant refers to.
    fn digests(&self, see: &mut dyn FnMut(&str)) -> Result<(), TrajectoryError>;
    /// Bytes of all logs.
    fn bytes(&self) -> u64;
    /// Bytes of a tenant's logs.
    fn bytes_of(&self, tenant: &TenantId) -> u64;
    /// Failed attempts to sync records to the disk.
    fn sync_errors(&self) -> u64;
}

/// A log file for each trajectory.
pub struct FileLog {
    dir: PathBuf,
    limits: Limits,
    logs: Mutex<HashMap<TrajectoryKey, Arc<Log>>>,
    used: Arc<Used>,
    open_files: AtomicUsize,
    clock: AtomicU64,
    syncer: Syncer,
    reserve: Arc<Reserve>,
}

/// State of one log while it is used.
///
/// Locks are taken in this order: the map of logs, then a log's state.
struct Log {
    tenant: TenantId,
    path: PathBuf,
    /// Time of its last use, by `FileLog::clock`.
    used: AtomicU64,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    file: Option<Arc<File>>,
    /// Whether `last`, `ended` and `torn` were read from the file.
    loaded: bool,
    len: u64,
    last: u64,
    /// Open steps.
    open: BTreeSet<u64>,
    failures: Option<Failures>,
    ended: bool,
    /// The file doesn't end with a line break.
    torn: bool,
    removed: bool,
    /// The sum of its last line.
    sum: Option<Sum>,
    /// Read from the file before the first one is written.
    network: Option<NetworkCount>,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of logs, in all and of each tenant.
#[derive(Default)]
struct Used {
    all: AtomicU64,
    by_tenant: Mutex<HashMap<TenantId, u64>>,
}

impl Used {
    fn by_tenant(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, tenant: &TenantId, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        let mut by_tenant = self.by_tenant();
        match by_tenant.get_mut(tenant) {
            Some(used) => *used += bytes,
            None => drop(by_tenant.insert(tenant.clone(), bytes)),
        }
    }

    /// Saturating: existing logs are counted in the background.
    fn subtract(&self, tenant: &TenantId, bytes: u64) {
        // The closure never returns `None`.
        let _ = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used.saturating_sub(bytes)));
        if let Some(used) = self.by_tenant().get_mut(tenant) {
            *used = used.saturating_sub(bytes);
        }
    }
}

impl FileLog {
    /// `first` runs on the sync thread, before anything else.
    pub(crate) fn open(
        dir: PathBuf,
        limits: Limits,
        reserve: Arc<Reserve>,
        first: impl FnOnce() + Send + 'static,
    ) -> Result<Self, TrajectoryError> {
        fs::create_dir_all(&dir).map_err(|e| TrajectoryError::io("make", &dir, e))?;
        let used = Arc::new(Used::default());
        let count = count_logs(dir.clone(), Arc::clone(&used), SystemTime::now());
        let syncer = Syncer::start(limits.sync_every, move || {
            count();
            first();
        })
        .map_err(|e| TrajectoryError::io("start the thread that syncs", &dir, e))?;
        Ok(Self {
            dir,
            limits,
            logs: Mutex::default(),
            used,
            open_files: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
            syncer,
            reserve,
        })
    }

    fn logs(&self) -> MutexGuard<'_, HashMap<TrajectoryKey, Arc<Log>>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &TrajectoryKey) -> PathBuf {
        self.dir.join(key.tenant.as_str()).join(format!("{}.jsonl", key.trajectory))
    }

    fn log(&self, key: &TrajectoryKey) -> Arc<Log> {
        let mut logs = self.logs();
        if self.open_files.load(Ordering::Relaxed) >= self.limits.open_files {
            self.evict(&mut logs);
        }
        let log = match logs.get(key) {
            Some(log) => Arc::clone(log),
            None => {
                let log = Arc::new(Log {
                    tenant: key.tenant.clone(),
                    path: self.path(key),
                    used: AtomicU64::new(0),
                    state: Mutex::default(),
                });
                logs.insert(key.clone(), Arc::clone(&log));
                log
            }
        };
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        log.used.store(now, Ordering::Relaxed);
        log
    }

    /// Closes the quarter of the files that was used least recently, and drops logs without an open step from memory: the last
    /// line of the file holds everything that was known of them.
    fn evict(&self, logs: &mut HashMap<TrajectoryKey, Arc<Log>>) {
        let mut by_age: Vec<(u64, TrajectoryKey)> = logs
            .iter()
            // Only the map holds it, so no thread uses it, and none can while the map is locked.
            .filter(|(_, log)| Arc::strong_count(log) == 1)
            .map(|(key, log)| (log.used.load(Ordering::Relaxed), key.clone()))
            .collect();
        by_age.sort_unstable();
        let mut to_close = (self.limits.open_files / 4).max(1);
        for (_, key) in by_age {
            if to_close == 0 {
                break;
            }
            let Some(log) = logs.get(&key) else { continue };
            let mut state = log.state();
            if self.close(&mut state) {
                to_close -= 1;
            }
            if state.open.is_empty() {
                drop(state);
                logs.remove(&key);
            }
        }
    }

    fn close(&self, state: &mut LogState) -> bool {
        let closed = state.file.take().is_some();
        if closed {
            self.open_files.fetch_sub(1, Ordering::Relaxed);
        }
        closed
    }

    /// Runs `change` on the log's state, with its file open and its past loaded. `make` allows the creation of a new log.
    fn change<T>(
        &self,
        key: &TrajectoryKey,
        make: bool,
        mut change: impl FnMut(&Log, &mut LogState) -> Result<T, TrajectoryError>,
    ) -> Result<T, TrajectoryError> {
        loop {
            let log = self.log(key);
            let mut state = log.state();
            if state.removed {
                // It was removed from the map before it was marked, so the next lookup finds another.
                continue;
            }
            self.load(key, &log, &mut state, make)?;
            return change(&log, &mut state);
        }
    }

    fn load(&self, key: &TrajectoryKey, log: &Log, state: &mut LogState, make: bool) -> Result<(), TrajectoryError> {
        let file = match &state.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = Arc::new(self.open_file(key, &log.path, make)?);
                state.file = Some(Arc::clone(&file));
                self.open_files.fetch_add(1, Ordering::Relaxed);
                file
            }
        };
        if state.loaded {
            return Ok(());
        }
        let failed = |e| TrajectoryError::io("read", &log.path, e);
        state.len = file.metadata().map_err(failed)?.len();
        let past = recover::past(&file, state.len).map_err(failed)?;
        (state.last, state.ended, state.torn, state.sum) = (past.last, past.ended, past.torn, Some(past.sum));
        state.failures = past.failures;
        // Steps that a dead server left open stay `open` until each is recorded as interrupted, so that another crash here loses
        // none of them.
        state.open = past.interrupted.into_iter().collect();
        while let Some(step) = state.open.pop_first() {
            let mut record = OutcomeRecord::interrupted(step);
            if let Err(error) = self.append_outcome(log, state, &mut record) {
                state.open.clear();
                return Err(error);
            }
        }
        state.loaded = true;
        Ok(())
    }

    fn open_to_read(&self, key: &TrajectoryKey) -> Result<(PathBuf, File), TrajectoryError> {
        let path = self.path(key);
        match File::open(&path) {
            Ok(file) => Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(TrajectoryError::NoTrajectory { trajectory: key.trajectory.clone() })
            }
            Err(error) => Err(TrajectoryError::io("open", path, error)),
        }
    }

    /// Reads the file up to its current length. A concurrent write only adds a line.
    fn read<T>(&self, key: &TrajectoryKey, read: impl FnOnce(File, u64) -> io::Result<T>) -> Result<T, TrajectoryError> {
        let (path, file) = self.open_to_read(key)?;
        let len = file.metadata().map(|meta| meta.len());
        len.and_then(|len| read(file, len)).map_err(|error| TrajectoryError::io("read", path, error))
    }

    fn open_file(&self, key: &TrajectoryKey, path: &Path, make: bool) -> Result<File, TrajectoryError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true);
        match options.open(path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(TrajectoryError::io("open", path, error));
            }
            Err(_) if !make => {
                return Err(TrajectoryError::NoTrajectory { trajectory: key.trajectory.clone() });
            }
            Err(_) => {}
        }
        let dir = self.dir.join(key.tenant.as_str());
        options.create(true);
        let file = match options.open(path) {
            // The tenant's first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&dir).map_err(|e| TrajectoryError::io("make", &dir, e))?;
                options.open(path)
            }
            opened => opened,
        };
        let file = file.map_err(|e| TrajectoryError::io("make", path, e))?;
        self.syncer.mark_dir(&dir);
        self.syncer.mark_dir(&self.dir);
        Ok(file)
    }

    /// Appends one record in one `write(2)`, completely or not at all. `accepted`: the record belongs to an accepted call, and
    /// may use the reserve.
    fn append(&self, log: &Log, state: &mut LogState, record: &impl Serialize, accepted: bool) -> Result<(), TrajectoryError> {
        let failed = |e| TrajectoryError::io("write to", &log.path, e);
        let Some(file) = state.file.clone() else {
            return Err(failed(io::Error::other("the log is not open")));
        };
        if state.torn {
            self.reserve.retry(1, || write_whole(&file, b"\n", state.len)).map_err(failed)?;
            state.len += 1;
            state.torn = false;
        }
        let mut line = Vec::with_capacity(512);
        serde_json::to_writer(&mut line, record).map_err(|e| failed(e.into()))?;
        let sum = seal::seal(&mut line, &state.sum.unwrap_or(NO_SUM));
        line.push(b'\n');
        let written = match accepted {
            true => self.reserve.retry(line.len(), || write_whole(&file, &line, state.len)),
            false => write_whole(&file, &line, state.len),
        };
        if let Err(error) = written {
            // Its length shows whether the partial write could be undone.
            let len = file.metadata().map_or(state.len, |meta| meta.len());
            state.torn = len != state.len;
            state.len = len;
            return Err(failed(error));
        }
        state.len += line.len() as u64;
        state.sum = Some(sum);
        self.used.add(&log.tenant, line.len() as u64);
        self.syncer.mark(&log.path, &file);
        Ok(())
    }

    fn append_outcome(&self, log: &Log, state: &mut LogState, record: &mut OutcomeRecord) -> Result<(), TrajectoryError> {
        record.last = state.last;
        record.open = state.open.first().copied();
        record.ended = state.ended;
        let failed = matches!(record.result, Some(StepResult::Failed(_)));
        record.failures = state.failures.map(|failures| if failed { failures.and(record.step) } else { failures });
        self.append(log, state, record, true)?;
        state.failures = record.failures;
        Ok(())
    }

    /// Drops the in-memory state of a log that is not in use.
    fn forget(&self, key: &TrajectoryKey) {
        let mut logs = self.logs();
        let idle = logs.get(key).is_some_and(|log| {
            let state = log.state();
            Arc::strong_count(log) == 1 && state.open.is_empty() && state.file.is_none()
        });
        if idle {
            logs.remove(key);
        }
    }
}

impl StepLog for FileLog {
    fn begin(&self, key: &TrajectoryKey, mut intent: IntentRecord) -> Result<u64, TrajectoryError> {
        let used = self.bytes();
        if used >= self.limits.logs_bytes {
            return Err(TrajectoryError::LogsFull { used, limit: self.limits.logs_bytes });
        }
        if !self.reserve.is_whole() {
            return Err(TrajectoryError::DiskFull);
        }
        self.change(key, true, |log, state| {
            if state.open.len() >= self.limits.open_steps {
                return Err(TrajectoryError::TooManyOpen { trajectory: key.trajectory.clone(), open: state.open.len() });
            }
            let step = state.last + 1;
            intent.step = step;
            intent.last = step;
            intent.open = Some(state.open.first().copied().unwrap_or(step));
            intent.failures = state.failures;
            intent.ended = state.ended;
            self.append(log, state, &intent, false).map_err(|error| match error {
                TrajectoryError::Io { source, .. } if is_full(&source) => TrajectoryError::DiskFull,
                other => other,
            })?;
            state.last = step;
            state.open.insert(step);
            Ok(step)
        })
    }

    fn finish(&self, key: &TrajectoryKey, mut outcome: OutcomeRecord) -> Result<(), TrajectoryError> {
        self.change(key, false, |log, state| {
            if !state.open.remove(&outcome.step) {
                return Ok(());
            }
            let written = self.append_outcome(log, state, &mut outcome);
            // A step that outlived its sandbox has reopened the file.
            if state.ended && state.open.is_empty() {
                self.close(state);
            }
            written
        })
    }

    fn end(&self, key: &TrajectoryKey) -> Result<(), TrajectoryError> {
        let result = self.change(key, false, |log, state| {
            if !state.ended {
                let record = EndRecord {
                    v: FORMAT_VERSION,
                    kind: Kind::End,
                    last: state.last,
                    open: state.open.first().copied(),
                    failures: state.failures,
                    ended: true,
                    at: Timestamp::now(),
                };
                self.append(log, state, &record, true)?;
                state.ended = true;
            }
            self.close(state);
            Ok(())
        });
        self.forget(key);
        match result {
            // A sandbox that was never called has no log.
            Err(TrajectoryError::NoTrajectory { .. }) => Ok(()),
            other => other,
        }
    }

    fn remove(&self, key: &TrajectoryKey, bytes: Option<u64>) -> Result<(), TrajectoryError> {
        let mut logs = self.logs();
        let log = logs.get(key).cloned();
        let mut state = log.as_ref().map(|log| log.state());
        if state.as_ref().is_some_and(|state| !state.open.is_empty()) {
            return Err(TrajectoryError::Busy { trajectory: key.trajectory.clone() });
        }
        let path = self.path(key);
        let len = fs::metadata(&path).map_or(0, |meta| meta.len());
        if bytes.is_some_and(|bytes| bytes != len) {
            return Err(TrajectoryError::Busy { trajectory: key.trajectory.clone() });
        }
        fs::remove_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => TrajectoryError::NoTrajectory { trajectory: key.trajectory.clone() },
            _ => TrajectoryError::io("remove", &path, error),
        })?;
        receipt::remove(&path);
        self.used.subtract(&key.tenant, len);
        logs.remove(key);
        if let Some(state) = &mut state {
            state.removed = true;
            self.close(state);
        }
        Ok(())
    }

    fn list(&self, tenant: &TenantId) -> Result<Vec<Summary>, TrajectoryError> {
        read::list(&self.dir.join(tenant.as_str()))
    }

    fn steps(&self, key: &TrajectoryKey, after: u64, limit: usize) -> Result<Vec<Step>, TrajectoryError> {
        let (path, file) = self.open_to_read(key)?;
        let failed = |e| TrajectoryError::io("read", &path, e);
        // Length and open steps belong together: an outcome written after the length was taken is not read, so its step must
        // count as open.
        let (len, open) = {
            let logs = self.logs();
            let state = logs.get(key).map(|log| log.state());
            let len = file.metadata().map_err(failed)?.len();
            (len, state.map_or_else(BTreeSet::new, |s| s.open.clone()))
        };
        read::steps(file, len, &open, after, limit).map_err(failed)
    }

    fn session(&self, key: &TrajectoryKey, event: SessionEvent) -> Result<(), TrajectoryError> {
        self.change(key, true, |log, state| {
            let record = SessionRecord {
                v: FORMAT_VERSION,
                kind: Kind::Session,
                last: state.last,
                open: state.open.first().copied(),
                failures: state.failures,
                ended: state.ended,
                session: event.clone(),
                at: Timestamp::now(),
            };
            self.append(log, state, &record, false)
        })
    }

    fn sessions(&self, key: &TrajectoryKey) -> Result<Vec<SessionEvent>, TrajectoryError> {
        self.read(key, read::sessions)
    }

    fn note_network(&self, key: &TrajectoryKey, event: NetworkEvent, keep: bool) -> Result<(), TrajectoryError> {
        let keep = keep && self.bytes() < self.limits.logs_bytes && self.reserve.is_whole();
        self.change(key, true, |log, state| {
            let mut count = match state.network {
                Some(count) => count,
                None => self
                    .read(key, network::network)
                    .map(|found| NetworkCount { records: found.events.len() as u64, left_out: found.left_out })?,
            };
            let fits = keep && count.records < network::MOST;
            let before = count;
            if fits {
                count.records += 1;
            } else {
                count.left_out += event.count;
            }
            state.network = Some(count);
            if !fits && before.left_out.checked_ilog2() == count.left_out.checked_ilog2() {
                return Ok(());
            }
            let record = NetworkRecord {
                v: FORMAT_VERSION,
                kind: Kind::Network,
                last: state.last,
                open: state.open.first().copied(),
                failures: state.failures,
                ended: state.ended,
                network: fits.then(|| event.clone()),
                left_out: (!fits).then_some(count.left_out),
                at: Timestamp::now(),
            };
            self.append(log, state, &record, false)
        })
    }

    fn network(&self, key: &TrajectoryKey) -> Result<NetworkEvents, TrajectoryError> {
        self.read(key, network::network)
    }

    fn verify(
        &self,
        key: &TrajectoryKey,
        found: &mut Verification,
        see: &mut dyn FnMut(u64, BlobRef),
    ) -> Result<(), TrajectoryError> {
        self.read(key, |file, len| read::verify(file, len, found, see))
    }

    fn refers(&self, key: &TrajectoryKey, digest: &str) -> Result<bool, TrajectoryError> {
        self.read(key, |file, len| read::refers(file, len, digest))
    }

    fn has(&self, key: &TrajectoryKey) -> bool {
        self.path(key).exists()
    }

    fn stand(&self, key: &TrajectoryKey) -> Result<(u64, bool), TrajectoryError> {
        let path = self.path(key);
        match read::stand(&path) {
            Ok(stand) => Ok(stand),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((0, false)),
            Err(error) => Err(TrajectoryError::io("read", &path, error)),
        }
    }

    fn digests(&self, see: &mut dyn FnMut(&str)) -> Result<(), TrajectoryError> {
        read::digests(&self.dir, see)
    }

    fn bytes(&self) -> u64 {
        self.used.all.load(Ordering::Relaxed)
    }

    fn bytes_of(&self, tenant: &TenantId) -> u64 {
        self.used.by_tenant().get(tenant).copied().unwrap_or_default()
    }

    fn sync_errors(&self) -> u64 {
        self.syncer.errors()
    }
}

/// Writes all of `bytes` at the end of the file, which is `len` long, in one `write(2)`; or none of it.
fn write_whole(mut file: &File, bytes: &[u8], len: u64) -> io::Result<()> {
    loop {
        match file.write(bytes) {
            Ok(written) if written == bytes.len() => return Ok(()),
            Ok(_) => {
                file.set_len(len)?;
                return Err(io::Error::new(io::ErrorKind::StorageFull, "only a part of the record could be written"));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a function that counts the logs from before `opened`.
fn count_logs(dir: PathBuf, used: Arc<Used>, opened: SystemTime) -> impl FnOnce() + Send {
    move || {
        for log in read::all_logs(&dir) {
            if let Ok(meta) = log.metadata()
                && meta.modified().is_ok_and(|at| at < opened)
                && let Some(tenant) = log.parent().and_then(|dir| dir.file_name()?.to_str()?.parse().ok())
            {
                used.add(&tenant, meta.len());
            }
        }
    }
}
