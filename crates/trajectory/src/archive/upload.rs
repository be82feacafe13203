//! Uploads of trajectories that have ended, and the removal of local logs that are archived for long enough.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{
    Archive, Content, Entry, LogObject, Names, ObjectError, TrajectoryKey, VERSION, digest, digest_of_start, unreachable,
};
use crate::log::Receipt;
use crate::{TrajectoryError, Verification};

/// Trajectories that are uploaded at once, and bodies of each. A body is in memory while it is uploaded: 8 MiB at most.
const UPLOADS: usize = 2;
const BODIES: usize = 4;
/// Pauses after failed uploads: doubling from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// Until the next attempt for a trajectory with calls under way.
const UNSETTLED: Duration = Duration::from_secs(2);
/// Interval between looks at all logs. One look finds this many.
const LOOK: Duration = Duration::from_secs(300);
const FOUND: usize = 10_000;
/// A trajectory of a worker has no end: it is archived when nothing was added to it for this time.
const IDLE: Duration = Duration::from_secs(3600);
/// Times that an object is stored before one with other bytes is an error.
const ATTEMPTS: usize = 2;

/// What the uploads of an archive did since its start, and what waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct ArchiveCounters {
    pub archived: u64,
    pub failed: u64,
    /// Local logs that were removed.
    pub dropped: u64,
    pub waiting: u64,
}

#[derive(Debug, Default)]
pub(super) struct Status {
    waiting: usize,
    /// Why the last upload failed. None: it did not.
    problem: Option<String>,
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Uploaded {
    Done,
    /// Calls are under way.
    Unsettled,
    /// It stays here only.
    Left,
}

/// Trajectories that wait for their upload, and from when on it may be made.
#[derive(Default)]
struct Queue {
    times: HashMap<TrajectoryKey, Instant>,
    sorted: BTreeSet<(Instant, TrajectoryKey)>,
    /// After failures.
    pause: Option<(Duration, Instant)>,
}

impl Queue {
    /// Does nothing for one that waits already.
    fn add(&mut self, key: TrajectoryKey, at: Instant) {
        if !self.times.contains_key(&key) {
            self.times.insert(key.clone(), at);
            self.sorted.insert((at, key));
        }
    }

    fn take(&mut self, now: Instant) -> Option<TrajectoryKey> {
        if self.next_at()? > now {
            return None;
        }
        let (_, key) = self.sorted.pop_first()?;
        self.times.remove(&key);
        Some(key)
    }

    /// When there is something to take.
    fn next_at(&self) -> Option<Instant> {
        let (at, _) = self.sorted.first()?;
        Some(self.pause.map_or(*at, |(_, until)| until.max(*at)))
    }

    fn failed(&mut self, now: Instant) {
        let pause = self.pause.map_or(FIRST_PAUSE, |(pause, _)| (2 * pause).min(LAST_PAUSE));
        self.pause = Some((pause, now + pause));
    }

    fn succeeded(&mut self) {
        self.pause = None;
    }
}

impl Archive {
    /// Archives what has ended, until it is dropped. `is_live` says whether a trajectory's sandbox exists. An interrupted upload is
    /// repeated by the next run, and loses nothing.
    pub async fn run(self: Arc<Self>, is_live: impl Fn(&TrajectoryKey) -> bool + Send + Sync + 'static) {
        let Some(mut ended) = self.ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() else { return };
        let is_live = Arc::new(is_live);
        let mut queue = Queue::default();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut uploads = JoinSet::new();
        let mut looking = JoinSet::new();
        let mut swept = Instant::now();
        self.probe(&mut queue).await;
        loop {
            let now = Instant::now();
            while uploads.len() < UPLOADS
                && let Some(key) = queue.take(now)
            {
                let archive = Arc::clone(&self);
                uploads.spawn(async move { (archive.upload(&key).await, key) });
            }
            self.status().waiting = queue.times.len() + uploads.len();
            let retry = queue.next_at().filter(|_| uploads.len() < UPLOADS);
            tokio::select! {
                Some(key) = ended.recv() => queue.add(key, Instant::now()),
                Some(Ok((uploaded, key))) = uploads.join_next() => self.settle(&mut queue, key, uploaded),
                () = sleep_until(retry.unwrap_or(now)), if retry.is_some() => {}
                _ = looks.tick(), if looking.is_empty() => {
                    let (archive, is_live) = (Arc::clone(&self), Arc::clone(&is_live));
                    let may_sweep = swept.elapsed() >= IDLE;
                    looking.spawn(async move { archive.look(&*is_live, may_sweep).await });
                }
                Some(Ok((found, has_swept))) = looking.join_next() => {
                    if has_swept {
                        swept = Instant::now();
                    }
                    let now = Instant::now();
                    found.into_iter().for_each(|key| queue.add(key, now));
                }
            }
        }
    }

