//! The recorder: `begin` before the guest is dialled, taps while bytes pass, `finish` before the answer's last byte.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arenite_model::TenantId;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::sync::mpsc;

use crate::class::FailureClass;
use crate::follow::{Change, Followers};
use crate::limits::{MAX_ACTION, MAX_PAGE, MAX_TEXT};
use crate::model_step::ModelStep;
use crate::record::conclude;
use crate::reserve::Reserve;
use crate::{
    BlobRef, BlobStore, Body, Counters, FORMAT_VERSION, Failure, FileBlobs, FileLog, Filter, Follow, Intent, IntentRecord, Kind,
    Limits, NetworkEvent, NetworkEvents, Outcome, OutcomeKind, OutcomeRecord, PartOfStep, SessionEvent, Step, StepLog,
    StepResult, StepState, Summary, Tap, TrajectoryError, TrajectoryKey, Verification,
};

/// Largest body in a record itself, in bytes, whatever the configuration is: it bounds log lines.
const MAX_INLINE: usize = 64 << 10;
/// Largest body in the record itself of one call among several of a step, in bytes.
const PART_INLINE: usize = 1 << 10;
/// The most calls of one step.
const MAX_PARTS: usize = 64;
/// A recently written blob may belong to a record that is still to come.
const SWEEP_GRACE: Duration = Duration::from_secs(3600);

/// The most bytes of a tenant's logs; none: unlimited.
type TenantLimit = Box<dyn Fn(&TenantId) -> Option<u64> + Send + Sync>;

/// Records steps. Cheap to clone. Dropping the last clone syncs everything to the disk.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

struct Inner {
    log: Arc<dyn StepLog>,
    /// The same, if it is on this disk.
    files: Option<Arc<FileLog>>,
    blobs: Arc<dyn BlobStore>,
    followers: Arc<Followers>,
    limits: Limits,
    tenant_limit: OnceLock<TenantLimit>,
    ends: OnceLock<mpsc::Sender<TrajectoryKey>>,
    begun: AtomicU64,
    finished: AtomicU64,
    refused: AtomicU64,
    outcomes_lost: AtomicU64,
    not_kept: Arc<AtomicU64>,
    /// Held while this recorder exists.
    _lock: Option<File>,
}

impl Recorder {
    /// Opens the records in `dir`, and creates it if needed.
    ///
    /// # Errors
    /// [`TrajectoryError::InUse`] if another process records there.
    pub fn open(dir: PathBuf, limits: Limits) -> Result<Self, TrajectoryError> {
        std::fs::create_dir_all(&dir).map_err(|e| TrajectoryError::io("make", &dir, e))?;
        let lock = lock(&dir)?;
        let reserve = Arc::new(Reserve::open(dir.join("reserve"), limits.reserve_bytes));
        let blobs = FileBlobs::open(dir.join("blobs"), limits.blobs_bytes, Arc::clone(&reserve))?;
        let count = blobs.count(SystemTime::now());
        let log = Arc::new(FileLog::open(dir.join("logs"), limits.clone(), reserve, count)?);
        Ok(Self::build(Arc::clone(&log) as _, Some(log), Arc::new(blobs), limits, Some(lock)))
    }

    /// Creates a recorder with the given log and store.
    pub fn with(log: Arc<dyn StepLog>, blobs: Arc<dyn BlobStore>, limits: Limits) -> Self {
        Self::build(log, None, blobs, limits, None)
    }

    fn build(
        log: Arc<dyn StepLog>,
        files: Option<Arc<FileLog>>,
        blobs: Arc<dyn BlobStore>,
        mut limits: Limits,
        lock: Option<File>,
    ) -> Self {
        limits.inline_bytes = limits.inline_bytes.min(MAX_INLINE);
        Self {
            inner: Arc::new(Inner {
                log,
                files,
                blobs,
                followers: Arc::default(),
                limits,
                tenant_limit: OnceLock::new(),
                ends: OnceLock::new(),
                begun: AtomicU64::new(0),
                finished: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                outcomes_lost: AtomicU64::new(0),
                not_kept: Arc::default(),
                _lock: lock,
            }),
        }
    }

