//! The files of a finished run, in the order of the tasks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::error::RolloutError;
use crate::journal::{History, Results};
use crate::outcome::Status;
use crate::progress::Observer;
use crate::runner::Formats;
use crate::table::Table;
use crate::task::Task;
use crate::trajectory::{self, Record, RecordError};

pub(crate) const RESULTS: &str = "results.jsonl";
pub(crate) const TABLE: &str = "results.parquet";
pub(crate) const TRAJECTORIES: &str = "trajectories.jsonl";
pub(crate) const SUMMARY: &str = "summary.json";
pub(crate) const OUTPUTS: [&str; 4] = [RESULTS, TABLE, TRAJECTORIES, SUMMARY];
/// Directory of the server's records of workers, one file each: the server may forget them, and the result files can be
/// recreated.
pub(crate) const RECORDS: &str = "records";
/// Number of concurrent requests for records.
const ASKED: usize = 8;
/// Number of failures in a row after which requests stop: each may take a minute.
const MOST_FAILURES: usize = 5;

/// The outcome of a task.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) task_id: String,
    pub(crate) task: Box<RawValue>,
    pub(crate) status: Status,
    pub(crate) success: bool,
    pub(crate) result: Option<Value>,
    /// Attempts that ended by themselves.
    pub(crate) attempts: u32,
    pub(crate) error_kind: Option<String>,
    pub(crate) error_message: Option<String>,
    /// The worker of the deciding attempt.
    pub(crate) worker_id: String,
    /// The workers of all attempts, including interrupted and lost ones.
    pub(crate) worker_ids: Vec<String>,
    /// The start of the first attempt.
    pub(crate) started_at: Timestamp,
    /// The end of the deciding attempt.
    pub(crate) ended_at: Timestamp,
    /// Of the deciding attempt.
    pub(crate) duration_ms: u64,
    pub(crate) exit_code: Option<i32>,
}

/// Totals of all rows.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) by_status: BTreeMap<Status, usize>,
    pub(crate) durations: Vec<u64>,
    pub(crate) attempts: usize,
    pub(crate) lost: usize,
    pub(crate) with_steps: usize,
}

/// Fetches the server's records of workers, and stores them.
pub(crate) struct Records {
    dir: PathBuf,
    record: Arc<dyn Record>,
    /// The server has no such routes; reported once, and not requested again.
    is_unknown: AtomicBool,
    /// Failures since the last success.
    failures: AtomicUsize,
}

impl Records {
    pub(crate) fn new(dir: &Path, record: Arc<dyn Record>) -> Self {
        Self { dir: dir.join(RECORDS), record, is_unknown: AtomicBool::new(false), failures: AtomicUsize::new(0) }
    }

    fn path(&self, worker: &str) -> PathBuf {
        self.dir.join(format!("{worker}.json"))
    }

    pub(crate) fn has(&self, worker: &str) -> bool {
        self.path(worker).exists()
    }

    /// Fetches one record. Results are complete without it, so a missing record is reported and is not an error.
    pub(crate) async fn fetch(&self, worker: &str, observer: &dyn Observer) {
        if self.is_unknown.load(Ordering::Relaxed) || self.failures.load(Ordering::Relaxed) >= MOST_FAILURES {
            return;
        }
        match self.record.trajectory_of(worker).await {
            Ok(found) => {
                self.failures.store(0, Ordering::Relaxed);
                let text = found.unwrap_or(Value::Null).to_string();
                let kept = std::fs::create_dir_all(&self.dir).and_then(|()| replace(&self.path(worker), text.as_bytes()));
                if let Err(error) = kept {
                    observer.note(&format!("the record of {worker} could not be kept: {error}"));
                }
            }
            Err(RecordError::Unknown) => {
                if !self.is_unknown.swap(true, Ordering::Relaxed) {
                    observer.note("the server has no records of workers, so trajectories are without their steps");
                }
            }
            Err(error @ RecordError::Failed { .. }) => match self.failures.fetch_add(1, Ordering::Relaxed) + 1 {
                MOST_FAILURES => observer.note(&format!("{error}; no more of them are asked for now")),
                failures if failures < MOST_FAILURES => observer.note(&error.to_string()),
                _ => {}
            },
        }
    }

    fn read(&self, worker: &str) -> Option<Value> {
        let value = serde_json::from_slice(&std::fs::read(self.path(worker)).ok()?).ok()?;
        Some(value).filter(|value: &Value| !value.is_null())
    }
}

/// Fetches the records that are still missing.
pub(crate) async fn complete_records(records: &Arc<Records>, history: &History, tasks: usize, observer: &Arc<dyn Observer>) {
    let missing =
        (0..tasks).filter_map(|task| Some(history.decided(task)?.0.worker_id.clone())).filter(|worker| !records.has(worker));
    // Requests that failed during the run may succeed now.
    records.failures.store(0, Ordering::Relaxed);
    let permits = Arc::new(Semaphore::new(ASKED));
    let mut fetches = JoinSet::new();
    for worker in missing {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let (records, observer) = (Arc::clone(records), Arc::clone(observer));
        fetches.spawn(async move {
            records.fetch(&worker, &*observer).await;
            drop(permit);
        });
        while fetches.try_join_next().is_some() {}
    }
    while fetches.join_next().await.is_some() {}
}