    /// Why trajectories can't be archived now. None: nothing is known against it.
    pub fn problem(&self) -> Option<String> {
        let status = self.status();
        let problem = status.problem.as_ref()?;
        Some(format!("{} trajectories wait for the archive at {}: {problem}", status.waiting, self.objects.place()))
    }

    pub fn counters(&self) -> ArchiveCounters {
        ArchiveCounters {
            archived: self.archived.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            waiting: self.status().waiting as u64,
        }
    }

    fn status(&self) -> std::sync::MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Shows a store that can't be reached before something has to be uploaded.
    async fn probe(&self, queue: &mut Queue) {
        if let Err(error) = self.look_up(self.objects.list("probe", None, 1)).await {
            self.note_failure(queue, None, &error);
        }
    }

    fn note_failure(&self, queue: &mut Queue, key: Option<&TrajectoryKey>, error: &TrajectoryError) {
        queue.failed(Instant::now());
        let reason = match error {
            TrajectoryError::Archive { reason, .. } => reason.clone(),
            other => other.to_string(),
        };
        let mut status = self.status();
        // Once for each cause: an outage is long.
        if status.problem.as_ref() != Some(&reason) {
            let trajectory = key.map(TrajectoryKey::trajectory);
            tracing::warn!(archive = self.objects.place(), trajectory, %error, "trajectories can't be archived; the server tries again");
        }
        status.problem = Some(reason);
    }

    fn settle(&self, queue: &mut Queue, key: TrajectoryKey, uploaded: Result<Uploaded, TrajectoryError>) {
        match uploaded {
            Ok(Uploaded::Unsettled) => queue.add(key, Instant::now() + UNSETTLED),
            // It was removed meanwhile.
            Err(TrajectoryError::NoTrajectory { .. }) => {}
            Ok(uploaded) => {
                queue.succeeded();
                if self.status().problem.take().is_some() {
                    tracing::info!(archive = self.objects.place(), "trajectories are archived again");
                }
                if uploaded == Uploaded::Done {
                    self.archived.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(trajectory = key.trajectory(), "archived a trajectory");
                }
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.note_failure(queue, Some(&key), &error);
                // Behind the others: it may be the only one that fails.
                queue.add(key, Instant::now() + FIRST_PAUSE);
            }
        }
    }

    /// Finds logs that are not archived, and removes those that are archived for long enough. Returns whether it swept bodies.
    async fn look(
        self: Arc<Self>,
        is_live: &(impl Fn(&TrajectoryKey) -> bool + Send + Sync),
        may_sweep: bool,
    ) -> (Vec<TrajectoryKey>, bool) {
        let Some(files) = self.recorder.files() else { return (Vec::new(), false) };
        if let Some(age) = self.settings.keep_local {
            self.drop_old(age, is_live).await;
        }
        let found = blocking(move || Ok(files.unarchived(IDLE, FOUND))).await.unwrap_or_default();
        let found = found.into_iter().filter(|key| !is_live(key)).collect();
        let has_dropped = self.dropped.load(Ordering::Relaxed) > 0;
        if !(may_sweep && has_dropped) {
            return (found, false);
        }
        let recorder = self.recorder.clone();
        match blocking(move || recorder.sweep()).await {
            Ok(bytes) => tracing::info!(bytes, "removed bodies of trajectories that are only in the archive"),
            Err(error) => tracing::warn!(%error, "bodies that no local trajectory has could not be removed"),
        }
        (found, true)
    }

