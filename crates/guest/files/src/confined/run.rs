//! The guest's side: starts the process, writes its input, reads its answer, and ends it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, kill_process};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::job::{Fault, Job, JobOutput};
use super::{ARGUMENT, JOB, MAX_ANSWER_BYTES};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Command, Exit, Signal};

/// The most confined processes at once. Further calls wait in order.
const MAX_RUNNING: usize = 2;
/// Variables of the sandbox's environment that the process gets: proxies and trusted certificates.
const VARIABLES: [&str; 9] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"];

/// Starts confined processes, and bounds their number.
#[derive(Debug)]
pub struct Confined {
    runtime: Arc<Runtime>,
    places: Semaphore,
}

/// What a job reads from descriptor 0.
#[derive(Debug)]
pub enum Input {
    Nothing,
    File(File),
    Text(String),
}

/// Why a job has no answer.
#[derive(Debug, Error)]
pub enum ConfinedError {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("it took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("its reader {}", describe(*.0))]
    Crashed(Exit),
    #[error("its reader could not be started: {0}")]
    Spawn(#[from] SpawnError),
    #[error("its reader could not be started: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for ConfinedError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl ConfinedError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Fault(fault) => fault.hint(),
            Self::Crashed(_) | Self::TimedOut(_) => Some(
                "it may be broken or too large: read a part of it with a program of your own, such as one in Python".to_owned(),
            ),
            Self::Spawn(_) | Self::Io(_) => None,
        }
    }
}

fn describe(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("ended with code {code} and no answer"),
        // A refused allocation aborts, a stack overflow faults, and the kernel's OOM killer kills.
        Exit::Signal(signal @ (6 | 7 | 9 | 11)) => format!("was ended by signal {signal}, perhaps for want of memory"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
    }
}

/// Ends the process when the call is dropped. The process starts no others.
struct EndOnDrop(Option<Pid>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // It may have ended meanwhile and then needs no signal.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Confined {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, places: Semaphore::new(MAX_RUNNING) }
    }

    /// Runs a job until it ends, its time is up, or the caller leaves.
    pub async fn run(&self, job: &Job, input: Input) -> Result<JobOutput, ConfinedError> {
        let limit = job.limits().time;
        let work = async {
            let _place = self.places.acquire().await.expect("the semaphore is never closed");
            run_now(&self.runtime, job, input).await
        };
        timeout(limit, work).await.unwrap_or(Err(ConfinedError::TimedOut(limit)))
    }
}

async fn run_now(runtime: &Runtime, job: &Job, input: Input) -> Result<JobOutput, ConfinedError> {
    let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let (stdin, mut feed): (OwnedFd, Option<(Sender, String)>) = match input {
        Input::Nothing => (null()?, None),
        Input::File(file) => (file.into(), None),
        Input::Text(text) => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            (read, Some((Sender::from_owned_fd(write)?, text)))
        }
    };
    let (answer, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let answer = Receiver::from_owned_fd(answer)?;
    let job = serde_json::to_string(job).map_err(io::Error::other)?;
    let mut env = runtime.environment(&runtime.user, &[]);
    env.retain(|(name, _)| VARIABLES.contains(&name.as_str()));
    env.push((JOB.to_owned(), job));
    let program = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let command = Command {
        argv: ["arenite", "guest", ARGUMENT].map(str::to_owned).into(),
        env,
        cwd: "/".to_owned(),
        user: &runtime.user,
        stdio: [stdin, stdout, null()?],
        controlling_tty: false,
    };
    let mut child = runtime.processes.spawn_program(command, program).await?;
    let mut end = EndOnDrop(Pid::from_raw(child.pid));
    let feeding = async {
        if let Some((mut sender, text)) = feed.take() {
            // If the process stops reading, its answer says why.
            let _ = sender.write_all(text.as_bytes()).await;
        }
    };
    let mut bytes = Vec::new();
    let mut answer = answer.take(MAX_ANSWER_BYTES);
    let (read, ()) = tokio::join!(answer.read_to_end(&mut bytes), feeding);
    read?;
    drop(answer);
    let exit = child.wait().await;
    end.0 = None;
    match serde_json::from_slice::<Result<JobOutput, Fault>>(&bytes) {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ConfinedError::Crashed(exit)),
    }
}
