//! The one machine of the sandbox: started when it is needed, and again when it has ended.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};
use utoipa::ToSchema;

use super::agent::Agent;
use super::hands::Position;
use super::picture;
use super::qmp::{Qmp, QmpError};
use super::settings::Settings;
use super::start::{self, Launch, READY, Started, StateDir};
use super::tree;
use crate::desktop::{AccessibilityTree, Format, Picture, ScreenError};
use crate::process::{Kept, Said, told};
use crate::{Guest, SharedGuest, dial};

/// For one question whether the agent is there.
const ASK: Duration = Duration::from_secs(10);
/// Between two of them; nothing tells of an agent that has started.
const PAUSE: Duration = Duration::from_millis(250);
/// For a state to be kept or taken up: as much as the machine's memory is written or read.
const KEEP: Duration = Duration::from_secs(180);
/// For a killed process to be gone.
const END: Duration = Duration::from_secs(5);
/// Bytes of a text that is copied.
const MAX_TEXT: usize = 1 << 16;

#[derive(Debug, Error)]
pub enum MachineError {
    #[error("this sandbox's image has no machine")]
    NoMachine,
    #[error("/etc/arenite/machine.json, or a variable ARENITE_MACHINE_*: {0}")]
    Settings(String),
    #[error("this sandbox's image has a machine but no {0}")]
    NoQemu(&'static str),
    #[error("the machine's disk can't be used{0}")]
    NoDisk(String),
    #[error("QEMU could not be started: {0}")]
    NotSpawned(SpawnError),
    #[error("QEMU ended ({how}){}", told(.said))]
    Ended { how: String, said: String },
    #[error(
        "the machine was not ready within {seconds} s: its agent did not answer on port {port}; its last screen is in {screen}"
    )]
    NotReady { seconds: u32, port: u16, screen: String },
    #[error("the machine could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("the picture of the machine's screen: {0}")]
    Picture(String),
    #[error("the agent in the machine: {0}")]
    Agent(String),
    #[error("there is no /dev/kvm that can be opened")]
    NoKvm,
    #[error("the machine's state could not be kept; the lines before say why")]
    NotKept,
    #[error("no key of a US keyboard types {0:?}; the machine's agent can paste it, when that is allowed")]
    NoKeyFor(char),
    #[error("the machine has no agent, by which alone this can be done")]
    NoAgent,
    #[error("windows of a machine are known to the system in it alone")]
    NoWindows,
    #[error("a text for the clipboard can have {MAX_TEXT} bytes")]
    LongText,
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error(transparent)]
    Screen(#[from] ScreenError),
}

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// The next call starts it.
    Off,
    Booting,
    Ready,
}

/// What is known of the sandbox's machine.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct MachineStatus {
    pub state: MachineState,
    /// What runs its instructions: `kvm`, or `tcg`, which is QEMU itself, without the host's help.
    pub accel: &'static str,
    /// The image's disk.
    pub disk: String,
    pub memory_mb: u32,
    pub cpus: u32,
    /// The port of the sandbox's loopback that leads to the agent in the machine; 0: it has none.
    pub agent_port: u16,
    /// From its start until it was ready, in seconds.
    pub boot_seconds: Option<f64>,
    /// Whether it began where the image left it, and did not boot.
    pub warm: bool,
    /// Whether its state was kept, so that a reset takes seconds.
    pub snapshot: bool,
}

#[derive(Debug, Default)]
pub struct MachineService {
    current: tokio::sync::Mutex<Option<Arc<Machine>>>,
}

/// A running machine. Dropped, it ends.
#[derive(Debug)]
pub struct Machine {
    process: Kept,
    pub(super) qmp: Qmp,
    dir: PathBuf,
    said: Said,
    settings: Settings,
    state: StateDir,
    begun: Instant,
    /// Where its agent is reached; 0: it has none.
    port: u16,
    /// It began with a state that was kept.
    warm: bool,
    /// The time that it took; set once it is ready.
    ready: OnceCell<Duration>,
    position: Mutex<Position>,
    /// Whoever uses mouse and keyboard does so alone.
    pub(super) hands: tokio::sync::Mutex<()>,
}

