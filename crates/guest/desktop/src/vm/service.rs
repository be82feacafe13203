//! The one VM of the sandbox: started when it is needed, and again when it has ended.

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
use super::start::{self, Launch, SavedState, Started, StateDir};
use super::tree;
use crate::desktop::{AccessibilityTree, Format, Picture, ScreenError};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::process::{Kept, Said, told};

/// Timeout for one check whether the agent answers.
const ASK: Duration = Duration::from_secs(10);
/// Interval between these checks; there is no event for an agent's start.
const PAUSE: Duration = Duration::from_millis(250);
/// Timeout for saving or loading a state: as much as the VM's memory is written or read.
const KEEP: Duration = Duration::from_secs(180);
/// Timeout for a killed process to exit.
const END: Duration = Duration::from_secs(5);
/// Maximum bytes of a text that is copied.
const MAX_TEXT: usize = 1 << 16;

#[derive(Debug, Error)]
pub enum VmError {
    #[error("this sandbox's image has no VM")]
    NoVm,
    #[error("/etc/arenite/vm.json, or a variable ARENITE_VM_*: {0}")]
    Settings(String),
    #[error("this sandbox's image has a VM but no {0}")]
    NoQemu(&'static str),
    #[error("the VM's disk can't be used{0}")]
    NoDisk(String),
    #[error("QEMU could not be started: {0}")]
    NotSpawned(SpawnError),
    #[error("QEMU ended ({how}){}", told(.said))]
    Ended { how: String, said: String },
    #[error("the VM was not ready within {seconds} s: its agent did not answer on port {port}; its last screen is in {screen}")]
    NotReady { seconds: u32, port: u16, screen: String },
    #[error("the VM could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("the picture of the VM's screen: {0}")]
    Picture(String),
    #[error("the agent in the VM: {0}")]
    Agent(String),
    #[error("there is no /dev/kvm that can be opened")]
    NoKvm,
    #[error("the VM's state could not be kept; the lines before say why")]
    NotKept,
    #[error("the VM is {0}; call it, and wait until it is ready")]
    NotRunning(&'static str),
    #[error("the disk has no state of a VM with these settings: its memory, processors, devices and screen must be as before")]
    NoSealedState,
    #[error("no key of a US keyboard types {0:?}; the VM's agent can paste it, when that is allowed")]
    NoKeyFor(char),
    #[error("the VM has no agent, by which alone this can be done")]
    NoAgent,
    #[error("windows of a VM are known to the system in it alone")]
    NoWindows,
    #[error("a text for the clipboard can have {MAX_TEXT} bytes")]
    LongText,
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error(transparent)]
    Screen(#[from] ScreenError),
}

/// The stage of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum VmState {
    /// The next call starts it.
    Off,
    Booting,
    Ready,
}

/// The state of the sandbox's VM.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct VmStatus {
    pub state: VmState,
    /// The accelerator: `kvm`, or `tcg`, which is QEMU's emulation without the host's help.
    pub accel: &'static str,
    /// The image's disk.
    pub disk: String,
    pub memory_mb: u32,
    pub cpus: u32,
    /// The port on the sandbox's loopback that leads to the agent in the VM; 0: there is no agent.
    pub agent_port: u16,
    /// Seconds from its start until it was ready.
    pub boot_seconds: Option<f64>,
    /// Whether it resumed from a saved state instead of booting.
    pub warm: bool,
    /// Whether its state is saved, so that a reset takes seconds.
    pub snapshot: bool,
}

#[derive(Debug)]
pub struct VmService {
    runtime: Arc<Runtime>,
    current: tokio::sync::Mutex<Option<Arc<Vm>>>,
}

/// A running VM. It is killed on drop.
#[derive(Debug)]
pub struct Vm {
    process: Kept,
    pub(super) qmp: Qmp,
    dir: PathBuf,
    said: Said,
    settings: Settings,
    state: StateDir,
    begun: Instant,
    /// The agent's port on loopback; 0: there is no agent.
    port: u16,
    /// It started from a saved state.
    warm: bool,
    /// The time that it took to get ready, once it is.
    ready: OnceCell<Duration>,
    position: Mutex<Position>,
    /// Held while mouse and keyboard are used: one caller at a time.
    pub(super) hands: tokio::sync::Mutex<()>,
}

