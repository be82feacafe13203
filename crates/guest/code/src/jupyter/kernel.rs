//! One kernel: its process, its channels, and the task that owns both.
//!
//! ```text
//!  start ──► idle ◄─────────── its reply and its idle status ──┐
//!             │ execute                                        │
//!             ▼                                                │
//!         executing ──the time is over──► interrupted ─────────┘
//!             │                                │ it goes on for 5 s: killed
//!             └──── the process ends ──► ended ◄┘
//! ```
//!
//! The task reads all the time, also between executions: a kernel drops messages that are not read, and one of these could report
//! the end of an execution.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::kernelspec::{InterruptMode, KernelSpec};
use super::message::{Incoming, Request};
use super::outputs::{self, JupyterOutput, Outputs, StreamContent};
use super::start::{Channels, Process, StartError, start};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{Budget, Exit, News, Signal};
use arenite_guest_runtime::until;

/// How long an interrupted execution may go on before its kernel is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long a kernel may take to shut down on request.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// How long the idle status may lag behind the result of an execution.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a kernel's input and output threads may take to accept a request.
const SEND: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    Error,
    Timeout,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
        }
    }
}

/// The outcome of an execution.
#[derive(Debug)]
pub struct Execution {
    pub status: Status,
    pub execution_count: Option<i64>,
    pub outputs: Vec<JupyterOutput>,
    pub msg_id: String,
    /// Why the execution ended the kernel, if it did.
    pub ended: Option<String>,
}

#[derive(Debug)]
struct Execute {
    code: String,
    silent: bool,
    limit: Duration,
    news: Option<News>,
    done: oneshot::Sender<Execution>,
}

/// A started kernel. It is shut down when dropped.
#[derive(Debug)]
pub(super) struct Kernel {
    executes: mpsc::Sender<Execute>,
    stop: CancellationToken,
    ended: watch::Receiver<Option<String>>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Kernel {
    /// Starts a kernel. It is ready to execute when this returns.
    pub(super) async fn start(
        runtime: &Runtime,
        spec: &KernelSpec,
        cwd: &Path,
        budget: &Arc<Budget>,
    ) -> Result<Self, StartError> {
        let (process, channels) = start(runtime, spec, cwd).await?;
        let (executes, commands) = mpsc::channel(1);
        let (end, ended) = watch::channel(None);
        let stop = CancellationToken::new();
        let task = Task {
            process,
            channels,
            interrupt_mode: spec.interrupt_mode,
            budget: Arc::clone(budget),
            stop: stop.clone(),
            running: None,
        };
        tokio::spawn(task.run(commands, end));
        Ok(Self { executes, stop, ended })
    }

    /// Ends the kernel when `other` is cancelled, if it has not ended before.
    pub(super) fn stop_with(&self, other: &CancellationToken) {
        let (stop, other) = (self.stop.clone(), other.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = other.cancelled() => stop.cancel(),
                () = stop.cancelled() => {}
            }
        });
    }

    /// Why the kernel ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Executes code, one call at a time. It goes on when the caller leaves.
    pub(super) async fn execute(&self, code: String, silent: bool, limit: Duration) -> Result<Execution, String> {
        self.execute_told(code, silent, limit, None).await
    }

    /// The same. Sends printed lines as they come.
    pub(super) async fn execute_told(
        &self,
        code: String,
        silent: bool,
        limit: Duration,
        news: Option<News>,
    ) -> Result<Execution, String> {
        let (done, execution) = oneshot::channel();
        // A task that has ended refuses the request, and a task that is ending drops it: both report the reason.
        if self.executes.send(Execute { code, silent, limit, news, done }).await.is_ok()
            && let Ok(execution) = execution.await
        {
            return Ok(execution);
        }
        Err(self.ended().unwrap_or_else(|| "it was shut down".to_owned()))
    }

    /// Shuts down the kernel, even during an execution, and waits until its process has ended.
    pub(super) async fn shut_down(self) {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        // The task reports the reason before it ends, or has ended already.
        drop(ended.wait_for(Option::is_some).await);
    }
}

#[derive(Debug, Deserialize)]
struct ReplyContent {
    status: String,
    execution_count: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Executing,
    Interrupted,
}

/// An execution in progress.
struct Running {
    id: String,
    outputs: Outputs,
    news: Option<News>,
    stage: Stage,
    /// The deadline of the current stage.
    alarm: Instant,
    reply: Option<ReplyContent>,
    is_idle: bool,
    done: oneshot::Sender<Execution>,
}