impl MachineService {
    /// Whether the sandbox's screen is a machine's.
    pub fn is_there(&self, guest: &Guest) -> Result<bool, MachineError> {
        Ok(Settings::read(&guest.config().env)?.is_some())
    }

    /// The machine, started if it is not there; it may be booting.
    pub async fn get(&self, guest: &SharedGuest) -> Result<Arc<Machine>, MachineError> {
        let mut current = self.current.lock().await;
        if let Some(machine) = current.as_ref().filter(|machine| machine.is_fine()) {
            return Ok(machine.clone());
        }
        if let Some(broken) = current.take() {
            broken.end().await;
        }
        let (settings, state) = prepare(guest)?;
        let warm = state.is_warm(&settings);
        let launch = if warm { Launch::TakeUp } else { Launch::Boot };
        let machine = match Machine::start(guest, settings.clone(), state.clone(), launch).await {
            Err(error) if warm => {
                tracing::error!(%error, "the machine could not begin where the image left it, and boots");
                state.clear().map_err(|source| MachineError::Io { what: "its state", source })?;
                Machine::start(guest, settings, state, Launch::Boot).await?
            }
            started => started?,
        };
        Ok(current.insert(Arc::new(machine)).clone())
    }

    /// The machine, when its agent answers.
    pub async fn ready(&self, guest: &SharedGuest) -> Result<Arc<Machine>, MachineError> {
        let machine = self.get(guest).await?;
        machine.ready().await?;
        Ok(machine)
    }

    /// Has the machine be ready, when this port of the loopback is the one that leads into it.
    pub(crate) async fn ready_for(&self, guest: &SharedGuest, port: u16) -> Result<(), MachineError> {
        // What is wrong with its settings is told to who asks for the machine itself.
        if let Ok(Some(settings)) = Settings::read(&guest.config().env)
            && settings.agent_port == port
        {
            self.ready(guest).await?;
        }
        Ok(())
    }

    /// Has the machine be again as it was when it was ready for the first time, disk and memory. Whether that took a boot.
    pub async fn reset(&self, guest: &SharedGuest) -> Result<bool, MachineError> {
        let (settings, state) = prepare(guest)?;
        let mut current = self.current.lock().await;
        let has_ready = state.has_ready(&settings);
        if let Some(machine) = current.as_ref().filter(|machine| has_ready && machine.is_fine() && machine.ready.initialized()) {
            match machine.take_up().await {
                Ok(()) => return Ok(false),
                Err(error) => tracing::error!(%error, "the machine's kept state could not be taken up, and it boots"),
            }
        }
        if let Some(machine) = current.take() {
            machine.end().await;
        }
        if has_ready {
            match Machine::start(guest, settings.clone(), state.clone(), Launch::TakeUp).await {
                Ok(machine) => {
                    let machine = current.insert(Arc::new(machine)).clone();
                    drop(current);
                    machine.ready().await?;
                    return Ok(false);
                }
                Err(error) => tracing::error!(%error, "the machine can't be started from its kept state, and boots"),
            }
        }
        state.clear().map_err(|source| MachineError::Io { what: "its state", source })?;
        let machine = Arc::new(Machine::start(guest, settings, state, Launch::Boot).await?);
        *current = Some(machine.clone());
        drop(current);
        machine.ready().await?;
        Ok(true)
    }