impl VmService {
    pub fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime, current: tokio::sync::Mutex::default() }
    }

    /// Whether the sandbox's screen is a VM's.
    pub fn is_there(&self) -> Result<bool, VmError> {
        Ok(Settings::read(&self.runtime.config().env)?.is_some())
    }

    /// Returns the VM, which is started if it is not running; it may be booting.
    pub async fn get(&self) -> Result<Arc<Vm>, VmError> {
        let mut current = self.current.lock().await;
        if let Some(vm) = current.as_ref().filter(|vm| vm.is_fine()) {
            return Ok(vm.clone());
        }
        if let Some(broken) = current.take() {
            broken.end().await;
        }
        let (settings, state) = prepare(&self.runtime)?;
        let warm = state.is_warm(&settings);
        let launch = if warm { Launch::TakeUp(SavedState::Ready) } else { Launch::Boot };
        let vm = match Vm::start(&self.runtime, settings.clone(), state.clone(), launch).await {
            Err(error) if warm => {
                tracing::error!(%error, "the VM could not begin where the image left it, and boots");
                state.clear().map_err(|source| VmError::Io { what: "its state", source })?;
                Vm::start(&self.runtime, settings, state, Launch::Boot).await?
            }
            started => started?,
        };
        Ok(current.insert(Arc::new(vm)).clone())
    }

    /// Returns the VM, once its agent answers.
    pub async fn ready(&self) -> Result<Arc<Vm>, VmError> {
        let vm = self.get().await?;
        vm.ready().await?;
        Ok(vm)
    }

    /// Waits until the VM is ready, if this port on loopback is its agent's.
    pub async fn ready_for(&self, port: u16) -> Result<(), VmError> {
        // Errors in the settings are reported to callers of the VM itself.
        if let Ok(Some(settings)) = Settings::read(&self.runtime.config().env)
            && settings.agent_port == port
        {
            self.ready().await?;
        }
        Ok(())
    }

    /// Resets the VM to the state in which it was first ready, disk and memory. Returns whether that took a boot.
    pub async fn reset(&self) -> Result<bool, VmError> {
        let (settings, state) = prepare(&self.runtime)?;
        let mut current = self.current.lock().await;
        let has_ready = state.has(SavedState::Ready, &settings);
        if let Some(vm) = current.as_ref().filter(|vm| has_ready && vm.is_fine() && vm.ready.initialized()) {
            match vm.take_up().await {
                Ok(()) => return Ok(false),
                Err(error) => tracing::error!(%error, "the VM's kept state could not be taken up, and it boots"),
            }
        }
        if let Some(vm) = current.take() {
            vm.end().await;
        }
        if has_ready {
            match Vm::start(&self.runtime, settings.clone(), state.clone(), Launch::TakeUp(SavedState::Ready)).await {
                Ok(vm) => {
                    let vm = current.insert(Arc::new(vm)).clone();
                    drop(current);
                    vm.ready().await?;
                    return Ok(false);
                }
                Err(error) => tracing::error!(%error, "the VM can't be started from its kept state, and boots"),
            }
        }
        state.clear().map_err(|source| VmError::Io { what: "its state", source })?;
        let vm = Arc::new(Vm::start(&self.runtime, settings, state, Launch::Boot).await?);
        *current = Some(vm.clone());
        drop(current);
        vm.ready().await?;
        Ok(true)
    }

    /// Saves the running VM in its disk, for a state of the sandbox that is sealed now. It stands still meanwhile. Returns the size
    /// of what was in memory, in bytes.
    pub async fn save(&self) -> Result<u64, VmError> {
        let current = self.current.lock().await;
        let vm = current.as_ref().filter(|vm| vm.is_fine()).ok_or(VmError::NotRunning("off"))?;
        if !vm.ready.initialized() {
            return Err(VmError::NotRunning("booting"));
        }
        let _hands = vm.hands.lock().await;
        vm.keep(SavedState::Sealed).await?;
        vm.size_of(SavedState::Sealed).await
    }

    /// Removes what [`VmService::save`] left in the disk.
    pub async fn forget_saved(&self) -> Result<(), VmError> {
        let current = self.current.lock().await;
        match current.as_ref().filter(|vm| vm.is_fine()) {
            Some(vm) => vm.forget(SavedState::Sealed).await,
            None => Ok(()),
        }
    }

    /// Starts the VM where [`VmService::save`] saved it, in the sandbox that got that disk, and waits until its agent answers.
    pub async fn continue_saved(&self) -> Result<(), VmError> {
        let (settings, state) = prepare(&self.runtime)?;
        let mut current = self.current.lock().await;
        if !state.has(SavedState::Sealed, &settings) {
            return Err(VmError::NoSealedState);
        }
        let started = Vm::start(&self.runtime, settings, state, Launch::TakeUp(SavedState::Sealed)).await?;
        let vm = current.insert(Arc::new(started)).clone();
        drop(current);
        vm.ready().await
    }

    /// Returns the VM's state. Nothing is started.
    pub async fn status(&self) -> Result<VmStatus, VmError> {
        let (settings, state) = prepare(&self.runtime)?;
        let current = self.current.lock().await;
        let vm = current.as_ref().filter(|vm| vm.is_fine());
        let took = vm.and_then(|vm| vm.ready.get()).copied();
        Ok(VmStatus {
            state: match (vm, took) {
                (None, _) => VmState::Off,
                (Some(_), None) => VmState::Booting,
                (Some(_), Some(_)) => VmState::Ready,
            },
            accel: if settings.has_kvm() { "kvm" } else { "tcg" },
            snapshot: state.has(SavedState::Ready, &settings),
            disk: settings.disk,
            memory_mb: settings.memory_mb,
            cpus: settings.cpus,
            agent_port: settings.agent_port,
            boot_seconds: took.map(|took| took.as_secs_f64()),
            warm: vm.is_some_and(|vm| vm.warm),
        })
    }
}

