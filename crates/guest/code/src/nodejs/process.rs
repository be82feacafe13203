//! A Node.js process that evaluates code: see `driver.js`.

use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::{SpawnError, Stage};
use bytes::BytesMut;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::runtime::NodeRuntime;
use super::service::{NodeError, how};
use crate::jupyter::MAX_STREAM_CHARS;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Budget, Command, Exit, News, OwnedProcess, Retained, ScratchDir, Signal};

/// The script that the process runs.
const DRIVER: &str = include_str!("driver.js");
/// How long a process may take until it is ready.
const START: Duration = Duration::from_secs(60);
/// The longest answer, in bytes: a result may have a MiB as text and another as JSON, both escaped.
const MAX_ANSWER: usize = 16 << 20;
/// The process ends an execution itself when its time is over. After this additional time, the guest interrupts it.
const LAG: Duration = Duration::from_millis(500);
/// How long an interrupted execution may go on before its process is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long to read the output of an ended process.
const REST: Duration = Duration::from_millis(200);

/// The outcome of an evaluation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunResult {
    pub(super) ok: bool,
    /// It timed out.
    pub(super) late: bool,
    pub(super) text: Option<String>,
    pub(super) json: Option<Value>,
    pub(super) ename: String,
    pub(super) evalue: String,
    pub(super) traceback: Vec<String>,
    pub(super) cwd: Option<String>,
}

/// The result of an execution.
#[derive(Debug)]
pub(super) struct Ran {
    /// None: the process ended, or was killed, before it answered.
    pub(super) answer: Option<RunResult>,
    pub(super) late: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// How the process ended, if it did.
    pub(super) exit: Option<Exit>,
}

/// How long a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// For one execution: it ends when the code has nothing left to do.
    Once,
    Session,
}

/// One of the two outputs of a process, read continuously.
#[derive(Debug)]
struct Output {
    pipe: Arc<Receiver>,
    kept: Arc<Mutex<Retained>>,
    reading: tokio::task::JoinHandle<()>,
}

impl Output {
    fn read_from(pipe: Receiver, budget: &Arc<Budget>, news: Option<News>) -> Self {
        let pipe = Arc::new(pipe);
        let kept = Arc::new(Mutex::new(Retained::new(budget)));
        let reading = tokio::spawn(read_all(Arc::clone(&pipe), Arc::clone(&kept), news));
        Self { pipe, kept, reading }
    }

