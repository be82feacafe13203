//! A plugin's process: requests and answers, one per line.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::sandboxed::{PluginSandbox, PluginSandboxes};
use super::{Launch, PYTHON_PATH};
use crate::error::{SynthesisError, plugin};

/// Longest line, in bytes.
const MAX_LINE: u64 = 16 << 20;
/// Requests that wait to be written.
const WAITING: usize = 256;
/// Pause between two starts of a process that dies.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of its log that are copied per second; the rest is counted.
const LOG_BYTES: usize = 16 << 10;

type Answer = Result<Value, SynthesisError>;

/// One life of the process.
struct Life {
    number: u64,
    requests: mpsc::Sender<Vec<u8>>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    next: AtomicU64,
    dead: CancellationToken,
}

impl Life {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running process.
#[derive(Clone)]
pub(super) struct Running {
    pub(super) life: u64,
    of: Arc<Life>,
}

/// An open request. Dropping it before its answer cancels it.
struct Pending<'a> {
    of: &'a Life,
    id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.of.pending().remove(&self.id).is_some() {
            let cancel = json!({ "jsonrpc": "2.0", "method": "cancel", "params": { "id": self.id } });
            // A process that does not read needs no cancellation.
            let _ = self.of.requests.try_send(line(&cancel));
        }
    }
}

fn line(message: &Value) -> Vec<u8> {
    let mut line = message.to_string().into_bytes();
    line.push(b'\n');
    line
}

impl Running {
    /// Sends one request. Others may be open at the same time.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Answer {
        let life = &*self.of;
        let id = life.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        life.pending().insert(id, tell);
        let _pending = Pending { of: life, id };
        let request = line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let ended = || plugin("the plugin's process ended");
        tokio::select! {
            biased;
            sent = life.requests.send(request) => sent.map_err(|_| ended())?,
            () = life.dead.cancelled() => return Err(ended()),
        }
        tokio::select! {
            biased;
            told = told => told.unwrap_or_else(|_| Err(ended())),
            () = life.dead.cancelled() => Err(ended()),
        }
    }
}

pub(super) struct Process {
    name: String,
    launch: Launch,
    /// Set if it runs in a sandbox; none: on the host.
    sandboxes: Option<PluginSandboxes>,
    state: tokio::sync::Mutex<State>,
    alive: Mutex<Option<Running>>,
}

#[derive(Default)]
struct State {
    lives: u64,
    started: Option<Instant>,
    /// The first message to a process that was restarted.
    first: Option<Value>,
}

impl Process {
    pub(super) fn new(name: String, launch: Launch, sandboxes: Option<PluginSandboxes>) -> Self {
        Self { name, launch, sandboxes, state: tokio::sync::Mutex::default(), alive: Mutex::default() }
    }

    pub(super) fn remember(&self, first: Value) {
        if let Ok(mut state) = self.state.try_lock() {
            state.first = Some(first);
        }
    }

    /// The process, if it is alive.
    pub(super) fn alive(&self) -> Option<Running> {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.clone().filter(|running| !running.of.dead.is_cancelled())
    }

    /// The process, restarted if it died.
    pub(super) async fn running(&self) -> Result<Running, SynthesisError> {
        if let Some(running) = self.alive() {
            return Ok(running);
        }
        let mut state = self.state.lock().await;
        if let Some(running) = self.alive() {
            return Ok(running);
        }
        if let Some(started) = state.started {
            tokio::time::sleep(PAUSE.saturating_sub(started.elapsed())).await;
        }
        state.started = Some(Instant::now());
        state.lives += 1;
        let running = self.start(state.lives).await?;
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.clone());
        if let Some(first) = &state.first {
            running.ask("describe", first.clone()).await.map_err(plugin)?;
        }
        Ok(running)
    }

    async fn start(&self, number: u64) -> Result<Running, SynthesisError> {
        let streams = match &self.sandboxes {
            Some(sandboxes) => sandboxes.start(&self.name, &self.launch).await?,
            None => self.start_here()?,
        };
        let (requests, waiting) = mpsc::channel(WAITING);
        let life = Arc::new(Life {
            number,
            requests,
            pending: Mutex::default(),
            next: AtomicU64::new(1),
            dead: CancellationToken::new(),
        });
        tokio::spawn(take_over_log(self.name.clone(), streams.log));
        tokio::spawn(live(self.name.clone(), Arc::clone(&life), streams.body, streams.input, streams.output, waiting));
        Ok(Running { life: number, of: life })
    }

    fn start_here(&self) -> Result<Streams, SynthesisError> {
        let Launch { command, env, paths, dir, .. } = &self.launch;
        let (program, arguments) = command.split_first().ok_or_else(|| plugin("its command is empty"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A plugin gets the server's secrets only if its configuration says so.
        command.env_remove("ARENITE_API_KEY").env_remove("SANDBOX_API_KEY").env_remove("ARENITE_STORE");
        command.envs(env.iter().cloned()).process_group(0).kill_on_drop(true);
        for (name, folders) in paths {
            let mut folders = folders.clone();
            if name == PYTHON_PATH {
                let theirs = std::env::var_os(PYTHON_PATH).unwrap_or_default();
                folders.extend(std::env::split_paths(&theirs).filter_map(|one| std::path::absolute(one).ok()));
            }
            let joined = std::env::join_paths(folders).map_err(plugin)?;
            command.env(name, joined);
        }
        if let Some(dir) = dir {
            if !dir.is_dir() {
                return Err(plugin(format!("its working directory {} is not there", dir.display())));
            }
            command.current_dir(dir);
        }
        let mut child = command.spawn().map_err(|error| SynthesisError::io(format!("{program} can't be started"), error))?;
        let (Some(input), Some(output), Some(log)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(plugin("its standard streams are not there"));
        };
        Ok(Streams { body: Body::Child(child), input: Box::new(input), output: Box::new(output), log: Box::new(log) })
    }

    /// Closes its standard input, and kills it if it does not end in time.
    pub(super) async fn end(&self, patience: Duration) {
        let Some(running) = self.alive() else { return };
        // An empty line marks the end of its input.
        let _ = running.of.requests.try_send(Vec::new());
        if tokio::time::timeout(patience, running.of.dead.cancelled()).await.is_err() {
            running.of.dead.cancel();
        }
    }
}

/// A started process.
pub(super) struct Streams {
    pub(super) body: Body,
    pub(super) input: Box<dyn AsyncWrite + Send + Unpin>,
    pub(super) output: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) log: Box<dyn AsyncRead + Send + Unpin>,
}

