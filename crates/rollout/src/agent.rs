//! An agent's process: one per attempt, in its own directory and process group.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::capture::{self, Tail};
use crate::outcome::How;
use crate::server::Server;
use crate::task::Task;

/// Directory of the agents' directories, one per attempt.
pub(crate) const WORK: &str = "work";
/// Directory of the agents' output.
pub(crate) const LOGS: &str = "logs";
/// Maximum size of a result, in bytes.
const MAX_RESULT: u64 = 4 << 20;
/// Time to read the remaining output of an ended agent. A process that left its process group may hold the pipes open for ever.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of searches for leftovers, while some are found.
const SWEEPS: usize = 5;

/// Settings that all attempts of a run share.
#[derive(Debug)]
pub(crate) struct Workshop {
    /// The run's directory; an absolute path.
    pub(crate) dir: PathBuf,
    pub(crate) command: String,
    /// The directory that the run was started in, for agents that need files from there.
    pub(crate) start_dir: PathBuf,
    pub(crate) timeout: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// Cancelled when the run stops.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the run stops at once, without SIGTERM.
    pub(crate) at_once: CancellationToken,
}

/// The results of an ended agent.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) how: How,
    pub(crate) result: Result<Option<Value>, String>,
    pub(crate) took: Duration,
}

impl Workshop {
    /// Runs one attempt to its end.
    pub(crate) async fn run(&self, server: &Server, task: &Task, worker: &str) -> Ended {
        let began = Instant::now();
        let (how, result) = match self.prepare(task, worker) {
            Ok(place) => match self.start(server, task, worker, &place) {
                Ok(child) => self.attend(child, task, worker, &place).await,
                Err(error) => (How::NotStarted(format!("the agent could not be started: {error}")), Ok(None)),
            },
            Err(error) => (How::NotStarted(format!("the agent's directory could not be made: {error}")), Ok(None)),
        };
        Ended { how, result, took: began.elapsed() }
    }

    fn prepare(&self, task: &Task, worker: &str) -> io::Result<PathBuf> {
        let place = self.dir.join(WORK).join(worker);
        std::fs::create_dir_all(&place)?;
        std::fs::create_dir_all(self.dir.join(LOGS))?;
        std::fs::write(place.join("task.json"), task.json.get())?;
        Ok(place)
    }

    fn start(&self, server: &Server, task: &Task, worker: &str, place: &Path) -> io::Result<Child> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).current_dir(place).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("ARENITE_SERVER", server.base()).env("ARENITE_WORKER_ID", worker).env("ARENITE_TASK_ID", &task.id);
        command.env("ARENITE_TASK", place.join("task.json")).env("ARENITE_RESULT", result_of(place));
        command.env("ARENITE_START_DIR", &self.start_dir);
        match server.key() {
            Some(key) => command.env("ARENITE_API_KEY", key),
            None => command.env_remove("ARENITE_API_KEY"),
        };
        command.envs(server.ca().map(|ca| ("ARENITE_CA", ca)));
        command.spawn()
    }

    async fn attend(&self, mut child: Child, task: &Task, worker: &str, place: &Path) -> (How, Result<Option<Value>, String>) {
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        // The descriptor reports the end before the process is reaped: until then no other process can get the group's id, so
        // the group can be killed without hitting a stranger.
        let ended = group.ok_or_else(|| io::Error::other("it has no id")).and_then(|group| {
            let descriptor = pidfd_open(group, PidfdFlags::empty())?;
            #[expect(
                deprecated,
                reason = "an OwnedFd keeps its descriptor open, which is what the successor makes callers promise"
            )]
            let descriptor = AsyncFd::new(descriptor)?;
            Ok((group, descriptor))
        });
        let (group, ended) = match ended {
            Ok(both) => both,
            Err(error) => {
                drop(child.kill().await);
                return (How::NotStarted(format!("the agent could not be watched: {error}")), Ok(None));
            }
        };
        let logs = self.dir.join(LOGS);
        let stdout = child.stdout.take().map(|pipe| {
            let path = logs.join(format!("{worker}.stdout"));
            tokio::spawn(async move { capture::keep(pipe, &path).await })
        });
        let stderr = child.stderr.take().map(|pipe| {
            let path = logs.join(format!("{worker}.stderr"));
            tokio::spawn(async move { capture::keep(pipe, &path).await })
        });
        let feeder = child.stdin.take().map(|mut pipe| {
            let line = format!("{}\n", task.json.get());
            // Agents may leave it unread.
            tokio::spawn(async move { drop(pipe.write_all(line.as_bytes()).await) })
        });
        let cut_short = tokio::select! {
            _ = ended.readable() => None,
            () = tokio::time::sleep(self.timeout) => Some(How::TimedOut),
            () = self.stop.cancelled() => Some(How::Stopped),
        };
        if cut_short.is_some() {
            // It may just have ended.
            let _ = kill_process_group(group, Signal::TERM);
            tokio::select! {
                _ = ended.readable() => {}
                () = tokio::time::sleep(self.grace) => {}
                () = self.at_once.cancelled() => {}
            }
        }
        // Also kills what an agent that ended well has left in the background.
        let _ = kill_process_group(group, Signal::KILL);
        let status = child.wait().await;
        if cut_short.is_some() {
            // Processes that left the group are found by their environment.
            end_leftovers(&[result_of(place)]);
        }
        if let Some(feeder) = feeder {
            feeder.abort();
        }
        let tail = drained(stdout).await;
        drop(drained(stderr).await);
        let how = cut_short.unwrap_or_else(|| how_of(status));
        (how, result(place, &tail).await)
    }
}