    /// Removes local logs that are archived and were not written to for `age`.
    async fn drop_old(&self, age: Duration, is_live: &(impl Fn(&TrajectoryKey) -> bool + Send + Sync)) {
        let Some(files) = self.recorder.files() else { return };
        let listed = Arc::clone(&files);
        for archived in blocking(move || Ok(listed.archived(age))).await.unwrap_or_default() {
            // A sandbox in quarantine may be adopted, and has no end.
            let is_over = archived.ended || archived.key.is_of_worker();
            if !is_over || is_live(&archived.key) {
                continue;
            }
            let files = Arc::clone(&files);
            match self.has(&archived.key, &archived.receipt).await {
                Ok(true) => {
                    let dropped = blocking(move || files.drop_archived(&archived)).await;
                    match dropped {
                        Ok(()) => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
                        // A call came in between.
                        Err(TrajectoryError::Busy { .. } | TrajectoryError::NoTrajectory { .. }) => {}
                        Err(error) => tracing::warn!(%error, "an archived trajectory could not be removed here"),
                    }
                }
                Ok(false) => {
                    tracing::warn!(
                        trajectory = archived.key.trajectory(),
                        "the archive has lost a trajectory, which is uploaded again"
                    );
                    files.remove_receipt(&archived.key);
                }
                Err(error) => return tracing::debug!(%error, "local trajectories stay, since the archive can't be read"),
            }
        }
    }

    /// Whether the archive has the log of a receipt.
    async fn has(&self, key: &TrajectoryKey, receipt: &Receipt) -> Result<bool, TrajectoryError> {
        let Some((_, entry)) = self.find(key).await? else { return Ok(false) };
        Ok(entry.log.blake3 == receipt.blake3 && entry.log.bytes == receipt.bytes)
    }

    /// Uploads a trajectory, unless the archive has it already.
    pub(super) async fn upload(&self, key: &TrajectoryKey) -> Result<Uploaded, TrajectoryError> {
        let Some(files) = self.recorder.files() else { return Ok(Uploaded::Left) };
        let (recorder, wanted) = (self.recorder.clone(), key.clone());
        let read = blocking(move || Local::read(&recorder, &wanted)).await?;
        let local = match read {
            Read::Unsettled => return Ok(Uploaded::Unsettled),
            Read::Empty => return Ok(Uploaded::Left),
            Read::Local(local) => local,
        };
        let names = Names::new(key.tenant(), key.trajectory(), local.entry.summary.first_at);
        let failed = |error: &ObjectError| unreachable(&*self.objects, error);
        let older = self.look_up(self.entry(&names.index)).await?;
        let is_there = older.as_ref().is_some_and(|older| older.log == local.entry.log);
        if let Some(older) = older.as_ref().filter(|older| !is_there && older.log.bytes > local.entry.log.bytes) {
            let bytes = older.log.bytes;
            tracing::error!(
                trajectory = key.trajectory(),
                bytes,
                "the archive has a longer log of this trajectory, so it stays as it is"
            );
            return Ok(Uploaded::Left);
        }
        if !is_there {
            let log = names.log(&local.entry.log.blake3);
            self.store(&log, (&local.entry.log.blake3, local.entry.log.bytes), || {
                Ok(Content::File { file: local.file.try_clone()?, bytes: local.entry.log.bytes })
            })
            .await?;
            let mut entry = local.entry;
            let stored = self.store_bodies(&names, local.bodies).await?;
            (entry.bodies, entry.lost_bodies) = stored;
            entry.archived_at = Timestamp::now();
            let text = serde_json::to_vec(&entry).map_err(|error| failed(&ObjectError::new("describe", &names.index, error)))?;
            let digest = blake3::hash(&text).to_string();
            let text = Bytes::from(text);
            self.store(&names.index, (&digest, text.len() as u64), || Ok(Content::Bytes(text.clone()))).await?;
            self.known().remove(&names.index);
            if let Some(older) = older {
                let replaced = names.log(&older.log.blake3);
                self.objects.delete(&replaced).await.map_err(|error| failed(&error))?;
            }
        }
        let (key, receipt) = (key.clone(), local.receipt);
        blocking(move || files.set_receipt(&key, &receipt)).await?;
        Ok(Uploaded::Done)
    }

    /// Stores bodies. Returns how many, and how many the node has lost.
    async fn store_bodies(&self, names: &Names, bodies: BTreeSet<String>) -> Result<(u64, u64), TrajectoryError> {
        let mut stored =
            futures_util::stream::iter(bodies.into_iter().map(|body| self.store_body(names, body))).buffer_unordered(BODIES);
        let (mut there, mut lost) = (0, 0);
        while let Some(stored) = stored.next().await {
            match stored? {
                true => there += 1,
                false => lost += 1,
            }
        }
        Ok((there, lost))
    }

