//! The one desktop of the sandbox: started when it is needed, replaced when it broke, stopped when it is unused.

use std::fmt::Debug;
use std::io;
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::bus::{BusError, Daemon};
use super::clipboard;
use super::record::Recording;
use super::screen::{Screen, ScreenError};
use super::start::{self, Server};
use crate::vm::VmError;
use crate::vm::VmService;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::dial;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::{Kept, told};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::saved;
use async_trait::async_trait;

/// Idle time after which a desktop and the browser are stopped, unless the sandbox's environment sets another.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The variable that sets it, in seconds; 0: never.
const IDLE_VARIABLE: &str = "DESKTOP_IDLE_SECONDS";
/// The valid range of the variable.
const IDLE_SECONDS: std::ops::RangeInclusive<u64> = 10..=30 * 24 * 3600;
/// Timeout for a killed process to exit.
const END: Duration = Duration::from_secs(5);
/// Valid widths and heights of a screen, in pixels.
const SIDES: std::ops::RangeInclusive<u32> = 320..=7680;

#[derive(Debug, Error)]
pub enum DesktopError {
    #[error("{}", Requirement::SCREEN.message())]
    NoServer,
    #[error("the X server could not be started: {0}")]
    NotSpawned(SpawnError),
    #[error("{what} ended before it was ready ({how}){}", told(.said))]
    Ended { what: &'static str, how: String, said: String },
    #[error("{what} was not ready within {seconds} s{}", told(.said))]
    TooSlow { what: &'static str, seconds: u64, said: String },
    #[error("the desktop could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("{}", Requirement::RECORDER.message())]
    NoRecorder,
    #[error("the screen is being recorded already")]
    RecordsAlready,
    #[error("a text can have {0} bytes")]
    LongText(usize),
    #[error("{}", Requirement::BUS.message())]
    NoBus,
    #[error("the bus for accessibility: {0}")]
    Bus(BusError),
    #[error("the program of the window {0} tells nothing of what it shows")]
    NoTree(u32),
    #[error(transparent)]
    Vm(VmError),
    #[error(transparent)]
    Screen(#[from] ScreenError),
}

impl From<VmError> for DesktopError {
    fn from(error: VmError) -> Self {
        match error {
            // Errors that are not specific to VMs are the same on either screen.
            VmError::Screen(error) => Self::Screen(error),
            error => Self::Vm(error),
        }
    }
}

impl From<BusError> for DesktopError {
    fn from(error: BusError) -> Self {
        match error {
            // The bus exists, but has no service to start for accessibility.
            BusError::NoService => Self::NoBus,
            error => Self::Bus(error),
        }
    }
}

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    /// The size in `DISPLAY_WIDTH` and `DISPLAY_HEIGHT`; invalid values are ignored.
    fn configured(runtime: &Runtime) -> Self {
        let config = runtime.config();
        let side = |name: &str, usual: u32| {
            let given = config.env.get(name).and_then(|text| text.trim().parse().ok());
            given.filter(|side| SIDES.contains(side)).unwrap_or(usual)
        };
        Self { width: side("DISPLAY_WIDTH", 1280), height: side("DISPLAY_HEIGHT", 1024) }
    }
}

#[derive(Debug)]
pub struct DesktopService {
    pub(super) runtime: Arc<Runtime>,
    /// The VM, which replaces the desktop.
    pub(super) vm: Arc<VmService>,
    browser: OnceLock<Weak<dyn BrowserWindow>>,
    current: tokio::sync::Mutex<Option<Arc<Desktop>>>,
    used: Mutex<Option<Instant>>,
    /// Whether the task that stops an unused desktop runs; it does while there is one to stop.
    reaper_runs: AtomicBool,
    pub(super) recording: tokio::sync::Mutex<Recording>,
}

/// A running desktop. It is killed on drop.
#[derive(Debug)]
pub struct Desktop {
    server: Server,
    /// `None`: the image has none.
    manager: Option<tokio::sync::Mutex<Kept>>,
    /// Whether the start of the window manager was awaited.
    is_managed: AtomicBool,
    /// `None`: it could not be started, or the image has none.
    bus: tokio::sync::Mutex<Option<Daemon>>,
    /// The X server hangs.
    hung: AtomicBool,
}

/// The browser, as far as the desktop knows it.
#[async_trait]
pub trait BrowserWindow: Debug + Send + Sync {
    /// Returns the desktop with the browser's window on it. Starts both if they don't run. `None`: the image has no browser.
    async fn show(self: Arc<Self>) -> Result<Option<Arc<Desktop>>, ApiError>;
    /// Ends the browser, if one runs, so that it can write its profile.
    async fn stop(&self);
}

impl DesktopService {
    pub fn new(runtime: Arc<Runtime>, vm: Arc<VmService>) -> Self {
        Self {
            runtime,
            vm,
            browser: OnceLock::new(),
            current: tokio::sync::Mutex::default(),
            used: Mutex::default(),
            reaper_runs: AtomicBool::default(),
            recording: tokio::sync::Mutex::default(),
        }
    }

    /// Registers the browser that viewers see, and that ends before the desktop. Later registrations are ignored.
    pub fn register_browser(&self, browser: Weak<dyn BrowserWindow>) {
        self.browser.get_or_init(|| browser);
    }

    pub(super) fn browser(&self) -> Option<Arc<dyn BrowserWindow>> {
        self.browser.get()?.upgrade()
    }

    /// Returns the desktop, which is started if it is not running. Concurrent callers share one start.
    pub async fn get(self: &Arc<Self>) -> Result<Arc<Desktop>, DesktopError> {
        self.get_telling(oneshot::channel().0).await
    }

    /// Like `get`. `display` receives the display's name as soon as programs can start on it, if that is before it is ready: they
    /// find their bus and wait for the X server. The start may still fail, and the programs with it, or use another display.
    pub async fn get_telling(self: &Arc<Self>, display: oneshot::Sender<String>) -> Result<Arc<Desktop>, DesktopError> {
        self.touch();
        let mut current = self.current.lock().await;
        if let Some(desktop) = current.as_ref().filter(|desktop| desktop.is_fine()) {
            desktop.tend(&self.runtime).await;
            return Ok(desktop.clone());
        }
        // A hung server must be gone before another takes its display.
        if let Some(broken) = current.take() {
            broken.end_bus().await;
            broken.server.process.kill();
            let ended = broken.server.process.ended();
            drop(timeout(END, ended.cancelled()).await);
        }
        let desktop = Arc::new(Desktop::start(&self.runtime, display).await?);
        *current = Some(desktop.clone());
        drop(current);
        self.reap_later();
        Ok(desktop)
    }

    /// Returns the desktop, with a running window manager: programs that start from now on get frames.
    pub async fn ready(self: &Arc<Self>) -> Result<Arc<Desktop>, DesktopError> {
        let desktop = self.get().await?;
        desktop.settle().await;
        Ok(desktop)
    }

    /// The desktop, if one runs; nothing is started.
    pub async fn running(&self) -> Option<Arc<Desktop>> {
        self.current.lock().await.clone().filter(|desktop| desktop.is_fine())
    }

    /// Marks the desktop as in use.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn due(&self, idle: Duration) -> Instant {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.map_or_else(Instant::now, saved::last_use) + idle
    }

    fn reap_later(self: &Arc<Self>) {
        let Some(idle) = idle_time(&self.runtime) else { return };
        if self.reaper_runs.swap(true, Ordering::Relaxed) {
            return;
        }
        let service = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let due = match service.upgrade() {
                    Some(service) => service.due(idle),
                    None => return,
                };
                sleep_until(due).await;
                let Some(service) = service.upgrade() else { return };
                if service.due(idle) <= Instant::now() {
                    if let Some(browser) = service.browser() {
                        browser.stop().await;
                    }
                    service.reaper_runs.store(false, Ordering::Relaxed);
                    *service.current.lock().await = None;
                    return;
                }
            }
        });
    }
}