/// The path where an agent may write its result.
pub(crate) fn result_of(place: &Path) -> PathBuf {
    place.join("result.json")
}

fn how_of(status: io::Result<ExitStatus>) -> How {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => How::Exit(code),
            (None, Some(signal)) => How::Signal(signal),
            (None, None) => How::NotStarted("the agent's end is not known".into()),
        },
        Err(error) => How::NotStarted(format!("the agent's end is not known: {error}")),
    }
}

async fn drained(reader: Option<tokio::task::JoinHandle<Tail>>) -> Tail {
    let Some(mut reader) = reader else { return Tail::default() };
    match timeout(DRAIN_LIMIT, &mut reader).await {
        Ok(tail) => tail.unwrap_or_default(),
        Err(_) => {
            reader.abort();
            Tail::default()
        }
    }
}

/// The agent's result: its file, else the last line of its output if that is JSON, else the end of its output.
async fn result(place: &Path, tail: &Tail) -> Result<Option<Value>, String> {
    let path = result_of(place);
    match tokio::fs::metadata(&path).await {
        Ok(found) if found.len() > MAX_RESULT => {
            return Err(format!("the agent's result has {} bytes, and {MAX_RESULT} are read at most", found.len()));
        }
        Ok(found) if !found.is_file() => return Err("the agent's result is not a file".to_owned()),
        // An empty file was only opened.
        Ok(found) if found.len() > 0 => {
            let bytes = tokio::fs::read(&path).await.map_err(|error| format!("the agent's result could not be read: {error}"))?;
            let value = serde_json::from_slice(&bytes).map_err(|error| format!("the agent's result is not JSON: {error}"))?;
            return Ok(Some(value));
        }
        _ => {}
    }
    let text = tail.text();
    if text.is_empty() {
        return Ok(None);
    }
    let last = text.lines().next_back().and_then(|line| serde_json::from_str(line.trim()).ok());
    Ok(Some(last.unwrap_or_else(|| json!({ "output": text }))))
}

/// Ends leftover processes of attempts: those that left the agent's process group, and those that outlived a runner. Their
/// environment names the attempt's result, which no other process has.
pub(crate) fn end_leftovers(results: &[PathBuf]) {
    let marks: HashSet<Vec<u8>> = results.iter().map(|path| [b"ARENITE_RESULT=", path.as_os_str().as_bytes()].concat()).collect();
    // Ended processes may have had children in the meantime.
    for _ in 0..SWEEPS {
        if sweep(&marks) == 0 {
            return;
        }
    }
}

fn sweep(marks: &HashSet<Vec<u8>>) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let own = std::process::id();
    let mut ended = 0;
    for process in processes.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Some(pid) = Pid::from_raw(id).filter(|_| id.cast_unsigned() != own) else { continue };
        // Opened before the check, so that this process gets the signal and not another with its pid.
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let Ok(environment) = std::fs::read(process.path().join("environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|variable| marks.contains(variable)) {
            ended += usize::from(pidfd_send_signal(&held, Signal::KILL).is_ok());
        }
    }
    ended
}