impl Running {
    /// Handles a message of this execution on the broadcast channel.
    fn published(&mut self, incoming: &Incoming) {
        let outputs = &mut self.outputs;
        if incoming.dropped > 0 {
            return self.cut(incoming);
        }
        match incoming.kind.as_str() {
            "status" => {
                #[derive(Deserialize)]
                struct State {
                    execution_state: String,
                }
                self.is_idle |= incoming.content().is_some_and(|s: State| s.execution_state == "idle");
            }
            "stream" => {
                if let Some(content) = incoming.content::<StreamContent>() {
                    if let Some(news) = &mut self.news {
                        news.push(content.text.as_bytes());
                    }
                    outputs.stream(&content);
                }
            }
            "display_data" => drop(incoming.content().map(|content| outputs.display("display_data", content))),
            "execute_result" => drop(incoming.content().map(|content| outputs.display("execute_result", content))),
            "update_display_data" => drop(incoming.content().map(|content| outputs.update(content))),
            "error" => drop(incoming.content().map(|content| outputs.error(content))),
            "clear_output" => {
                #[derive(Deserialize)]
                struct Clear {
                    #[serde(default)]
                    wait: bool,
                }
                outputs.clear(incoming.content().is_some_and(|clear: Clear| clear.wait));
            }
            _ => {}
        }
    }

    /// Handles a message that is too long: keeps as much of its text as fits, and leaves out images and other data.
    fn cut(&mut self, incoming: &Incoming) {
        let outputs = &mut self.outputs;
        match incoming.kind.as_str() {
            "stream" => match incoming.content::<StreamContent>() {
                Some(mut content) => {
                    content.text.push_str(&format!("\n{}\n", outputs::cut_note(incoming.dropped)));
                    if let Some(news) = &mut self.news {
                        news.push(content.text.as_bytes());
                    }
                    outputs.stream(&content);
                }
                None => outputs.too_long(incoming.dropped),
            },
            _ => outputs.too_long(incoming.dropped),
        }
    }

    fn finish(self, ended: Option<String>) {
        let ok = self.reply.as_ref().is_some_and(|reply| reply.status == "ok");
        let execution = Execution {
            status: match self.stage {
                Stage::Interrupted => Status::Timeout,
                Stage::Executing if ok && ended.is_none() => Status::Ok,
                Stage::Executing => Status::Error,
            },
            execution_count: self.reply.and_then(|reply| reply.execution_count),
            outputs: self.outputs.finish(),
            msg_id: self.id,
            ended,
        };
        // Its caller may have left.
        drop(self.done.send(execution));
    }
}

struct Task {
    process: Process,
    channels: Channels,
    interrupt_mode: InterruptMode,
    budget: Arc<Budget>,
    stop: CancellationToken,
    running: Option<Running>,
}

impl Task {
    async fn run(mut self, mut executes: mpsc::Receiver<Execute>, end: watch::Sender<Option<String>>) {
        let reason = loop {
            let alarm = self.running.as_ref().map(|running| running.alarm);
            tokio::select! {
                exit = self.process.owned().wait() => break self.after_exit(exit).await,
                () = self.stop.cancelled() => {
                    self.ask_to_end().await;
                    break "it was shut down".to_owned();
                }
                execute = executes.recv(), if self.running.is_none() => match execute {
                    Some(execute) => if let Err(reason) = self.begin(execute).await { break reason },
                    None => {
                        self.ask_to_end().await;
                        break "it was shut down".to_owned();
                    }
                },
                message = self.channels.shell.receive() => match message {
                    Ok(message) => if let Some(incoming) = Incoming::read(message) { self.replied(&incoming) },
                    Err(error) => break self.lost(&error).await,
                },
                message = self.channels.iopub.receive() => match message {
                    Ok(message) => if let Some(incoming) = Incoming::read(message) { self.published(&incoming) },
                    Err(error) => break self.lost(&error).await,
                },
                // The answer there is not needed.
                message = self.channels.control.receive() => if let Err(error) = message { break self.lost(&error).await },
                () = until(alarm) => if let Some(reason) = self.too_late().await { break reason },
            }
            if self.running.as_ref().is_some_and(|running| running.is_idle && running.reply.is_some())
                && let Some(running) = self.running.take()
            {
                running.finish(None);
            }
        };
        tracing::debug!(pid = self.process.owned().pid(), reason, "a kernel ended");
        // Killed with all processes that it started, before its end is reported.
        self.process.owned().end().await;
        end.send_replace(Some(reason.clone()));
        if let Some(mut running) = self.running.take() {
            running.outputs.push(JupyterOutput::error("KernelEnded", reason.clone()), None);
            running.finish(Some(reason));
        }
    }