/// Writes the result files.
pub(crate) fn write(
    dir: &Path,
    tasks: &[Arc<Task>],
    history: &History,
    formats: Formats,
    records: &Records,
) -> Result<Totals, RolloutError> {
    let mut results = Results::open(dir)?;
    let mut lines = match formats.jsonl {
        true => Some(Lines::create(dir, RESULTS)?),
        false => None,
    };
    let table_path = dir.join(partial(TABLE));
    let mut table = match formats.parquet {
        true => Some(Table::create(&table_path)?),
        false => None,
    };
    let mut trajectories = Lines::create(dir, TRAJECTORIES)?;
    let mut totals = Totals::default();
    for (number, task) in tasks.iter().enumerate() {
        let Some((deciding, end)) = history.decided(number) else { continue };
        let attempts = history.tasks.get(&number).map(Vec::as_slice).unwrap_or_default();
        let is_unfinished = |status| matches!(status, Status::Interrupted | Status::Lost);
        let unfinished = attempts.iter().filter(|a| a.end.as_ref().is_none_or(|end| is_unfinished(end.status))).count();
        let ended = attempts.len() - unfinished;
        let row = Row {
            task_id: task.id.clone(),
            task: task.json.clone(),
            status: end.status,
            success: end.status == Status::Success,
            result: results.read(deciding)?,
            attempts: u32::try_from(ended).unwrap_or(u32::MAX),
            error_kind: end.error.as_ref().map(|error| error.kind.clone()),
            error_message: end.error.as_ref().map(|error| error.message.clone()),
            worker_id: deciding.worker_id.clone(),
            worker_ids: attempts.iter().map(|attempt| attempt.worker_id.clone()).collect(),
            started_at: attempts.first().map_or(deciding.started_at, |first| first.started_at),
            ended_at: end.at,
            duration_ms: end.duration_ms,
            exit_code: end.exit_code,
        };
        *totals.by_status.entry(row.status).or_default() += 1;
        totals.attempts += ended;
        totals.lost += unfinished;
        if row.status != Status::Infrastructure {
            totals.durations.push(row.duration_ms);
        }
        let recorded = records.read(&row.worker_id);
        let has_steps = recorded.as_ref().and_then(|r| r.get("tool_calls")?.as_array()).is_some_and(|calls| !calls.is_empty());
        totals.with_steps += usize::from(has_steps);
        let line = trajectory::line(&outcome(task, &row, deciding.started_at), recorded.as_ref());
        trajectories.add(&line)?;
        if let Some(lines) = &mut lines {
            lines.add(&row)?;
        }
        if let Some(table) = &mut table {
            let trajectory = line.get("trajectory").map(ToString::to_string).unwrap_or_default();
            table.add(row, trajectory)?;
        }
    }
    trajectories.finish()?;
    if let Some(lines) = lines {
        lines.finish()?;
    }
    if let Some(table) = table {
        table.finish()?;
        let path = dir.join(TABLE);
        std::fs::rename(&table_path, &path).map_err(RolloutError::io("write", &path))?;
    }
    totals.durations.sort_unstable();
    Ok(totals)
}

fn outcome<'a>(task: &'a Task, row: &'a Row, started_at: Timestamp) -> trajectory::Outcome<'a> {
    trajectory::Outcome {
        task_id: &task.id,
        question: task.question(),
        success: row.success,
        error: row.error_message.as_deref(),
        result: row.result.as_ref(),
        start_time: started_at.to_string(),
        end_time: row.ended_at.to_string(),
        execution_time_ms: row.duration_ms,
    }
}

/// The name of a file while it is written.
fn partial(name: &str) -> String {
    format!(".{name}.partial")
}

/// A file of lines that gets its name when it is complete.
struct Lines {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
}

impl Lines {
    fn create(dir: &Path, name: &str) -> Result<Self, RolloutError> {
        let partial = dir.join(partial(name));
        let file = File::create(&partial).map_err(RolloutError::io("create", &partial))?;
        Ok(Self { file: BufWriter::new(file), partial, path: dir.join(name) })
    }

    fn add(&mut self, line: &impl Serialize) -> Result<(), RolloutError> {
        let written = serde_json::to_writer(&mut self.file, line).map_err(io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(RolloutError::io("write", &self.partial))
    }

    fn finish(self) -> Result<(), RolloutError> {
        let file = self.file.into_inner().map_err(|error| RolloutError::io("write", &self.partial)(error.into_error()))?;
        let renamed = file.sync_all().and_then(|()| std::fs::rename(&self.partial, &self.path));
        renamed.map_err(RolloutError::io("write", &self.path))
    }
}

/// Writes a small file atomically.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(partial(&name));
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&partial, path)
}