    /// Limits the bytes of each tenant's logs. Applies to what begins from then on; a second call does nothing.
    pub fn limit_tenants(&self, limit: impl Fn(&TenantId) -> Option<u64> + Send + Sync + 'static) {
        let _ = self.inner.tenant_limit.set(Box::new(limit));
    }

    /// Sends the ends of trajectories there, unless the channel is full. A second call does nothing.
    pub(crate) fn report_ends(&self, ends: mpsc::Sender<TrajectoryKey>) {
        let _ = self.inner.ends.set(ends);
    }

    /// The log, if it is on this disk.
    pub(crate) fn files(&self) -> Option<Arc<FileLog>> {
        self.inner.files.clone()
    }

    /// Bytes of a tenant's logs. Those from before the start are counted in the background.
    pub fn bytes_of(&self, tenant: &TenantId) -> u64 {
        self.inner.log.bytes_of(tenant)
    }

    /// Writes the intent before it returns. From then on, the intent survives the server's death.
    ///
    /// # Errors
    /// Any failure to record it. The call must then not be made.
    pub fn begin(&self, intent: Intent) -> Result<OpenStep, TrajectoryError> {
        self.try_begin(intent, None).inspect_err(|_| {
            self.inner.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Like [`Recorder::begin`], for a call that has its arguments as a body, recorded as received: as JSON if it is valid JSON,
    /// otherwise as text or a blob. It is not parsed into a tree, which could be many times its size.
    ///
    /// # Errors
    /// As [`Recorder::begin`].
    pub fn begin_with_body(&self, intent: Intent, body: &[u8]) -> Result<OpenStep, TrajectoryError> {
        self.try_begin(intent, Some(body)).inspect_err(|_| {
            self.inner.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn try_begin(&self, intent: Intent, body: Option<&[u8]>) -> Result<OpenStep, TrajectoryError> {
        let key = TrajectoryKey::new(&intent.tenant, &intent.trajectory)?;
        if let Some(limit) = self.inner.tenant_limit.get().and_then(|limit| limit(&intent.tenant)) {
            let used = self.bytes_of(&intent.tenant);
            if used >= limit {
                return Err(TrajectoryError::TenantFull { used, limit });
            }
        }
        let started = Instant::now();
        let (arguments, bytes_in) = match (body, &intent.arguments) {
            (Some(body), _) => {
                let mut tap = self.tap();
                tap.feed(body);
                (tap.close(), body.len() as u64)
            }
            (None, Some(value)) => self.arguments(value),
            (None, None) => (None, 0),
        };
        let has_arguments = arguments.is_some();
        let record = IntentRecord {
            v: FORMAT_VERSION,
            kind: Kind::Intent,
            step: 0,
            last: 0,
            open: None,
            failures: None,
            ended: false,
            tenant: intent.tenant.as_str().to_owned(),
            sandbox_id: intent.trajectory,
            sandbox_name: cut(intent.sandbox_name, MAX_TEXT),
            dialect: intent.dialect.to_owned(),
            action: cut(intent.action, MAX_ACTION),
            arguments,
            bytes_in,
            started_at: Timestamp::now(),
            origin: intent.origin,
            client: intent.client.map(|client| cut(client, MAX_TEXT)),
            request_id: cut(intent.request_id, MAX_TEXT),
            work: intent.work,
        };
        let step = self.inner.log.begin(&key, record)?;
        self.inner.followers.tell(&key, Change::Step(step));
        self.inner.begun.fetch_add(1, Ordering::Relaxed);
        Ok(OpenStep {
            request: self.tap(),
            response: self.tap().judging(),
            recorder: self.clone(),
            key: Some(key),
            step,
            started,
            has_arguments,
            parts: Vec::new(),
            class: None,
            state: None,
            model: None,
        })
    }

    fn tap(&self) -> Tap {
        Tap::new(
            Arc::clone(&self.inner.blobs),
            Arc::clone(&self.inner.not_kept),
            self.inner.limits.inline_bytes,
            self.inner.limits.body_bytes,
        )
    }

    fn arguments(&self, value: &Value) -> (Option<Body>, u64) {
        let raw = match to_raw_value(value) {
            Ok(raw) => raw,
            // Serializing a value that was parsed does not fail.
            Err(error) => return (Some(Body::Text(error.to_string())), 0),
        };
        let bytes = raw.get().len();
        if bytes <= self.inner.limits.inline_bytes {
            return (Some(Body::Json(raw)), bytes as u64);
        }
        let mut tap = self.tap();
        tap.feed(raw.get().as_bytes());
        (tap.close(), bytes as u64)
    }

    /// A tenant's trajectories, the most recently used first. Two small reads for each.
    pub fn list(&self, tenant: &TenantId) -> Result<Vec<Summary>, TrajectoryError> {
        self.inner.log.list(tenant)
    }

    /// Whether it has a trajectory. Looks at the disk.
    ///
    /// # Errors
    /// [`TrajectoryError::BadTrajectory`] if the id is not valid.
    pub fn has(&self, tenant: &TenantId, trajectory: &str) -> Result<bool, TrajectoryError> {
        Ok(self.inner.log.has(&TrajectoryKey::new(tenant, trajectory)?))
    }

    /// Up to `limit` (at most 1,000) steps after the given one, in order; 0 is before the first.
    pub fn steps(&self, tenant: &TenantId, trajectory: &str, after: u64, limit: usize) -> Result<Vec<Step>, TrajectoryError> {
        let key = TrajectoryKey::new(tenant, trajectory)?;
        self.inner.log.steps(&key, after, limit.min(MAX_PAGE))
    }

    /// The same for steps that pass the filter, and the step after which to continue; none: those were the last.
    pub fn filtered(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        (mut after, limit): (u64, usize),
        filter: &Filter,
    ) -> Result<(Vec<Step>, Option<u64>), TrajectoryError> {
        let limit = limit.clamp(1, MAX_PAGE);
        let mut found = Vec::new();
        loop {
            let page = self.steps(tenant, trajectory, after, limit)?;
            let is_last = page.len() < limit;
            for step in page {
                after = step.step;
                if filter.takes(&step) {
                    found.push(step);
                }
                if found.len() == limit {
                    return Ok((found, Some(after)));
                }
            }
            if is_last {
                return Ok((found, None));
            }
        }
    }

    /// Follows a trajectory from the step after the given one, but no further back than `tail` steps. The trajectory need not
    /// exist yet. Reads a little of the log.
    ///
    /// # Errors
    /// [`TrajectoryError::TooManyFollowers`] at [`Limits::followers`].
    pub fn follow(&self, tenant: &TenantId, trajectory: &str, after: u64, tail: Option<u64>) -> Result<Follow, TrajectoryError> {
        let key = TrajectoryKey::new(tenant, trajectory)?;
        let inner = &self.inner;
        Follow::begin(key, Arc::clone(&inner.log), Arc::clone(&inner.followers), inner.limits.followers, (after, tail))
    }

    /// Writes all steps as JSON lines, intent and outcome together, and returns their number. With `inline_blobs`, kept bodies
    /// replace their references: as JSON or text if they are that, otherwise in Base64.
    pub fn export(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        (inline_blobs, filter): (bool, &Filter),
        out: &mut dyn Write,
    ) -> Result<u64, TrajectoryError> {
        let failed = |e| TrajectoryError::io("write the export of", trajectory, e);
        let (mut written, mut after) = (0, 0);
        loop {
            let page = self.steps(tenant, trajectory, after, 64)?;
            let Some(last) = page.last() else {
                return Ok(written);
            };
            after = last.step;
            for mut step in page.into_iter().filter(|step| filter.takes(step)) {
                if inline_blobs {
                    self.put_in_place(&mut step.arguments)?;
                    self.put_in_place(&mut step.observation)?;
                }
                serde_json::to_writer(&mut *out, &step).map_err(|e| failed(e.into()))?;
                out.write_all(b"\n").map_err(failed)?;
                written += 1;
            }
        }
    }

    fn put_in_place(&self, body: &mut Option<Body>) -> Result<(), TrajectoryError> {
        if let Some(Body::Blob(blob)) = body
            && blob.kept
        {
            match self.read_whole(blob)? {
                Some(bytes) => *body = Some(body_of(bytes)),
                None => blob.kept = false,
            }
        }
        Ok(())
    }

    /// None if it was swept or is damaged.
    fn read_whole(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>, TrajectoryError> {
        let file = match self.inner.blobs.open(&blob.blake3) {
            Err(TrajectoryError::NoBlob { .. }) => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(blob.bytes + 1).read_to_end(&mut bytes).map_err(|e| TrajectoryError::io("read", &blob.blake3, e))?;
        Ok((blake3::hash(&bytes).to_string() == blob.blake3).then_some(bytes))
    }

    /// The bytes of a blob, by its BLAKE3 hash in hexadecimal. Reads them once to check that they are unaltered.
    ///
    /// # Errors
    /// [`TrajectoryError::DamagedBlob`] if they are altered.
    pub fn read_blob(&self, digest: &str) -> Result<File, TrajectoryError> {
        let mut file = self.inner.blobs.open(digest)?;
        let failed = |e| TrajectoryError::io("read", digest, e);
        if crate::blob::digest_of(&file).map_err(failed)? != digest {
            return Err(TrajectoryError::DamagedBlob { digest: digest.to_owned() });
        }
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    /// Checks that a trajectory refers to a body. Reads all of its log.
    ///
    /// # Errors
    /// [`TrajectoryError::NoBlob`] if it does not, also if another trajectory does.
    pub fn check_blob(&self, tenant: &TenantId, trajectory: &str, digest: &str) -> Result<(), TrajectoryError> {
        let refers = self.inner.log.refers(&TrajectoryKey::new(tenant, trajectory)?, digest)?;
        if refers { Ok(()) } else { Err(TrajectoryError::NoBlob { digest: digest.chars().take(80).collect() }) }
    }

    /// Records the start or end of a session of the trajectory's worker.
    pub fn note_session(&self, tenant: &TenantId, trajectory: &str, event: SessionEvent) -> Result<(), TrajectoryError> {
        self.inner.log.session(&TrajectoryKey::new(tenant, trajectory)?, event)
    }

    /// Starts and ends of sessions, in the order in which they were recorded.
    pub fn sessions(&self, tenant: &TenantId, trajectory: &str) -> Result<Vec<SessionEvent>, TrajectoryError> {
        self.inner.log.sessions(&TrajectoryKey::new(tenant, trajectory)?)
    }

    /// Records a decision of the network policy of the trajectory's sandbox, up to a number of them. Those beyond it, or beyond the
    /// tenant's limit, are counted.
    pub fn note_network(&self, tenant: &TenantId, trajectory: &str, event: NetworkEvent) -> Result<(), TrajectoryError> {
        let limit = self.inner.tenant_limit.get().and_then(|limit| limit(tenant));
        let keep = limit.is_none_or(|limit| self.bytes_of(tenant) < limit);
        self.inner.log.note_network(&TrajectoryKey::new(tenant, trajectory)?, event, keep)
    }

    /// Decisions of the network policy, in the order in which they were recorded.
    pub fn network(&self, tenant: &TenantId, trajectory: &str) -> Result<NetworkEvents, TrajectoryError> {
        self.inner.log.network(&TrajectoryKey::new(tenant, trajectory)?)
    }

    /// Reads all of a trajectory, log and bodies, and reports what was altered.
    pub fn verify(&self, tenant: &TenantId, trajectory: &str) -> Result<Verification, TrajectoryError> {
        let key = TrajectoryKey::new(tenant, trajectory)?;
        let mut found = Verification { trajectory: trajectory.to_owned(), ..Verification::default() };
        let mut bodies = std::collections::BTreeMap::new();
        self.inner.log.verify(&key, &mut found, &mut |step, blob| {
            bodies.entry(blob.blake3).or_insert(step);
        })?;
        for (digest, step) in bodies {
            found.blobs += 1;
            match self.read_blob(&digest) {
                Ok(_) => {}
                Err(
                    error @ (TrajectoryError::DamagedBlob { .. }
                    | TrajectoryError::NoBlob { .. }
                    | TrajectoryError::BadDigest { .. }),
                ) => {
                    found.note(None, Some(step), error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Records the end of a trajectory after its sandbox was deleted, and closes the file. Records stay.
    pub fn close_trajectory(&self, tenant: &TenantId, trajectory: &str) {
        let result = TrajectoryKey::new(tenant, trajectory).and_then(|key| {
            self.inner.log.end(&key)?;
            self.inner.followers.tell(&key, Change::End);
            if let Some(ends) = self.inner.ends.get() {
                // Without space, the next look at all logs finds it.
                let _ = ends.try_send(key);
            }
            Ok(())
        });
        if let Err(error) = result {
            tracing::error!(trajectory, %error, "the end of a trajectory could not be noted");
        }
    }

    /// Removes a trajectory's log. Other trajectories may share its blobs: [`Recorder::sweep`] removes those that none uses.
    pub fn remove(&self, tenant: &TenantId, trajectory: &str) -> Result<(), TrajectoryError> {
        self.inner.log.remove(&TrajectoryKey::new(tenant, trajectory)?, None)
    }

    /// Removes blobs older than an hour that no record refers to, and returns the bytes freed. Reads every log.
    pub fn sweep(&self) -> Result<u64, TrajectoryError> {
        self.sweep_older(SWEEP_GRACE)
    }

    fn sweep_older(&self, grace: Duration) -> Result<u64, TrajectoryError> {
        let mut wanted = HashSet::new();
        self.inner.log.digests(&mut |digest| {
            wanted.insert(digest.to_owned());
        })?;
        self.inner.blobs.sweep(&wanted, grace)
    }

    /// For metrics.
    pub fn counters(&self) -> Counters {
        let inner = &self.inner;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            steps_begun: read(&inner.begun),
            steps_finished: read(&inner.finished),
            refused: read(&inner.refused),
            outcomes_lost: read(&inner.outcomes_lost),
            bodies_not_kept: read(&inner.not_kept),
            logs_bytes: inner.log.bytes(),
            blobs_bytes: inner.blobs.bytes(),
            sync_errors: inner.log.sync_errors(),
        }
    }
}

/// A call in progress. If dropped without [`OpenStep::finish`], it is recorded as aborted.
pub struct OpenStep {
    recorder: Recorder,
    /// Taken when the outcome is written.
    key: Option<TrajectoryKey>,
    step: u64,
    started: Instant,
    has_arguments: bool,
    request: Tap,
    response: Tap,
    parts: Vec<PartOfStep>,
    class: Option<FailureClass>,
    state: Option<StepState>,
    model: Option<Box<ModelStep>>,
}

/// One of the calls of a step that stands for several.
pub struct OpenPart {
    action: String,
    request: Tap,
    response: Tap,
}

impl OpenPart {
    pub fn request_tap(&mut self) -> &mut Tap {
        &mut self.request
    }

    pub fn response_tap(&mut self) -> &mut Tap {
        &mut self.response
    }
}

impl OpenStep {
    /// Starts one of the calls of this step.
    pub fn begin_part(&self, action: String) -> OpenPart {
        let tap = || self.recorder.tap().holding(PART_INLINE);
        OpenPart { action: cut(action, MAX_ACTION), request: tap(), response: tap().judging() }
    }

    /// Whether it accepts no further calls.
    pub fn is_full(&self) -> bool {
        self.parts.len() >= MAX_PARTS
    }

    /// Ends one of its calls, and returns the call's result.
    pub fn add_part(&mut self, part: OpenPart, outcome: &Outcome) -> Option<StepResult> {
        let result = conclude(outcome.result, Some(part.response.result()), outcome.error.as_deref(), outcome.status);
        self.parts.push(PartOfStep {
            action: part.action,
            outcome: outcome.result,
            status: outcome.status,
            result: result.clone().map(shortened),
            arguments: part.request.close(),
            observation: part.response.close(),
        });
        result
    }

    /// Names the class of its failure, for a tool that knows it. It counts only if the step fails.
    pub fn set_class(&mut self, class: FailureClass) {
        self.class = Some(class);
    }

    /// Sets the state of the disk around the step. Of several calls, the step has the first state before and the last one after.
    pub fn set_state(&mut self, state: StepState) {
        let before = self.state.take();
        self.state = Some(match before {
            Some(earlier) => StepState { before: earlier.before, changed: earlier.changed || state.changed, ..state },
            None => state,
        });
    }

    /// Describes the call of a model.
    pub fn set_model(&mut self, model: ModelStep) {
        self.model = Some(Box::new(model));
    }

    /// The step's number within its trajectory, from 1.
    pub fn id(&self) -> u64 {
        self.step
    }

    /// Receives the streamed bytes of the request. Not needed for arguments that were available at the start.
    pub fn request_tap(&mut self) -> &mut Tap {
        &mut self.request
    }

    /// Receives the answer's bytes as they pass.
    pub fn response_tap(&mut self) -> &mut Tap {
        &mut self.response
    }

    /// Writes the outcome before it returns. Call it before the answer's last byte is sent on.
    pub fn finish(mut self, outcome: Outcome) -> Result<(), TrajectoryError> {
        self.conclude(outcome)
    }

    fn conclude(&mut self, outcome: Outcome) -> Result<(), TrajectoryError> {
        let Some(key) = self.key.take() else {
            return Ok(());
        };
        let inner = &self.recorder.inner;
        let request = std::mem::replace(&mut self.request, self.recorder.tap());
        let response = std::mem::replace(&mut self.response, self.recorder.tap());
        let (bytes_in, bytes_out) = (request.bytes(), response.bytes());
        let streamed = request.close();
        let result = conclude(outcome.result, Some(response.result()), outcome.error.as_deref(), outcome.status);
        let record = OutcomeRecord {
            v: FORMAT_VERSION,
            kind: Kind::Outcome,
            step: self.step,
            last: 0,
            open: None,
            failures: None,
            ended: false,
            outcome: outcome.result,
            status: outcome.status,
            class: self.class.filter(|_| matches!(result, Some(StepResult::Failed(_)))),
            result: result.map(shortened),
            error: outcome.error.map(|error| cut(error, MAX_TEXT)),
            arguments: streamed.filter(|_| !self.has_arguments),
            observation: response.close(),
            calls: std::mem::take(&mut self.parts),
            state: self.state.take(),
            model: self.model.take().map(|model| model.shortened()),
            bytes_in,
            bytes_out,
            ended_at: Some(Timestamp::now()),
            duration_ms: Some((self.started.elapsed().as_secs_f64() * 1e6).round() / 1e3),
        };
        let written = inner.log.finish(&key, record);
        inner.followers.tell(&key, Change::Step(self.step));
        let counter = match &written {
            Ok(()) => &inner.finished,
            Err(_) => &inner.outcomes_lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        written
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        let trajectory = key.trajectory().to_owned();
        let aborted = Outcome {
            status: None,
            result: OutcomeKind::Aborted,
            error: Some("the client left before the answer's end".to_owned()),
        };
        if let Err(error) = self.conclude(aborted) {
            tracing::error!(step = self.step, trajectory, %error, "the outcome of a step could not be recorded");
        }
    }
}

fn lock(dir: &Path) -> Result<File, TrajectoryError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| TrajectoryError::io("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TrajectoryError::InUse { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(TrajectoryError::io("lock", &path, error)),
    }
}

fn shortened(result: StepResult) -> StepResult {
    match result {
        StepResult::Failed(Failure::Error(error)) => StepResult::Failed(Failure::Error(cut(error, MAX_TEXT))),
        other => other,
    }
}

/// Cuts a text to `most` bytes, marked with an ellipsis.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// A kept body in an export.
fn body_of(bytes: Vec<u8>) -> Body {
    match String::from_utf8(bytes) {
        Ok(text) => crate::tap::of_text(text),
        Err(error) => Body::Base64(STANDARD.encode(error.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    fn observe(recorder: &Recorder, trajectory: &str, body: &[u8]) {
        let mut step = recorder
            .begin(Intent {
                tenant: TenantId::default_tenant(),
                trajectory: trajectory.to_owned(),
                sandbox_name: String::new(),
                dialect: "aio",
                action: "é".repeat(MAX_ACTION),
                arguments: None,
                origin: Origin::Agent,
                client: None,
                request_id: String::new(),
                work: None,
            })
            .unwrap();
        step.response_tap().feed(body);
        step.finish(Outcome { status: None, result: OutcomeKind::Ok, error: None }).unwrap();
    }

    #[test]
    fn a_tenants_limit_counts_its_own_logs_also_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let recorder = Recorder::open(dir.path().to_owned(), Limits::default()).unwrap();
            recorder.limit_tenants(|tenant| tenant.is_default().then_some(1000));
            recorder
        };
        let tenant = TenantId::default_tenant();
        let recorder = open();
        observe(&recorder, "one", b"x");
        let used = recorder.bytes_of(&tenant);
        assert!(used > 1000 && used == recorder.counters().logs_bytes);
        drop(recorder);
        let recorder = open();
        while recorder.bytes_of(&tenant) < used {
            std::thread::sleep(Duration::from_millis(5));
        }
        let intent = |tenant: &TenantId| Intent {
            tenant: tenant.clone(),
            trajectory: "two".to_owned(),
            sandbox_name: String::new(),
            dialect: "aio",
            action: String::new(),
            arguments: None,
            origin: Origin::Agent,
            client: None,
            request_id: String::new(),
            work: None,
        };
        let refused = recorder.begin(intent(&tenant)).err().unwrap();
        assert!(matches!(refused, TrajectoryError::TenantFull { limit: 1000, .. }), "{refused}");
        let other: TenantId = "other".parse().unwrap();
        drop(recorder.begin(intent(&other)).unwrap());
        assert!(recorder.bytes_of(&other) > 0 && recorder.bytes_of(&tenant) == used);
        recorder.remove(&tenant, "one").unwrap();
        assert_eq!(recorder.bytes_of(&tenant), 0);
        drop(recorder.begin(intent(&tenant)).unwrap());
    }

    #[test]
    fn a_sweep_removes_what_no_record_refers_to_and_is_old_enough() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::open(dir.path().to_owned(), Limits::default()).unwrap();
        let tenant = TenantId::default_tenant();
        observe(&recorder, "one", &[0xff; 1000]);
        observe(&recorder, "one", &[0xfe; 500]);
        observe(&recorder, "two", &[0xff; 1000]);
        assert_eq!(recorder.sweep_older(Duration::ZERO).unwrap(), 0);
        recorder.remove(&tenant, "one").unwrap();
        assert_eq!(recorder.sweep().unwrap(), 0);
        assert_eq!(recorder.sweep_older(Duration::ZERO).unwrap(), 500);
        assert_eq!(recorder.counters().blobs_bytes, 1000);
        let step = recorder.steps(&tenant, "two", 0, 1).unwrap().remove(0);
        let Some(Body::Blob(blob)) = step.observation else { panic!("not a blob") };
        assert!(recorder.read_blob(&blob.blake3).is_ok());
        assert!(step.action.len() <= MAX_ACTION + 3 && step.action.ends_with("é…"));
    }
}