/// The idle time after which a desktop is stopped; `None`: never.
fn idle_time(runtime: &Runtime) -> Option<Duration> {
    let config = runtime.config();
    match config.env.get(IDLE_VARIABLE).and_then(|text| text.trim().parse().ok()) {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(u64::clamp(seconds, *IDLE_SECONDS.start(), *IDLE_SECONDS.end()))),
        None => Some(IDLE),
    }
}

impl Desktop {
    async fn start(runtime: &Runtime, tell: oneshot::Sender<String>) -> Result<Self, DesktopError> {
        // Programs look for the bus when they start, so it must exist before the first.
        let display = start::usual_display(runtime);
        let (bound, is_bound) = oneshot::channel();
        let bus = async {
            let bus = start_bus(runtime, &display).await;
            if is_bound.await.is_ok() {
                // Most callers don't use it.
                let _ = tell.send(display.clone());
            }
            bus
        };
        let (server, mut bus) = tokio::join!(start::server(runtime, Size::configured(runtime), bound), bus);
        let server = server?;
        if server.display != display {
            // Services of this bus would not find their display. The next bus listens at the same path.
            drop(bus.take());
            bus = start_bus(runtime, &server.display).await;
        }
        let bus = tokio::sync::Mutex::new(bus);
        let manager = match runtime.locate("openbox") {
            Some(_) => Some(tokio::sync::Mutex::new(manager(runtime, &server.display).await?)),
            None => None,
        };
        Ok(Self { server, manager, is_managed: AtomicBool::new(false), bus, hung: AtomicBool::new(false) })
    }