pub(super) enum Body {
    Child(Child),
    /// In a sandbox, which is removed with it.
    Sandbox(PluginSandbox),
}

impl Body {
    async fn end(&mut self, name: &str, life: u64, why: &str) {
        let child = match self {
            Self::Child(child) => child,
            Self::Sandbox(sandbox) => {
                tracing::info!(plugin = name, life, "a plugin's sandbox is removed: {why}");
                return sandbox.remove().await;
            }
        };
        // It may have just ended by itself.
        match tokio::time::timeout(Duration::from_millis(200), child.wait()).await {
            Ok(Ok(status)) => tracing::info!(plugin = name, life, %status, "a plugin's process ended: {why}"),
            _ => {
                tracing::warn!(plugin = name, life, "a plugin's process is killed: {why}");
                if let Some(group) = child.id().and_then(process_group) {
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                let _ = child.kill().await;
            }
        }
    }
}

/// Serves one life of a process, until it ends, violates the protocol, or is stopped.
async fn live(
    name: String,
    life: Arc<Life>,
    mut body: Body,
    input: Box<dyn AsyncWrite + Send + Unpin>,
    output: Box<dyn AsyncRead + Send + Unpin>,
    waiting: mpsc::Receiver<Vec<u8>>,
) {
    let why = tokio::select! {
        () = write(input, waiting) => "nothing can be written to it".to_owned(),
        why = read(&name, &life, output) => why,
        () = life.dead.cancelled() => "it was told to".to_owned(),
    };
    body.end(&name, life.number, &why).await;
    life.dead.cancel();
    life.pending().clear();
}

fn process_group(id: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(id).ok()?)
}

async fn write(mut input: Box<dyn AsyncWrite + Send + Unpin>, mut waiting: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = waiting.recv().await {
        if line.is_empty() {
            drop(input);
            // The reader detects its end.
            return std::future::pending().await;
        }
        if input.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn read(name: &str, life: &Life, output: Box<dyn AsyncRead + Send + Unpin>) -> String {
    let mut lines = BufReader::with_capacity(64 << 10, output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line).await {
            Ok(0) => return "it closed its standard output".to_owned(),
            Ok(read) if read as u64 == MAX_LINE && line.last() != Some(&b'\n') => {
                return format!("it wrote a line of more than {} MiB", MAX_LINE >> 20);
            }
            Ok(_) => {}
            Err(error) => return format!("its output can't be read: {error}"),
        }
        let Ok(message) = serde_json::from_slice::<Value>(&line) else {
            tracing::warn!(plugin = name, "a plugin wrote a line to its standard output that is no JSON");
            continue;
        };
        let Some(id) = message["id"].as_u64() else {
            let said = message["params"]["message"].as_str().unwrap_or_default();
            tracing::debug!(plugin = name, method = message["method"].as_str(), "{said}");
            continue;
        };
        // An answer that no caller waits for belongs to a cancelled request.
        if let Some(tell) = life.pending().remove(&id) {
            let answer = match message.get("error").filter(|error| !error.is_null()) {
                None => Ok(message.get("result").cloned().unwrap_or_default()),
                Some(error) => {
                    let message = error["message"].as_str().unwrap_or("the plugin failed").to_owned();
                    Err(match error["data"]["type"].as_str() {
                        Some(kind) => SynthesisError::Exception { kind: kind.to_owned(), message },
                        None => plugin(message),
                    })
                }
            };
            let _ = tell.send(answer);
        }
    }
}

/// Copies a plugin's standard error to the server's log, at a bounded rate, and drains the rest.
async fn take_over_log(name: String, mut log: Box<dyn AsyncRead + Send + Unpin>) {
    let mut buffer = vec![0; 4 << 10];
    let (mut since, mut taken, mut dropped) = (Instant::now(), 0usize, 0usize);
    while let Ok(read @ 1..) = log.read(&mut buffer).await {
        if since.elapsed() > Duration::from_secs(1) {
            if dropped > 0 {
                tracing::warn!(plugin = name, bytes = dropped, "a plugin's log was too much to be taken over whole");
            }
            (since, taken, dropped) = (Instant::now(), 0, 0);
        }
        if taken + read > LOG_BYTES {
            dropped += read;
            continue;
        }
        taken += read;
        for said in String::from_utf8_lossy(&buffer[..read]).lines().filter(|said| !said.trim().is_empty()) {
            tracing::info!(plugin = name, "{}", said.chars().filter(|c| !c.is_control()).collect::<String>());
        }
    }
}
