//! Starts a kernel from its description and waits until it answers.
//!
//! Its sockets are in a separate directory, which only the user may enter; a TCP port could belong to any process.

use std::io;
use std::path::Path;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use serde_json::json;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::kernelspec::KernelSpec;
use super::message::{Incoming, Request};
use super::zmtp::{Role, Socket};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::process::{self, Arrivals, Command, OwnedProcess, Said, ScratchDir, told};

/// How long a kernel may take until it answers. Alone it takes half a second; concurrent starts share the cores.
const START: Duration = Duration::from_secs(60);

/// Port numbers in the names of the sockets.
const SHELL: u16 = 1;
const IOPUB: u16 = 2;
const STDIN: u16 = 3;
const CONTROL: u16 = 4;
const HEARTBEAT: u16 = 5;

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the kernel could not be started: {0}")]
    NotSpawned(#[from] SpawnError),
    #[error("the kernel ended before it answered ({how}){}", told(.said))]
    Ended { how: String, said: String },
    #[error("the kernel did not answer within {START:?}{}", told(.said))]
    TooSlow { said: String },
    #[error("the kernel could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

fn at(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what, source }
}

/// A kernel's process.
#[derive(Debug)]
pub(super) struct Process {
    owned: OwnedProcess,
    said: Said,
}

impl Process {
    pub(super) fn owned(&mut self) -> &mut OwnedProcess {
        &mut self.owned
    }

    /// The end of its output outside its channels.
    pub(super) fn last_words(&self) -> String {
        self.said.text()
    }
}

/// The connections to a kernel.
#[derive(Debug)]
pub(super) struct Channels {
    /// The runtime's session id in messages.
    pub(super) session: String,
    pub(super) shell: Socket,
    pub(super) iopub: Socket,
    pub(super) control: Socket,
}

/// Starts a kernel's process and waits until it answers.
pub(super) async fn start(runtime: &Runtime, spec: &KernelSpec, cwd: &Path) -> Result<(Process, Channels), StartError> {
    let dir = ScratchDir::new(&runtime.user).map_err(at("its directory"))?;
    let connection = dir.path().join("connection.json");
    let sockets = dir.path().join("s");
    let text = json!({
        "transport": "ipc", "ip": sockets, "key": "", "signature_scheme": "hmac-sha256", "kernel_name": spec.name,
        "shell_port": SHELL, "iopub_port": IOPUB, "stdin_port": STDIN, "control_port": CONTROL, "hb_port": HEARTBEAT,
    });
    std::fs::write(&connection, text.to_string()).map_err(at("its connection file"))?;
    let arrivals = Arrivals::watch(dir.path()).map_err(at("its directory"))?;
    let (output, stdout) = process::output_pipe(&runtime.user).map_err(at("its output"))?;
    let child = runtime
        .processes
        .spawn(Command {
            argv: spec.command(&connection),
            env: runtime.environment(&runtime.user, &spec.env.clone().into_iter().collect::<Vec<_>>()),
            cwd: cwd.display().to_string(),
            user: &runtime.user,
            stdio: [process::dev_null().map_err(at("its input"))?, stdout.try_clone().map_err(at("its output"))?, stdout],
            controlling_tty: false,
        })
        .await?;
    let said = Said::default();
    let listening = tokio::spawn(said.clone().listen(output));
    let mut process = Process { owned: OwnedProcess::new(child, dir), said: said.clone() };
    let deadline = Instant::now() + START;
    let reached = async {
        let base = sockets.display().to_string();
        arrivals.wait_for(&[SHELL, IOPUB, CONTROL].map(|n| format!("{base}-{n}"))).await.map_err(at("its sockets"))?;
        let mut channels = connect(runtime, &base).await.map_err(at("its sockets"))?;
        greet(&mut channels).await.map_err(at("its first answer"))?;
        Ok(channels)
    };
    let reached = tokio::select! {
        reached = timeout_at(deadline, reached) => Some(reached),
        _ = process.owned.wait() => None,
    };
    let failure = match reached {
        Some(Ok(Ok(channels))) => {
            // Its output during the start is not needed once it runs.
            said.forget();
            return Ok((process, channels));
        }
        Some(Ok(Err(error))) => match timeout(Duration::from_millis(500), process.owned.wait()).await {
            Ok(_) => None,
            Err(_) => Some(error),
        },
        Some(Err(_)) => Some(StartError::TooSlow { said: said.text() }),
        None => None,
    };
    Err(match failure {
        Some(failure) => failure,
        None => {
            // Its last output is in the pipe, which a child of it may hold open.
            drop(timeout(Duration::from_millis(200), listening).await);
            let how = process.owned.wait().await.to_string();
            StartError::Ended { how, said: said.text() }
        }
    })
}

async fn connect(runtime: &Runtime, base: &str) -> io::Result<Channels> {
    // The same for all sockets: a kernel identifies its clients by it.
    let session = arenite_guest_runtime::random_id();
    let mut sockets = Vec::with_capacity(3);
    for (number, role) in [(SHELL, Role::Dealer), (IOPUB, Role::Subscriber), (CONTROL, Role::Dealer)] {
        let stream = dial::socket(runtime, &format!("{base}-{number}")).await?;
        sockets.push(Socket::over(stream, role, session.as_bytes()).await?);
    }
    let mut sockets = sockets.into_iter();
    match (sockets.next(), sockets.next(), sockets.next()) {
        (Some(shell), Some(iopub), Some(control)) => Ok(Channels { session, shell, iopub, control }),
        _ => unreachable!("three were made"),
    }
}

/// Waits until the kernel answers requests and its broadcasts arrive.
async fn greet(channels: &mut Channels) -> io::Result<()> {
    let hello = || Request::new("greeting", "kernel_info_request", &json!({}));
    channels.shell.send(&hello().frames).await?;
    let (mut answers, mut publishes) = (false, false);
    while !(answers && publishes) {
        tokio::select! {
            message = channels.shell.receive() => {
                answers |= Incoming::read(message?).is_some_and(|incoming| incoming.kind == "kernel_info_reply");
            }
            message = channels.iopub.receive() => {
                message?;
                publishes = true;
            }
            // Older kernels don't greet subscribers, and their broadcasts came too early: another request triggers new ones.
            () = sleep(Duration::from_millis(100)), if answers => channels.shell.send(&hello().frames).await?,
        }
    }
    Ok(())
}
