//! The one desktop of the sandbox: started when it is needed, replaced when it broke, ended when nobody uses it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};

use super::clipboard;
use super::record::Recording;
use super::screen::{Screen, ScreenError};
use super::start::{self, Server};
use crate::process::{Kept, told};
use crate::{Guest, SharedGuest, dial};

/// A desktop that nobody used for so long ends, and the browser with it.
pub(crate) const IDLE: Duration = Duration::from_secs(30 * 60);
/// Width and height of a screen, in pixels.
const SIDES: std::ops::RangeInclusive<u32> = 320..=7680;
/// Bytes that a text may have which is typed or copied.
const MAX_TEXT: usize = clipboard::MAX_TEXT;

#[derive(Debug, Error)]
pub enum DesktopError {
    #[error("this sandbox's image has no X server (Xvnc)")]
    NoServer,
    #[error("the X server could not be started: {0}")]
    NotSpawned(SpawnError),
    #[error("{what} ended before it was ready ({how}){}", told(.said))]
    Ended { what: &'static str, how: String, said: String },
    #[error("{what} was not ready within {seconds} s{}", told(.said))]
    TooSlow { what: &'static str, seconds: u64, said: String },
    #[error("the desktop could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("this sandbox's image has no recorder (ffmpeg)")]
    NoRecorder,
    #[error("the screen is being recorded already")]
    RecordsAlready,
    #[error("a text can have {MAX_TEXT} bytes")]
    LongText,
    #[error(transparent)]
    Screen(#[from] ScreenError),
}

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    /// That of `DISPLAY_WIDTH` and `DISPLAY_HEIGHT`, as far as they can be used.
    fn configured(guest: &Guest) -> Self {
        let config = guest.config();
        let side = |name: &str, usual: u32| {
            let given = config.env.get(name).and_then(|text| text.trim().parse().ok());
            given.filter(|side| SIDES.contains(side)).unwrap_or(usual)
        };
        Self { width: side("DISPLAY_WIDTH", 1280), height: side("DISPLAY_HEIGHT", 1024) }
    }
}

#[derive(Debug, Default)]
pub struct DesktopService {
    current: tokio::sync::Mutex<Option<Arc<Desktop>>>,
    used: Mutex<Option<Instant>>,
    /// A task ends what nobody uses; it runs while there is something to end.
    reaper_runs: AtomicBool,
    pub(super) recording: tokio::sync::Mutex<Recording>,
}

/// A running desktop. Dropped, it ends.
#[derive(Debug)]
pub struct Desktop {
    server: Server,
    /// None: the image has none.
    manager: Option<tokio::sync::Mutex<Kept>>,
    /// It stands still.
    hung: AtomicBool,
}

impl DesktopService {
    /// The desktop, started if it is not there. Whoever calls at the same time waits for the same one.
    pub async fn get(&self, guest: &SharedGuest) -> Result<Arc<Desktop>, DesktopError> {
        self.touch();
        let mut current = self.current.lock().await;
        if let Some(desktop) = current.as_ref().filter(|desktop| desktop.is_fine()) {
            desktop.tend(guest).await;
            return Ok(desktop.clone());
        }
        // One that stands still must be gone before another takes its display.
        if let Some(broken) = current.take() {
            broken.server.process.kill();
            let ended = broken.server.process.ended();
            drop(tokio::time::timeout(Duration::from_secs(5), ended.cancelled()).await);
        }
        let desktop = Arc::new(Desktop::start(guest).await?);
        *current = Some(desktop.clone());
        drop(current);
        self.reap_later(guest);
        Ok(desktop)
    }

    /// The desktop, if one runs; nothing is started.
    pub async fn running(&self) -> Option<Arc<Desktop>> {
        self.current.lock().await.clone().filter(|desktop| desktop.is_fine())
    }

    /// It is in use at this moment.
    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn due(&self) -> Instant {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.unwrap_or_else(Instant::now) + IDLE
    }

    fn reap_later(&self, guest: &SharedGuest) {
        if self.reaper_runs.swap(true, Ordering::Relaxed) {
            return;
        }
        let guest = Arc::downgrade(guest);
        tokio::spawn(async move {
            loop {
                let due = match guest.upgrade() {
                    Some(guest) => guest.desktop.due(),
                    None => return,
                };
                sleep_until(due).await;
                let Some(guest) = guest.upgrade() else { return };
                if guest.desktop.due() <= Instant::now() {
                    guest.browser.stop().await;
                    guest.desktop.reaper_runs.store(false, Ordering::Relaxed);
                    *guest.desktop.current.lock().await = None;
                    return;
                }
            }
        });
    }
}

impl Desktop {
    async fn start(guest: &SharedGuest) -> Result<Self, DesktopError> {
        let server = start::server(guest, Size::configured(guest)).await?;
        let manager = match start::locate(guest, "openbox") {
            Some(_) => Some(tokio::sync::Mutex::new(manager(guest, &server.display).await?)),
            None => None,
        };
        Ok(Self { server, manager, hung: AtomicBool::new(false) })
    }

    /// Whether it runs, and did not stand still the last time.
    pub(crate) fn is_fine(&self) -> bool {
        !self.server.process.has_ended() && !self.hung.load(Ordering::Relaxed)
    }

    /// Starts a window manager in the place of one that ended.
    async fn tend(&self, guest: &SharedGuest) {
        let Some(place) = &self.manager else { return };
        let mut place = place.lock().await;
        if place.has_ended() {
            match manager(guest, self.display()).await {
                Ok(started) => *place = started,
                Err(error) => tracing::error!(%error, "the window manager could not be started again"),
            }
        }
    }

    /// What programs need in `DISPLAY`, such as `:99`.
    pub fn display(&self) -> &str {
        &self.server.display
    }

    /// Does a job on the screen, after those that came before it.
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
    pub async fn copy(&self, guest: &SharedGuest, text: &str) -> Result<(), DesktopError> {
        if text.len() > MAX_TEXT {
            return Err(DesktopError::LongText);
        }
        let stream = start::connect(guest, self.display()).await;
        let stream = stream.map_err(|source| DesktopError::Io { what: "the clipboard", source })?;
        let text = text.to_owned();
        self.run(move |_| clipboard::copy(stream, &text)).await
    }

    /// A connection that speaks VNC's protocol.
    pub async fn vnc(&self, guest: &SharedGuest) -> Result<UnixStream, DesktopError> {
        let dialled = dial::socket(guest, &self.server.vnc).await;
        dialled.map_err(|source| DesktopError::Io { what: "its VNC socket", source })
    }
}

async fn manager(guest: &SharedGuest, display: &str) -> Result<Kept, DesktopError> {
    start::program(guest, display, &["openbox", "--sm-disable"]).await
}
