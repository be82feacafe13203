//! Observation, in plain Rust.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arenite_isolation::counters::Counters;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use thiserror::Error;

use super::reports;
use super::sample::{self, Wanted};
use super::session::Session;
use super::types::*;
use crate::main_command::LOG_DIR;
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// The most reports. The oldest are deleted first.
const MAX_REPORTS: usize = 32;
/// The most processes of a sample, and of `live`.
const MAX_ROWS: usize = 100;
const ROWS: usize = 20;
/// The default time between samples, in seconds.
const CAPTURE_INTERVAL: f64 = 1.0;
const GUARDRAIL_INTERVAL: f64 = 5.0;
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
/// The default duration of a capture, in seconds. A guardrail runs until it is stopped.
const CAPTURE_SECONDS: i64 = 600;
const LONGEST_SECONDS: i64 = 7 * 24 * 3600;
/// How long `live` measures the CPU.
const GLANCE: Duration = Duration::from_millis(100);
/// The longest reason of a report, in characters.
const MAX_REASON: usize = 256;

#[derive(Debug, Error)]
pub(super) enum ObserveError {
    #[error("observation {0} is running: stop it first")]
    Running(String),
    #[error("no observation is running")]
    NotRunning,
    #[error("there is no observation {0:?}")]
    NoSession(String),
    #[error("there is no report {0:?}")]
    NoReport(String),
    #[error("{0}")]
    Invalid(String),
    #[error("the observation could not be written: {0}")]
    Io(#[from] io::Error),
    #[error("could not look at the sandbox: {0}")]
    Look(Failure),
}

#[derive(Debug, Default)]
struct State {
    active: Option<Arc<Session>>,
    /// The previous session, which can still be exported.
    last: Option<Arc<Session>>,
    /// Reports, with the key of the call that created each.
    reports: VecDeque<(Option<String>, ObservationReportInfo)>,
}

/// The service's state.
#[derive(Debug)]
pub struct Observer {
    pub(super) runtime: Arc<Runtime>,
    counters: Counters,
    state: Mutex<State>,
}

fn dir() -> PathBuf {
    Path::new(LOG_DIR).join("observe")
}

fn id(prefix: &str) -> Result<String, ObserveError> {
    Ok(format!("{prefix}-{:016x}", getrandom::u64().map_err(io::Error::other)?))
}

fn disks(observer: &Arc<Observer>) -> Vec<PathBuf> {
    vec!["/".into(), observer.runtime.default_dir(), "/tmp".into(), "/dev/shm".into()]
}

impl Observer {
    pub fn new(runtime: Arc<Runtime>, counters: Counters) -> Self {
        Self { runtime, counters, state: Mutex::default() }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> ObservationStatus {
        let state = self.lock();
        let start = state.active.as_ref().map(|session| &session.start);
        ObservationStatus {
            mode: start.map_or(ObservationMode::Off, |s| s.mode),
            running: start.is_some(),
            session_id: start.map(|s| s.session_id.clone()),
            started_at: start.map(|s| s.started_at),
            ends_at: start.and_then(|s| s.ends_at),
            interval_seconds: start.map(|s| s.interval_seconds),
            last_sample_at: state.active.as_ref().and_then(|session| session.last_sample_at()),
            runtime_dir: start.map(|s| s.runtime_dir.clone()),
            report_count: state.reports.len(),
        }
    }

    /// Ends a session after its time. A capture leaves a report.
    pub(super) async fn over(self: &Arc<Self>, session: &Arc<Session>) {
        {
            let mut state = self.lock();
            if !state.active.as_ref().is_some_and(|active| Arc::ptr_eq(active, session)) {
                return;
            }
            state.last = state.active.take();
        }
        session.event("stopped", "its time was over", json!({}));
        if let Err(error) = finish(self, session, "completed").await {
            tracing::warn!(%error, "an observation has no report");
        }
    }
}

/// Writes the report of a capture that has ended.
async fn finish(observer: &Arc<Observer>, session: &Arc<Session>, reason: &str) -> Result<bool, ObserveError> {
    if session.start.mode != ObservationMode::Capture {
        return Ok(false);
    }
    write(observer, Some(session.clone()), None, reason.to_owned()).await?;
    Ok(true)
}

async fn write(
    observer: &Arc<Observer>,
    session: Option<Arc<Session>>,
    key: Option<String>,
    reason: String,
) -> Result<ObservationReportInfo, ObserveError> {
    let head = serde_json::to_value(live(observer, ROWS as i64).await?).unwrap_or_default();
    let session_id = session.as_ref().map(|s| s.start.session_id.clone());
    let samples = session.as_ref().map(|s| s.samples());
    let head: Value = json!({ "samples": samples, "at_export": head });
    let report_id = id("r")?;
    let made = tokio::task::spawn_blocking(move || {
        let body = session.as_ref().map(|s| s.file.as_path());
        reports::write(&dir().join("reports"), report_id, session_id, reason, &head, body)
    });
    let info = made.await.map_err(io::Error::other)??;
    let mut state = observer.lock();
    state.reports.push_back((key, info.clone()));
    while state.reports.len() > MAX_REPORTS {
        if let Some((_, oldest)) = state.reports.pop_front() {
            drop(std::fs::remove_file(oldest.path));
        }
    }
    Ok(info)
}

/// The sandbox's current resource usage.
pub(super) async fn live(observer: &Arc<Observer>, top_rows: i64) -> Result<ObservationLiveSnapshot, ObserveError> {
    let rows = usize::try_from(top_rows).unwrap_or(0).min(MAX_ROWS);
    let wanted = Wanted { processes: rows, disks: disks(observer) };
    let shared = observer.clone();
    let look = move |_: &_| {
        // Two samples, since rates are differences.
        let (_, earlier) = sample::take(&shared.counters, &Wanted { disks: Vec::new(), ..wanted.clone() }, None);
        std::thread::sleep(GLANCE);
        Ok(sample::take(&shared.counters, &wanted, Some(&earlier)).0)
    };
    let sample =
        observer.runtime.workers.run(Kind::Brief, &observer.runtime.root_user, look).await.map_err(ObserveError::Look)?;
    let state = observer.lock();
    let session = state.active.as_ref().or(state.last.as_ref());
    Ok(ObservationLiveSnapshot {
        captured_at: sample.ts,
        mode: state.active.as_ref().map_or(ObservationMode::Off, |active| active.start.mode),
        cgroup: sample.cgroup,
        disk: sample.disk,
        top_processes: sample.processes,
        recent_events: session.map_or_else(Vec::new, |session| session.events()),
    })
}

/// Starts an observation. A call with the same key gets the same answer.
pub(super) fn start(observer: &Arc<Observer>, request: ObserveStartRequest) -> Result<ObservationStartResult, ObserveError> {
    let ObserveStartRequest { mode, idempotency_key, duration_seconds, interval_seconds, include_processes, include_disk } =
        request;
    let mode = ObservationMode::from(mode);
    let capture = mode == ObservationMode::Capture;
    let interval = interval_seconds.unwrap_or(if capture { CAPTURE_INTERVAL } else { GUARDRAIL_INTERVAL });
    if !INTERVALS.contains(&interval) {
        let (least, most) = (INTERVALS.start(), INTERVALS.end());
        return Err(ObserveError::Invalid(format!("interval_seconds is {interval}; it may be {least} to {most}")));
    }
    let duration = duration_seconds.or(capture.then_some(CAPTURE_SECONDS));
    if let Some(wrong) = duration.filter(|d| !(1..=LONGEST_SECONDS).contains(d)) {
        return Err(ObserveError::Invalid(format!("duration_seconds is {wrong}; it may be 1 to {LONGEST_SECONDS}")));
    }
    let mut state = observer.lock();
    let known = [&state.active, &state.last].into_iter().flatten().find(|s| s.key.is_some() && s.key == idempotency_key);
    if let Some(known) = known {
        return Ok(known.start.clone());
    }
    if let Some(active) = &state.active {
        return Err(ObserveError::Running(active.start.session_id.clone()));
    }
    let started_at = Timestamp::now();
    let start = ObservationStartResult {
        session_id: id("o")?,
        mode,
        started_at,
        ends_at: duration.map(|seconds| started_at + SignedDuration::from_secs(seconds)),
        interval_seconds: interval,
        runtime_dir: dir().display().to_string(),
    };
    let session = Arc::new(Session::begin(start.clone(), idempotency_key, &dir())?);
    if let Some(before) = state.last.take() {
        // Its reports stay. The samples behind them are not needed any more.
        drop(std::fs::remove_file(&before.file));
    }
    state.active = Some(session.clone());
    let processes = if include_processes.unwrap_or(capture) { ROWS } else { 0 };
    let disks = if include_disk { disks(observer) } else { Vec::new() };
    tokio::spawn(session.run(observer.clone(), Wanted { processes, disks }));
    Ok(start)
}

/// Ends an observation. It is no error if it has ended already.
pub(super) async fn stop(observer: &Arc<Observer>, wanted: Option<String>) -> Result<ObservationStopResult, ObserveError> {
    let session = {
        let mut state = observer.lock();
        let active = state.active.as_ref().map(|s| s.start.session_id.clone());
        match (wanted, active) {
            (None, None) => return Err(ObserveError::NotRunning),
            (Some(wanted), active) if active.as_ref() != Some(&wanted) => {
                let ended = state.last.as_ref().is_some_and(|last| last.start.session_id == wanted);
                if !ended {
                    return Err(ObserveError::NoSession(wanted));
                }
                let report_ready = state.reports.iter().any(|(_, report)| report.session_id.as_ref() == Some(&wanted));
                return Ok(ObservationStopResult { session_id: wanted, stopped: false, report_ready });
            }
            _ => {}
        }
        state.last = state.active.take();
        state.last.clone().ok_or(ObserveError::NotRunning)?
    };
    session.stop.cancel();
    session.event("stopped", "it was stopped", json!({}));
    let report_ready = finish(observer, &session, "stopped").await?;
    Ok(ObservationStopResult { session_id: session.start.session_id.clone(), stopped: true, report_ready })
}

/// Writes a report of an observation: the named one, else the last one; without any, of this moment.
pub(super) async fn export(
    observer: &Arc<Observer>,
    request: ObserveExportRequest,
) -> Result<ObservationReportInfo, ObserveError> {
    let ObserveExportRequest { idempotency_key, session_id, reason } = request;
    if reason.chars().count() > MAX_REASON {
        return Err(ObserveError::Invalid(format!("reason may have {MAX_REASON} characters")));
    }
    let session = {
        let state = observer.lock();
        let known = state.reports.iter().find(|(key, _)| key.is_some() && *key == idempotency_key);
        if let Some((_, known)) = known {
            return Ok(known.clone());
        }
        let mut sessions = [&state.active, &state.last].into_iter().flatten();
        match session_id {
            None => sessions.next().cloned(),
            Some(id) => {
                let found = sessions.find(|session| session.start.session_id == id).cloned();
                Some(found.ok_or(ObserveError::NoSession(id))?)
            }
        }
    };
    write(observer, session, idempotency_key, reason).await
}

pub(super) fn list(observer: &Arc<Observer>) -> Vec<ObservationReportInfo> {
    observer.lock().reports.iter().map(|(_, info)| info.clone()).collect()
}

pub(super) fn report(observer: &Arc<Observer>, id: &str) -> Result<ObservationReportInfo, ObserveError> {
    let state = observer.lock();
    let found = state.reports.iter().find(|(_, info)| info.report_id == id);
    found.map(|(_, info)| info.clone()).ok_or_else(|| ObserveError::NoReport(id.to_owned()))
}

pub(super) fn delete(observer: &Arc<Observer>, id: &str) -> Result<ObservationReportInfo, ObserveError> {
    let mut state = observer.lock();
    let at = state.reports.iter().position(|(_, info)| info.report_id == id);
    let (_, info) = at.and_then(|at| state.reports.remove(at)).ok_or_else(|| ObserveError::NoReport(id.to_owned()))?;
    drop(std::fs::remove_file(&info.path));
    Ok(info)
}