    /// How it is. Nothing is started.
    pub async fn status(&self, guest: &SharedGuest) -> Result<MachineStatus, MachineError> {
        let (settings, state) = prepare(guest)?;
        let current = self.current.lock().await;
        let machine = current.as_ref().filter(|machine| machine.is_fine());
        let took = machine.and_then(|machine| machine.ready.get()).copied();
        Ok(MachineStatus {
            state: match (machine, took) {
                (None, _) => MachineState::Off,
                (Some(_), None) => MachineState::Booting,
                (Some(_), Some(_)) => MachineState::Ready,
            },
            accel: if settings.has_kvm() { "kvm" } else { "tcg" },
            snapshot: state.has_ready(&settings),
            disk: settings.disk,
            memory_mb: settings.memory_mb,
            cpus: settings.cpus,
            agent_port: settings.agent_port,
            boot_seconds: took.map(|took| took.as_secs_f64()),
            warm: machine.is_some_and(|machine| machine.warm),
        })
    }
}

/// Boots the machine of an image that is being built, and keeps its state, so that those of the image's sandboxes need not boot.
/// Answers the seconds that it took.
pub(crate) async fn keep_ready(guest: &SharedGuest) -> Result<f64, MachineError> {
    let (settings, state) = prepare(guest)?;
    let machine = boot_alone(guest, Settings { snapshot: true, ..settings.clone() }, &state).await?;
    if !state.has_ready(&settings) {
        return Err(MachineError::NotKept);
    }
    // Ended by its own hands it writes what it has not written yet.
    machine.qmp.execute("quit", json!({})).await?;
    drop(timeout(KEEP, machine.process.ended().cancelled()).await);
    state.forget_started().map_err(|source| MachineError::Io { what: "its state", source })?;
    Ok(machine.ready.get().map_or(0.0, Duration::as_secs_f64))
}

/// Boots the image's machine with KVM, which leaves nothing; the answer is the seconds that it took. An error: not within so many.
pub(crate) async fn probe_kvm(guest: &SharedGuest, seconds: u32) -> Result<f64, MachineError> {
    let (settings, state) = prepare(guest)?;
    if !settings.has_kvm() {
        return Err(MachineError::NoKvm);
    }
    // Nothing of how the image's machine was left, and nothing for its sandboxes.
    state.clear().map_err(|source| MachineError::Io { what: "its state", source })?;
    let settings = Settings { snapshot: false, boot_seconds: seconds, ..settings };
    let machine = boot_alone(guest, settings, &state).await?;
    machine.end().await;
    Ok(machine.ready.get().map_or(0.0, Duration::as_secs_f64))
}

/// A machine that has booted on its own, without anybody to reach, where others may be on the same loopback.
async fn boot_alone(guest: &SharedGuest, settings: Settings, state: &StateDir) -> Result<Machine, MachineError> {
    let at = |what| move |source| MachineError::Io { what, source };
    // Free a moment ago; QEMU says so when it is not any more.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.map_err(at("a port"))?.port();
    let machine = Machine::start(guest, settings, state.clone(), Launch::Alone(port)).await?;
    machine.ready().await?;
    Ok(machine)
}

fn prepare(guest: &SharedGuest) -> Result<(Settings, StateDir), MachineError> {
    let settings = Settings::read(&guest.config().env)?.ok_or(MachineError::NoMachine)?;
    let state = StateDir::open(guest).map_err(|source| MachineError::Io { what: "its state", source })?;
    Ok((settings, state))
}

impl Machine {
    async fn start(guest: &SharedGuest, settings: Settings, state: StateDir, launch: Launch) -> Result<Self, MachineError> {
        let begun = Instant::now();
        let Started { process, qmp, dir, said } = start::start(guest, &settings, &state, launch).await?;
        let port = match launch {
            Launch::Alone(outside) => outside,
            _ => settings.agent_port,
        };
        Ok(Self {
            process,
            qmp,
            dir,
            said,
            settings,
            state,
            begun,
            port,
            warm: launch == Launch::TakeUp,
            ready: OnceCell::new(),
            position: Mutex::default(),
            hands: tokio::sync::Mutex::default(),
        })
    }