/// Boots the VM of an image that is being built, and saves its state, so that VMs in the image's sandboxes need not boot. Returns
/// the seconds that it took.
pub async fn keep_ready(runtime: &Runtime) -> Result<f64, VmError> {
    let (settings, state) = prepare(runtime)?;
    let vm = boot_alone(runtime, Settings { snapshot: true, ..settings.clone() }, &state).await?;
    if !state.has(SavedState::Ready, &settings) {
        return Err(VmError::NotKept);
    }
    // On `quit`, QEMU writes its pending data.
    vm.qmp.execute("quit", json!({})).await?;
    drop(timeout(KEEP, vm.process.ended().cancelled()).await);
    state.forget_started().map_err(|source| VmError::Io { what: "its state", source })?;
    Ok(vm.ready.get().map_or(0.0, Duration::as_secs_f64))
}

/// Boots the image's VM with KVM and keeps nothing. Returns the seconds that it took. Fails if it takes more than `seconds`.
pub async fn probe_kvm(runtime: &Runtime, seconds: u32) -> Result<f64, VmError> {
    let (settings, state) = prepare(runtime)?;
    if !settings.has_kvm() {
        return Err(VmError::NoKvm);
    }
    // No state of the image's VM is used, and none is left for its sandboxes.
    state.clear().map_err(|source| VmError::Io { what: "its state", source })?;
    let settings = Settings { snapshot: false, boot_seconds: seconds, ..settings };
    let vm = boot_alone(runtime, settings, &state).await?;
    vm.end().await;
    Ok(vm.ready.get().map_or(0.0, Duration::as_secs_f64))
}