    /// False: the node has lost the body, or its bytes are not those that were recorded.
    async fn store_body(&self, names: &Names, body: String) -> Result<bool, TrajectoryError> {
        let (recorder, wanted) = (self.recorder.clone(), body.clone());
        let read = blocking(move || {
            let mut bytes = Vec::new();
            let mut file = recorder.read_blob(&wanted)?;
            file.read_to_end(&mut bytes).map_err(|error| TrajectoryError::io("read", &wanted, error))?;
            Ok(Bytes::from(bytes))
        });
        let bytes = match read.await {
            Err(TrajectoryError::NoBlob { .. } | TrajectoryError::DamagedBlob { .. } | TrajectoryError::BadDigest { .. }) => {
                return Ok(false);
            }
            other => other?,
        };
        let name = names.body(&body);
        self.store(&name, (&body, bytes.len() as u64), || Ok(Content::Bytes(bytes.clone()))).await?;
        Ok(true)
    }

    /// Stores an object unless it is there already, and compares what is there with what it should be.
    async fn store(
        &self,
        name: &str,
        (blake3, bytes): (&str, u64),
        content: impl Fn() -> std::io::Result<Content>,
    ) -> Result<(), TrajectoryError> {
        let failed = |error: &ObjectError| unreachable(&*self.objects, error);
        let mut there = digest(&*self.objects, name).await.map_err(|error| failed(&error))?;
        for _ in 0..ATTEMPTS {
            if there.as_ref().is_some_and(|(length, digest)| *length == bytes && digest == blake3) {
                return Ok(());
            }
            let content = content().map_err(|error| TrajectoryError::io("read the log for", name, error))?;
            self.objects.put(name, content).await.map_err(|error| failed(&error))?;
            there = digest(&*self.objects, name).await.map_err(|error| failed(&error))?;
        }
        match there {
            Some((length, digest)) if length == bytes && digest == blake3 => Ok(()),
            Some((length, digest)) => Err(TrajectoryError::DamagedObject {
                name: name.to_owned(),
                what: format!("{bytes} bytes with BLAKE3 {blake3} were stored, and {length} with {digest} are there"),
            }),
            None => {
                Err(TrajectoryError::DamagedObject { name: name.to_owned(), what: "it was stored, and is not there".to_owned() })
            }
        }
    }
}

/// A local trajectory on its way into the archive.
struct Local {
    file: File,
    entry: Entry,
    receipt: Receipt,
    /// The bodies to which the log refers.
    bodies: BTreeSet<String>,
}

enum Read {
    Unsettled,
    /// It has no step.
    Empty,
    Local(Box<Local>),
}

impl Local {
    fn read(recorder: &crate::Recorder, key: &TrajectoryKey) -> Result<Read, TrajectoryError> {
        let missing = || TrajectoryError::NoTrajectory { trajectory: key.trajectory().to_owned() };
        let files = recorder.files().ok_or_else(missing)?;
        let Some(settled) = files.settled(key)? else { return Ok(Read::Unsettled) };
        let failed = |error| TrajectoryError::io("read the log of", key.trajectory(), error);
        let Some(mut summary) = files.summary(key)? else { return Ok(Read::Empty) };
        if summary.bytes != settled.bytes {
            return Ok(Read::Unsettled);
        }
        (summary.archived, summary.ended) = (true, settled.ended);
        let file = files.file(key)?;
        let blake3 = digest_of_start(file.try_clone().map_err(failed)?, settled.bytes).map_err(failed)?;
        let (mut bodies, mut found) = (BTreeSet::new(), Verification::default());
        crate::log::verify(file.try_clone().map_err(failed)?, settled.bytes, &mut found, &mut |_, body| {
            bodies.insert(body.blake3);
        })
        .map_err(failed)?;
        if !found.problems.is_empty() {
            let problems = found.problems.len();
            tracing::error!(trajectory = key.trajectory(), problems, "a log that is archived is not as it was written");
        }
        let entry = Entry {
            v: VERSION,
            tenant: key.tenant().clone(),
            summary,
            log: LogObject { blake3: blake3.clone(), bytes: settled.bytes },
            bodies: 0,
            lost_bodies: 0,
            archived_at: Timestamp::now(),
        };
        Ok(Read::Local(Box::new(Self { file, entry, receipt: Receipt { bytes: settled.bytes, blake3 }, bodies })))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TrajectoryError> + Send + 'static,
) -> Result<T, TrajectoryError> {
    let failed = |error| TrajectoryError::io("wait for", "a thread", std::io::Error::other(error));
    spawn_blocking(work).await.map_err(failed)?
}