    fn is_fine(&self) -> bool {
        !self.process.has_ended() && !self.qmp.is_closed()
    }

    async fn end(&self) {
        self.process.kill();
        drop(timeout(END, self.process.ended().cancelled()).await);
    }

    fn agent(&self) -> Result<Agent, MachineError> {
        match self.port {
            0 => Err(MachineError::NoAgent),
            port => Ok(Agent { port }),
        }
    }

    /// Waits until the agent answers; one that does not in time has its last screen kept, and the machine ends.
    async fn ready(&self) -> Result<(), MachineError> {
        self.ready.get_or_try_init(|| self.boot()).await?;
        Ok(())
    }

    async fn boot(&self) -> Result<Duration, MachineError> {
        let limit = Duration::from_secs(self.settings.boot_seconds.into());
        if !self.answers(self.begun + limit).await? {
            let screen = self.keep_screen().await;
            self.end().await;
            let Settings { boot_seconds: seconds, agent_port: port, .. } = self.settings;
            return Err(MachineError::NotReady { seconds, port, screen });
        }
        let took = self.begun.elapsed();
        if self.warm {
            self.set_clock().await;
        }
        // Where the pointer is is known from here on.
        let (width, height) = self.size().await?;
        self.move_to(f64::from(width / 2), f64::from(height / 2)).await?;
        if self.settings.snapshot && !self.state.has_ready(&self.settings) {
            // A machine without is a machine: a reset boots it.
            if let Err(error) = self.keep().await {
                tracing::error!(%error, "the machine's state could not be kept");
            }
        }
        Ok(took)
    }

    /// Whether the agent answers before a moment.
    async fn answers(&self, deadline: Instant) -> Result<bool, MachineError> {
        let Ok(agent) = self.agent() else { return Ok(true) };
        let ended = self.process.ended();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            tokio::select! {
                is_ready = agent.is_ready(left.min(ASK)) => if is_ready { return Ok(true) },
                () = ended.cancelled() => return Err(self.ended()),
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(PAUSE).await;
        }
    }

    fn ended(&self) -> MachineError {
        let how = "it may have been killed: a sandbox needs some 400 MiB more memory than its machine".to_owned();
        MachineError::Ended { how, said: self.said.text() }
    }

    /// Writes the screen to a file, and answers its name or why there is none.
    async fn keep_screen(&self) -> String {
        let place = self.state.last_screen();
        let kept = async {
            let (_, file) =
                self.picture().await?.encoded(Format::Png).await.map_err(|error| MachineError::Picture(error.to_string()))?;
            tokio::fs::write(&place, file).await.map_err(|error| MachineError::Picture(error.to_string()))
        };
        match kept.await {
            Ok(()) => place.display().to_string(),
            Err(error) => format!("no file ({error})"),
        }
    }

    async fn set_clock(&self) {
        let now = jiff::Timestamp::now().as_second();
        if let Ok(agent) = self.agent() {
            // A system without sudo goes on with the time that it had.
            let set = agent.run(&format!("sudo -n date -u -s @{now} >/dev/null 2>&1 || true")).await;
            if let Err(error) = set {
                tracing::warn!(%error, "the machine's clock could not be set");
            }
        }
    }

    /// Keeps disk and memory as they are.
    async fn keep(&self) -> Result<(), MachineError> {
        // One of other settings may be there.
        drop(self.job("snapshot-delete", json!({"tag": READY, "devices": ["disk0"]})).await);
        self.job("snapshot-save", json!({"tag": READY, "vmstate": "disk0", "devices": ["disk0"]})).await?;
        self.state.note_ready(&self.settings).map_err(|source| MachineError::Io { what: "its state", source })
    }

