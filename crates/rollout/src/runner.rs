//! A run from its start to its result files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::agent::Workshop;
use crate::error::RolloutError;
use crate::journal::{self, History, Journal};
use crate::progress::Observer;
use crate::recovery;
use crate::results::{self, Records};
use crate::scheduler::Scheduler;
use crate::server::{Absence, Presence, Server};
use crate::summary::Summary;
use crate::task::{Task, Tasks};
use crate::trajectory::ServerRecord;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file of tasks.
    pub tasks: PathBuf,
    /// The agent: a command line for `sh`.
    pub agent: String,
    /// The run's directory.
    pub out: PathBuf,
    pub server: String,
    pub api_key: Option<String>,
    /// PEM file of the certificate authorities to trust for an https URL, instead of this host's.
    pub ca: Option<PathBuf>,
    /// Maximum number of concurrent agents.
    pub workers: usize,
    /// Number of agents at the start.
    pub first_workers: usize,
    /// Whether the number of agents adapts to the infrastructure.
    pub ramp: bool,
    /// Maximum number of attempts at a task that the infrastructure fails.
    pub attempts: u32,
    /// Retries of a task that the agent failed.
    pub agent_retries: u32,
    /// Maximum time of an attempt.
    pub timeout: Duration,
    /// Time between SIGTERM and SIGKILL of an agent.
    pub grace: Duration,
    /// Time before a second attempt; doubled before each further one.
    pub backoff: Duration,
    /// Time to wait for a server that is away.
    pub patience: Duration,
    /// Runs only this number of tasks, from the first.
    pub limit: Option<usize>,
    /// Discard what is in the directory.
    pub fresh: bool,
    pub formats: Formats,
}

/// The formats of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    pub jsonl: bool,
    pub parquet: bool,
}

impl Options {
    /// Options with the command line's defaults.
    pub fn new(tasks: impl Into<PathBuf>, agent: impl Into<String>, out: impl Into<PathBuf>, server: impl Into<String>) -> Self {
        Self {
            tasks: tasks.into(),
            agent: agent.into(),
            out: out.into(),
            server: server.into(),
            api_key: None,
            ca: None,
            workers: 4,
            first_workers: 4,
            ramp: true,
            attempts: 3,
            agent_retries: 0,
            timeout: Duration::from_secs(600),
            grace: Duration::from_secs(5),
            backoff: Duration::from_secs(1),
            patience: Duration::from_secs(120),
            limit: None,
            fresh: false,
            formats: Formats { jsonl: true, parquet: true },
        }
    }
}

/// How a person stops a run.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// No more agents start, and running ones are asked to end.
    pub gently: CancellationToken,
    /// Agents are killed, without waiting.
    pub at_once: CancellationToken,
}

/// Runs the agent over the tasks, or over those that an earlier runner left, and writes the result files.
pub async fn run(options: Options, stop: Stop, observer: Arc<dyn Observer>) -> Result<Summary, RolloutError> {
    let Tasks { mut tasks, digest } = Tasks::read(&options.tasks)?;
    tasks.truncate(options.limit.unwrap_or(usize::MAX));
    let tasks: Arc<[Arc<Task>]> = tasks.into_iter().map(Arc::new).collect();
    let server = Arc::new(Server::new(&options.server, options.api_key.as_deref(), options.ca.as_deref())?);
    // Held to the end: the result files too belong to this process alone.
    let _lock = journal::lock(&options.out).await?;
    let dir = std::path::absolute(&options.out).map_err(RolloutError::io("find", &options.out))?;
    if options.fresh {
        until(&stop, start_over(&dir, &server)).await??;
    }
    let (journal, mut history) = journal::open(&dir, &digest, &options.agent)?;
    let records = Arc::new(Records::new(&dir, Arc::new(ServerRecord::new(Arc::clone(&server)))));
    let orphans = recovery::end_orphans(&dir, &history);
    if orphans > 0 {
        observer.note(&format!("{orphans} attempts were under way when the last runner ended; their tasks are run again"));
    }
    let waiting = Scheduler::unfinished(&history, tasks.len());
    let is_told = history.tasks.values().flatten().all(|attempt| attempt.end.as_ref().is_some_and(|end| end.disconnected));
    // A finished run needs no server to rewrite its files.
    if !waiting.is_empty() || !is_told {
        let (presence, absence, observing) = server.observe();
        let watched = (presence, absence);
        let outcome =
            work(&options, &stop, &observer, &tasks, waiting, &server, watched, journal, &mut history, &records, &dir).await;
        observing.abort();
        outcome?;
    }
    let Some((history, _)) = journal::read(&dir)? else { return Err(RolloutError::Interrupted) };
    until(&stop, results::complete_records(&records, &history, tasks.len(), &observer)).await?;
    let totals = results::write(&dir, &tasks, &history, options.formats, &records)?;
    let summary = Summary::new(&history, &options.agent, totals, files(options.formats));
    summary.write(&dir)?;
    Ok(summary)
}