    /// Whether a window manager places the windows.
    pub fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// Whether it runs, and did not hang the last time.
    pub fn is_fine(&self) -> bool {
        !self.server.process.has_ended() && !self.hung.load(Ordering::Relaxed) && !self.server.hands.is_cut()
    }

    /// Restarts a window manager and a bus that ended.
    async fn tend(&self, runtime: &Runtime) {
        let mut bus = self.bus.lock().await;
        if bus.as_ref().is_some_and(|daemon| daemon.process.has_ended()) {
            *bus = start_bus(runtime, self.display()).await;
        }
        drop(bus);
        let Some(place) = &self.manager else { return };
        let mut place = place.lock().await;
        if place.has_ended() {
            match manager(runtime, self.display()).await {
                Ok(started) => {
                    *place = started;
                    self.is_managed.store(false, Ordering::Relaxed);
                }
                Err(error) => tracing::error!(%error, "the window manager could not be started again"),
            }
        }
    }

    /// Replaces the window manager, if the image has one: the last one no longer works.
    pub(super) async fn replace_manager(&self, runtime: &Runtime) -> Result<(), DesktopError> {
        let Some(place) = &self.manager else { return Ok(()) };
        let mut place = place.lock().await;
        place.kill();
        drop(timeout(END, place.ended().cancelled()).await);
        *place = manager(runtime, self.display()).await?;
        self.is_managed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for a window manager that has just started.
    async fn settle(&self) {
        if self.manager.is_some() && !self.is_managed.load(Ordering::Relaxed) {
            // One attempt is enough: the desktop works without a window manager, and callers that need one report it.
            drop(self.run(|screen| screen.is_managed_soon()).await);
            self.is_managed.store(true, Ordering::Relaxed);
        }
    }

    /// The path of the bus's socket, and a token that is cancelled when this bus has ended.
    pub(super) async fn bus(&self, runtime: &Runtime) -> Result<(String, CancellationToken), DesktopError> {
        let mut bus = self.bus.lock().await;
        if bus.as_ref().is_none_or(|daemon| daemon.process.has_ended()) {
            *bus = Daemon::start(runtime, self.display()).await?;
        }
        let daemon = bus.as_ref().ok_or(DesktopError::NoBus)?;
        Ok((daemon.place().to_owned(), daemon.process.ended()))
    }

    /// Ends a hung bus with everything that it started. The next caller that needs it starts another.
    pub(super) async fn end_bus(&self) {
        if let Some(daemon) = self.bus.lock().await.take() {
            daemon.process.kill();
            drop(timeout(END, daemon.process.ended().cancelled()).await);
        }
    }

    /// The value of `DISPLAY` for programs, such as `:99`.
    pub fn display(&self) -> &str {
        &self.server.display
    }

    /// Runs a job on the screen, after the earlier ones.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Screen) -> Result<T, ScreenError> + Send + 'static,
    ) -> Result<T, DesktopError> {
        let done = self.server.hands.run(job).await;
        if matches!(done, Err(ScreenError::Hung | ScreenError::Gone)) {
            self.hung.store(true, Ordering::Relaxed);
        }
        Ok(done?)
    }

    /// Copies a text to the clipboard.
    pub async fn copy(&self, runtime: &Runtime, text: &str) -> Result<(), DesktopError> {
        if text.len() > clipboard::MAX_TEXT {
            return Err(DesktopError::LongText(clipboard::MAX_TEXT));
        }
        let stream = start::connect(runtime, self.display()).await;
        let stream = stream.map_err(|source| DesktopError::Io { what: "the clipboard", source })?;
        let text = text.to_owned();
        self.run(move |_| clipboard::copy(stream, &text)).await
    }

    /// Opens a connection that speaks VNC's protocol.
    pub async fn vnc(&self, runtime: &Runtime) -> Result<UnixStream, DesktopError> {
        let dialled = dial::socket(runtime, &self.server.vnc).await;
        dialled.map_err(|source| DesktopError::Io { what: "its VNC socket", source })
    }
}

async fn manager(runtime: &Runtime, display: &str) -> Result<Kept, DesktopError> {
    start::program(runtime, display, &["openbox", "--sm-disable"]).await
}

/// Starts the bus, if possible: a desktop works without it.
async fn start_bus(runtime: &Runtime, display: &str) -> Option<Daemon> {
    Daemon::start(runtime, display).await.unwrap_or_else(|error| {
        tracing::error!(%error, "the desktop's bus could not be started");
        None
    })
}