    /// Goes back to what was kept.
    async fn take_up(&self) -> Result<(), MachineError> {
        let _hands = self.hands.lock().await;
        self.job("snapshot-load", json!({"tag": READY, "vmstate": "disk0", "devices": ["disk0"]})).await?;
        let limit = Duration::from_secs(self.settings.boot_seconds.into());
        if !self.answers(Instant::now() + limit).await? {
            return Err(MachineError::Agent("it does not answer".to_owned()));
        }
        self.set_clock().await;
        let (width, height) = self.size().await?;
        self.note(Position { x: f64::from(width / 2), y: f64::from(height / 2) });
        Ok(())
    }

    /// Has a job done to its end, of which events tell.
    async fn job(&self, command: &'static str, mut arguments: Value) -> Result<(), MachineError> {
        let id = format!("job-{}", crate::random_id());
        arguments["job-id"] = id.clone().into();
        let mut events = self.qmp.events();
        self.qmp.execute(command, arguments).await?;
        let concluded = async {
            loop {
                match events.recv().await {
                    Ok(event) => {
                        let is_it = event.name == "JOB_STATUS_CHANGE" && event.data["id"] == id.as_str();
                        if is_it && event.data["status"] == "concluded" {
                            return Ok(());
                        }
                    }
                    // What was missed may have been it.
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => return Ok(()),
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return Err(QmpError::Gone),
                }
            }
        };
        let ended = self.process.ended();
        tokio::select! {
            done = timeout(KEEP, concluded) => done.map_err(|_| QmpError::Silent(command))??,
            () = ended.cancelled() => return Err(self.ended()),
        }
        let jobs = self.qmp.execute("query-jobs", json!({})).await?;
        let job = jobs.as_array().into_iter().flatten().find(|job| job["id"] == id.as_str());
        let failure = job.and_then(|job| job["error"].as_str()).map(str::to_owned);
        self.qmp.execute("job-dismiss", json!({"id": id})).await?;
        match failure {
            Some(reason) => Err(QmpError::Refused { command, reason }.into()),
            None => Ok(()),
        }
    }

    pub(super) fn position(&self) -> Position {
        *self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, position: Position) {
        *self.position.lock().unwrap_or_else(PoisonError::into_inner) = position;
    }

    /// The whole screen.
    pub(crate) async fn picture(&self) -> Result<Picture, MachineError> {
        picture::take(&self.qmp, &self.dir).await
    }

    /// Of the screen, in pixels.
    pub(crate) async fn size(&self) -> Result<(u16, u16), MachineError> {
        Ok(self.picture().await?.screen)
    }

    /// What programs say that they show.
    pub(crate) async fn accessibility(&self, depth: u32, nodes: u32) -> Result<AccessibilityTree, MachineError> {
        let xml = self.agent()?.tree().await?;
        let read = tokio::task::spawn_blocking(move || tree::read(&xml, depth, nodes)).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        read.map_err(|reason| MachineError::Agent(format!("its tree can't be read: {reason}")))
    }

    /// Copies a text, by what the machine has for that.
    pub(crate) async fn copy(&self, text: &str) -> Result<(), MachineError> {
        use base64::Engine;
        if text.len() > MAX_TEXT {
            return Err(MachineError::LongText);
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        self.agent()?.run(&format!("printf %s '{encoded}' | base64 -d | xclip -selection clipboard -in >/dev/null 2>&1")).await?;
        Ok(())
    }

    /// The text that was copied last.
    pub(crate) async fn clipboard(&self) -> Result<String, MachineError> {
        self.agent()?.run("xclip -selection clipboard -out 2>/dev/null || true").await
    }

    /// A connection that speaks VNC's protocol.
    pub(crate) async fn vnc(&self, guest: &SharedGuest) -> Result<UnixStream, MachineError> {
        let path = self.dir.join("vnc").display().to_string();
        // It listens before it answers its monitor.
        self.qmp.execute("query-status", json!({})).await?;
        dial::socket(guest, &path).await.map_err(|source| MachineError::Io { what: "its VNC socket", source })
    }
}