    /// The output since the last call, including what is in the pipe now.
    fn take(&self, budget: &Arc<Budget>) -> String {
        let rest = process::read_rest(&self.pipe);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(&rest);
        let all = std::mem::replace(&mut *kept, Retained::new(budget));
        all.read(0).text(Some(MAX_STREAM_CHARS))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read_all(pipe: Arc<Receiver>, kept: Arc<Mutex<Retained>>, mut news: Option<News>) {
    let mut buffer = vec![0; 64 << 10];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..n]);
                if let Some(news) = &mut news {
                    news.push(&buffer[..n]);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// A started process.
#[derive(Debug)]
pub(super) struct NodeProcess {
    owned: OwnedProcess,
    control: UnixStream,
    input: BytesMut,
    stdout: Output,
    stderr: Output,
    budget: Arc<Budget>,
}

impl NodeProcess {
    /// Starts one in a directory. It is ready when this returns. Lines that it prints are sent as they come.
    pub(super) async fn start(
        runtime: &Runtime,
        node: &NodeRuntime,
        mode: Mode,
        cwd: &Path,
        stdin: Option<String>,
        budget: &Arc<Budget>,
        lines_to: Option<&mpsc::Sender<String>>,
    ) -> Result<Self, NodeError> {
        let at = |what: &'static str| move |source| NodeError::Io { what, source };
        let dir = ScratchDir::new(&runtime.user).map_err(at("its directory"))?;
        let socket = dir.path().join("control");
        let listener = UnixListener::bind(&socket).map_err(at("its socket"))?;
        if rustix::process::geteuid().is_root() {
            chown(&socket, Some(runtime.user.uid), Some(runtime.user.gid)).map_err(at("its socket"))?;
        }
        let (from_stdout, stdout) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
        let (from_stderr, stderr) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
        let (input, to_stdin) = match stdin {
            Some(text) => {
                let (read, write) = process::input_pipe(&runtime.user).map_err(at("its input"))?;
                (read, Some((write, text)))
            }
            None => (process::dev_null().map_err(at("its input"))?, None),
        };
        let mode = if mode == Mode::Once { "once" } else { "session" };
        // In its own function: top-level declarations of a script would collide with the code's own names.
        let driver = format!("(() => {{\n{DRIVER}}})()");
        let argv = [&*node.program.to_string_lossy(), "-e", &driver, &*socket.to_string_lossy(), mode].map(str::to_owned);
        let child = runtime
            .processes
            .spawn(Command {
                argv: argv.into(),
                env: runtime.environment(&runtime.user, &[]),
                cwd: cwd.display().to_string(),
                user: &runtime.user,
                stdio: [input, stdout, stderr],
                controlling_tty: false,
            })
            .await
            .map_err(|error| match error {
                SpawnError::Failed { stage: Stage::Directory, cwd, .. } => NodeError::NoDirectory(cwd),
                error => NodeError::NotStarted(error),
            })?;
        if let Some((pipe, text)) = to_stdin {
            tokio::spawn(feed(pipe, text));
        }
        let mut owned = OwnedProcess::new(child, dir);
        let output = |pipe| Output::read_from(pipe, budget, lines_to.map(News::new));
        let (stdout, stderr) = (output(from_stdout), output(from_stderr));
        let accepted = tokio::select! {
            accepted = timeout(START, listener.accept()) => accepted.map_err(|_| None),
            exit = owned.wait() => Err(Some(exit)),
        };
        let failed = |exit: Option<Exit>, said: String| NodeError::NotReady {
            how: exit.map_or_else(|| format!("it took longer than {START:?}"), |exit| how(exit, false)),
            said: said.trim().to_owned(),
        };
        let control = match accepted {
            Ok(accepted) => accepted.map_err(at("its socket"))?.0,
            Err(exit) => return Err(failed(exit, stderr.take(budget))),
        };
        let mut started = Self { owned, control, input: BytesMut::new(), stdout, stderr, budget: Arc::clone(budget) };
        let Self { owned, control, input, .. } = &mut started;
        let exit = match timeout(START, read_line(control, input)).await {
            Ok(Ok(_)) => return Ok(started),
            // The socket closes before the process ends.
            Ok(Err(_)) => timeout(REST, owned.wait()).await.ok(),
            Err(_) => None,
        };
        Err(failed(exit, started.stderr.take(budget)))
    }

    /// Evaluates code within a time. Kills a process that does not answer or end.
    pub(super) async fn run(&mut self, code: &str, cwd: Option<&Path>, limit: Duration) -> Ran {
        let mut line = json!({"code": code, "cwd": cwd, "milliseconds": limit.as_millis() as u64}).to_string();
        line.push('\n');
        let mut alarm = Instant::now() + limit + LAG;
        let mut late = false;
        let mut exit = None;
        let answer = {
            let Self { owned, control, input, .. } = self;
            let exchange = async {
                control.write_all(line.as_bytes()).await?;
                read_line(control, input).await
            };
            tokio::pin!(exchange);
            loop {
                let pid = owned.pid();
                tokio::select! {
                    answer = &mut exchange => break answer.ok(),
                    ended = owned.wait() => {
                        exit = Some(ended);
                        // Its answer may have been sent before it ended.
                        break timeout(REST, &mut exchange).await.ok().and_then(Result::ok);
                    }
                    () = sleep_until(alarm) => {
                        if late {
                            tracing::debug!(pid, "killing a Node.js process that goes on after its interruption");
                            break None;
                        }
                        late = true;
                        alarm = Instant::now() + GRACE;
                        owned.signal_group(Signal::INT);
                    }
                }
            }
        };
        let answer: Option<RunResult> = answer.and_then(|line| serde_json::from_slice(&line).ok());
        if answer.is_none() {
            exit = Some(self.end().await);
        }
        late |= answer.as_ref().is_some_and(|answer| answer.late);
        let (stdout, stderr) = self.outputs();
        Ran { answer, late, stdout, stderr, exit }
    }

    /// Waits until a process in mode `Once` has nothing left to do. Returns whether it timed out, and how it ended.
    pub(super) async fn finish(&mut self, limit: Duration) -> (bool, Exit) {
        match timeout(limit, self.owned.wait()).await {
            Ok(exit) => {
                self.read_to_end().await;
                (false, exit)
            }
            Err(_) => (true, self.end().await),
        }
    }

    /// The output since the last call.
    pub(super) fn outputs(&self) -> (String, String) {
        (self.stdout.take(&self.budget), self.stderr.take(&self.budget))
    }

    /// Kills it with all processes that it started.
    pub(super) async fn end(&mut self) -> Exit {
        self.owned.end().await;
        self.read_to_end().await;
        self.owned.wait().await
    }

    /// Reads the output of an ended process. A child of it may hold the pipes open.
    async fn read_to_end(&mut self) {
        let both = async {
            drop((&mut self.stdout.reading).await);
            drop((&mut self.stderr.reading).await);
        };
        drop(timeout(REST, both).await);
    }

    /// How the process ended; `None` while it runs.
    pub(super) async fn ended(&mut self) -> Option<Exit> {
        // A wait of no time only checks.
        timeout(Duration::ZERO, self.owned.wait()).await.ok()
    }
}

async fn feed(mut pipe: Sender, text: String) {
    // A process that does not read it, or ends before, does not need it.
    drop(pipe.write_all(text.as_bytes()).await);
}

/// Reads the next line. Cancel-safe: the bytes read so far stay in `input`.
async fn read_line(stream: &mut UnixStream, input: &mut BytesMut) -> io::Result<Vec<u8>> {
    let mut searched = 0;
    loop {
        if let Some(at) = input[searched..].iter().position(|b| *b == b'\n') {
            return Ok(input.split_to(searched + at + 1).to_vec());
        }
        searched = input.len();
        if searched > MAX_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        input.reserve(16 << 10);
        if stream.read_buf(input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