/// Waits for a future until a person stops the run.
async fn until<T>(stop: &Stop, what: impl Future<Output = T>) -> Result<T, RolloutError> {
    stop.gently.run_until_cancelled(what).await.ok_or(RolloutError::Interrupted)
}

fn files(formats: Formats) -> Vec<String> {
    let mut files = vec![results::TRAJECTORIES.to_owned(), results::SUMMARY.to_owned()];
    if formats.parquet {
        files.insert(0, results::TABLE.to_owned());
    }
    if formats.jsonl {
        files.insert(0, results::RESULTS.to_owned());
    }
    files
}

/// Removes an earlier run, and what it left elsewhere.
async fn start_over(dir: &Path, server: &Arc<Server>) -> Result<(), RolloutError> {
    // An unreadable journal is removed too.
    if let Ok(Some((mut history, _))) = journal::read(dir) {
        recovery::end_orphans(dir, &history);
        recovery::disconnect_all(server, &mut history, None).await?;
    }
    journal::clear(dir)
}

#[allow(clippy::too_many_arguments, reason = "it is the middle of `run`, and has what that has")]
async fn work(
    options: &Options,
    stop: &Stop,
    observer: &Arc<dyn Observer>,
    tasks: &Arc<[Arc<Task>]>,
    waiting: Vec<usize>,
    server: &Arc<Server>,
    (mut presence, absence): (watch::Receiver<Presence>, Absence),
    journal: Journal,
    history: &mut History,
    records: &Arc<Records>,
    dir: &Path,
) -> Result<(), RolloutError> {
    arrival(&mut presence, options, stop, observer).await?;
    make_room(options.workers);
    until(stop, server.check_key()).await??;
    let journal = Arc::new(journal);
    until(stop, recovery::disconnect_all(server, history, Some(&journal))).await??;
    let workshop = Workshop {
        dir: dir.to_owned(),
        command: options.agent.clone(),
        start_dir: std::env::current_dir().map_err(RolloutError::io("find", Path::new(".")))?,
        timeout: options.timeout,
        grace: options.grace,
        stop: stop.gently.child_token(),
        at_once: stop.at_once.clone(),
    };
    let scheduler =
        Scheduler::new(options, workshop, tasks, waiting, history, server, (presence, absence), &journal, observer, records);
    scheduler.work().await?;
    // Workers that could not be reported to the server then: it may be back.
    let Some((mut history, _)) = journal::read(dir)? else { return Ok(()) };
    until(stop, recovery::disconnect_all(server, &mut history, Some(&journal))).await?
}

/// Raises the limit of open files for the agents: three pipes, two logs and a handle each.
fn make_room(workers: usize) {
    let limits = getrlimit(Resource::Nofile);
    let wanted = (workers as u64).saturating_mul(8).saturating_add(128);
    if limits.current.is_some_and(|current| current < wanted) {
        let current = limits.maximum.map_or(wanted, |most| most.min(wanted));
        // Without the raised limit, agents that can't be started count as infrastructure failures, and fewer run.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limits.maximum });
    }
}

/// Waits until the server is reachable.
async fn arrival(
    presence: &mut watch::Receiver<Presence>,
    options: &Options,
    stop: &Stop,
    observer: &Arc<dyn Observer>,
) -> Result<(), RolloutError> {
    // Even without patience, it has time for one answer. No message if the first check succeeds.
    let told = Instant::now() + Duration::from_secs(1);
    let deadline = told.max(Instant::now() + options.patience);
    let mut is_told = false;
    loop {
        if presence.borrow_and_update().is_there {
            return Ok(());
        }
        tokio::select! {
            changed = presence.changed() => {
                if changed.is_err() {
                    return Err(RolloutError::Interrupted);
                }
            }
            () = sleep_until(told), if !is_told && told < deadline => {
                is_told = true;
                observer.note(&format!("no server answers at {}; waiting for it up to {} s", options.server, options.patience.as_secs()));
            }
            () = sleep_until(deadline) => {
                return Err(RolloutError::ServerGone { server: options.server.clone(), waited: options.patience });
            }
            () = stop.gently.cancelled() => return Err(RolloutError::Interrupted),
        }
    }
}