/// Boots a VM without network access, on a free port: others may use the same loopback.
async fn boot_alone(runtime: &Runtime, settings: Settings, state: &StateDir) -> Result<Vm, VmError> {
    let at = |what| move |source| VmError::Io { what, source };
    // The port was free a moment ago; QEMU fails if it no longer is.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = free.map_err(at("a port"))?.port();
    let vm = Vm::start(runtime, settings, state.clone(), Launch::Alone(port)).await?;
    vm.ready().await?;
    Ok(vm)
}

fn prepare(runtime: &Runtime) -> Result<(Settings, StateDir), VmError> {
    let settings = Settings::read(&runtime.config().env)?.ok_or(VmError::NoVm)?;
    let state = StateDir::open(runtime).map_err(|source| VmError::Io { what: "its state", source })?;
    Ok((settings, state))
}

impl Vm {
    async fn start(runtime: &Runtime, settings: Settings, state: StateDir, launch: Launch) -> Result<Self, VmError> {
        let begun = Instant::now();
        let Started { process, qmp, dir, said } = start::start(runtime, &settings, &state, launch).await?;
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
            warm: matches!(launch, Launch::TakeUp(_)),
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

    fn agent(&self) -> Result<Agent, VmError> {
        match self.port {
            0 => Err(VmError::NoAgent),
            port => Ok(Agent { port }),
        }
    }

    /// Waits until the agent answers. If it does not in time, its last screen is saved, and the VM is stopped.
    async fn ready(&self) -> Result<(), VmError> {
        self.ready.get_or_try_init(|| self.boot()).await?;
        Ok(())
    }

    async fn boot(&self) -> Result<Duration, VmError> {
        let limit = Duration::from_secs(self.settings.boot_seconds.into());
        if !self.answers(self.begun + limit).await? {
            let screen = self.keep_screen().await;
            self.end().await;
            let Settings { boot_seconds: seconds, agent_port: port, .. } = self.settings;
            return Err(VmError::NotReady { seconds, port, screen });
        }
        let took = self.begun.elapsed();
        if self.warm {
            self.set_clock().await;
        }
        // From here on, the pointer's position is known.
        let (width, height) = self.size().await?;
        self.move_to(f64::from(width / 2), f64::from(height / 2)).await?;
        if self.state.has_some(SavedState::Sealed)
            && let Err(error) = self.forget(SavedState::Sealed).await
        {
            tracing::warn!(%error, "the state of a checkpoint stays in the VM's disk");
        }
        if self.settings.snapshot && !self.state.has(SavedState::Ready, &self.settings) {
            // The VM works without a saved state: a reset boots it.
            if let Err(error) = self.keep(SavedState::Ready).await {
                tracing::error!(%error, "the VM's state could not be kept");
            }
        }
        Ok(took)
    }

    /// Whether the agent answers before the deadline.
    async fn answers(&self, deadline: Instant) -> Result<bool, VmError> {
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

    fn ended(&self) -> VmError {
        let how = "it may have been killed: a sandbox needs some 400 MiB more memory than its VM".to_owned();
        VmError::Ended { how, said: self.said.text() }
    }

    /// Writes the screen to a file. Returns its name, or why there is none.
    async fn keep_screen(&self) -> String {
        let place = self.state.last_screen();
        let kept = async {
            let (_, file) =
                self.picture().await?.encoded(Format::Png).await.map_err(|error| VmError::Picture(error.to_string()))?;
            tokio::fs::write(&place, file).await.map_err(|error| VmError::Picture(error.to_string()))
        };
        match kept.await {
            Ok(()) => place.display().to_string(),
            Err(error) => format!("no file ({error})"),
        }
    }

    async fn set_clock(&self) {
        let now = jiff::Timestamp::now().as_second();
        if let Ok(agent) = self.agent() {
            // A system without sudo continues with its old time.
            let set = agent.run(&format!("sudo -n date -u -s @{now} >/dev/null 2>&1 || true")).await;
            if let Err(error) = set {
                tracing::warn!(%error, "the VM's clock could not be set");
            }
        }
    }

    /// Saves disk and memory.
    async fn keep(&self, state: SavedState) -> Result<(), VmError> {
        // There may be a state for other settings.
        drop(self.forget(state).await);
        self.job("snapshot-save", json!({"tag": state.tag(), "vmstate": "disk0", "devices": ["disk0"]})).await?;
        self.state.note(state, &self.settings).map_err(|source| VmError::Io { what: "its state", source })
    }

    async fn forget(&self, state: SavedState) -> Result<(), VmError> {
        self.state.forget(state).map_err(|source| VmError::Io { what: "its state", source })?;
        self.job("snapshot-delete", json!({"tag": state.tag(), "devices": ["disk0"]})).await
    }

    /// The size of what was in memory when a state was saved, in bytes.
    async fn size_of(&self, state: SavedState) -> Result<u64, VmError> {
        let nodes = self.qmp.execute("query-named-block-nodes", json!({"flat": true})).await?;
        let disk = nodes.as_array().into_iter().flatten().find(|node| node["node-name"] == "disk0");
        let states = disk.and_then(|disk| disk["image"]["snapshots"].as_array()).into_iter().flatten();
        let size = states.filter(|found| found["name"] == state.tag()).find_map(|found| found["vm-state-size"].as_u64());
        size.ok_or(VmError::NotKept)
    }

    /// Restores the saved state.
    async fn take_up(&self) -> Result<(), VmError> {
        let _hands = self.hands.lock().await;
        let tag = SavedState::Ready.tag();
        self.job("snapshot-load", json!({"tag": tag, "vmstate": "disk0", "devices": ["disk0"]})).await?;
        let limit = Duration::from_secs(self.settings.boot_seconds.into());
        if !self.answers(Instant::now() + limit).await? {
            return Err(VmError::Agent("it does not answer".to_owned()));
        }
        self.set_clock().await;
        let (width, height) = self.size().await?;
        self.note(Position { x: f64::from(width / 2), y: f64::from(height / 2) });
        Ok(())
    }

    /// Runs a job to its end, which an event reports.
    async fn job(&self, command: &'static str, mut arguments: Value) -> Result<(), VmError> {
        let id = format!("job-{}", arenite_guest_runtime::random_id());
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
                    // A missed event may be the one waited for.
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

    /// Takes a picture of the whole screen.
    pub async fn picture(&self) -> Result<Picture, VmError> {
        picture::take(&self.qmp, &self.dir).await
    }

    /// The size of the screen, in pixels.
    pub async fn size(&self) -> Result<(u16, u16), VmError> {
        Ok(self.picture().await?.screen)
    }

    /// Returns the accessibility tree.
    pub async fn accessibility(&self, depth: u32, nodes: u32) -> Result<AccessibilityTree, VmError> {
        let xml = self.agent()?.tree().await?;
        let read = tokio::task::spawn_blocking(move || tree::read(&xml, depth, nodes)).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        read.map_err(|reason| VmError::Agent(format!("its tree can't be read: {reason}")))
    }

    /// Copies a text, with the VM's own clipboard program.
    pub async fn copy(&self, text: &str) -> Result<(), VmError> {
        use base64::Engine;
        if text.len() > MAX_TEXT {
            return Err(VmError::LongText);
        }
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        self.agent()?.run(&format!("printf %s '{encoded}' | base64 -d | xclip -selection clipboard -in >/dev/null 2>&1")).await?;
        Ok(())
    }

    /// Returns the VM's clipboard.
    pub async fn clipboard(&self) -> Result<String, VmError> {
        self.agent()?.run("xclip -selection clipboard -out 2>/dev/null || true").await
    }

    /// Opens a connection that speaks VNC's protocol.
    pub async fn vnc(&self, runtime: &Runtime) -> Result<UnixStream, VmError> {
        let path = self.dir.join("vnc").display().to_string();
        // QEMU listens for VNC before it answers on its monitor.
        self.qmp.execute("query-status", json!({})).await?;
        dial::socket(runtime, &path).await.map_err(|source| VmError::Io { what: "its VNC socket", source })
    }
}