    async fn begin(&mut self, execute: Execute) -> Result<(), String> {
        let content = json!({
            "code": execute.code,
            "silent": execute.silent,
            "store_history": !execute.silent,
            "user_expressions": {},
            // No client could answer: input() fails at once with an error.
            "allow_stdin": false,
            "stop_on_error": false,
        });
        let request = Request::new(&self.channels.session, "execute_request", &content);
        let sent = timeout(SEND, self.channels.shell.send(&request.frames)).await;
        self.running = Some(Running {
            id: request.id,
            outputs: Outputs::new(&self.budget),
            news: execute.news,
            stage: Stage::Executing,
            alarm: Instant::now() + execute.limit,
            reply: None,
            is_idle: false,
            done: execute.done,
        });
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(&error).await),
            Err(_) => Err(format!("it took no request for {SEND:?} and was killed")),
        }
    }

    fn replied(&mut self, incoming: &Incoming) {
        let Some(running) = self.running.as_mut().filter(|r| r.id == incoming.parent && incoming.kind == "execute_reply") else {
            return;
        };
        let unreadable = || ReplyContent { status: "error".to_owned(), execution_count: None };
        running.reply = Some(incoming.content().unwrap_or_else(unreadable));
        // Its idle status follows all its outputs and arrives soon.
        running.alarm = Instant::now() + SETTLE;
    }

    fn published(&mut self, incoming: &Incoming) {
        if let Some(running) = self.running.as_mut().filter(|r| r.id == incoming.parent) {
            running.published(incoming);
        }
    }

    /// Handles the deadline. Returns the reason if the kernel must be killed.
    async fn too_late(&mut self) -> Option<String> {
        let running = self.running.as_mut()?;
        if running.reply.is_some() {
            // Only its idle status is missing.
            running.is_idle = true;
            return None;
        }
        if running.stage == Stage::Interrupted {
            return Some(format!("it went on for {GRACE:?} after it was interrupted, and was killed"));
        }
        running.stage = Stage::Interrupted;
        running.alarm = Instant::now() + GRACE;
        match self.interrupt_mode {
            // The whole group, as on a terminal: a program that the code waits for must end too.
            InterruptMode::Signal => self.process.owned().signal_group(Signal::INT),
            InterruptMode::Message => {
                let request = Request::new(&self.channels.session, "interrupt_request", &json!({}));
                // If it fails, the next deadline ends the kernel.
                drop(timeout(SEND, self.channels.control.send(&request.frames)).await);
            }
        }
        None
    }

    async fn ask_to_end(&mut self) {
        let request = Request::new(&self.channels.session, "shutdown_request", &json!({"restart": false}));
        let goes = async {
            if self.channels.control.send(&request.frames).await.is_ok() {
                self.process.owned().wait().await;
            }
        };
        // A kernel that executes for ever does not read the request.
        let patience = if self.running.is_some() { Duration::from_millis(100) } else { SHUTDOWN };
        drop(timeout(patience, goes).await);
    }

    /// Handles a broken channel: usually the process is ending.
    async fn lost(&mut self, error: &std::io::Error) -> String {
        match timeout(SETTLE, self.process.owned().wait()).await {
            Ok(exit) => self.after_exit(exit).await,
            Err(_) => format!("its connection broke ({error}), and it was killed"),
        }
    }

    /// Reads the last messages of the process and describes how it ended.
    async fn after_exit(&mut self, exit: Exit) -> String {
        let last_words = async {
            while let Ok(message) = self.channels.iopub.receive().await {
                if let Some(running) = self.running.as_mut()
                    && let Some(incoming) = Incoming::read(message)
                    && incoming.parent == running.id
                {
                    running.published(&incoming);
                }
            }
        };
        // The connection closes when the process ends; only a copy of it in a child of the process could keep it open.
        drop(timeout(Duration::from_millis(200), last_words).await);
        let said = self.process.last_words();
        let how = match exit {
            Exit::Code(code) => format!("it ended by itself with exit code {code}"),
            Exit::Signal(9) => "it was killed (signal 9), perhaps for want of memory".to_owned(),
            Exit::Signal(signal) => format!("it was ended by signal {signal}"),
        };
        if said.is_empty() { how } else { format!("{how}; it said: {said}") }
    }
}
