//! The one browser: started when it is needed, replaced when it broke.

use std::io;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::{OnceCell, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::automation::{Automation, Download, Progress};
use super::network::Network;
use super::policy::Policy;
use super::start::{self, Started};
use super::types::{BrowserInfoResult, BrowserViewport, RestartMode, RestartRequest};
use arenite_guest_cdp::{CdpError, Client, Target};
use arenite_guest_desktop::desktop::Action;
use arenite_guest_desktop::desktop::BrowserWindow;
use arenite_guest_desktop::desktop::DesktopService;
use arenite_guest_desktop::desktop::{Control, Desktop, DesktopError, Format, Picture, Region, Screen, ScreenError, View};
use arenite_guest_files::confined::Confined;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::http::Address;
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::process::{Kept, told};
use arenite_guest_runtime::requirements::Requirement;
use async_trait::async_trait;

/// A browser that has not answered for this long is checked before use.
const CHECK: Duration = Duration::from_secs(10);
/// Timeout of that check.
const ANSWER: Duration = Duration::from_secs(10);
/// Time for a browser to write its profile and exit.
const END: Duration = Duration::from_secs(5);
/// Time to wait for its first window.
const FIRST_WINDOW: Duration = Duration::from_secs(10);
/// Interval between checks for it.
const LOOK: Duration = Duration::from_millis(5);
/// Width and height of the part of a window's toolbars that is checked, in pixels.
const BARS: (u32, u32) = (200, 80);
/// The page that a browser starts with, unless another is configured.
pub(super) const EMPTY: &str = "about:blank";
/// Maximum entries of a list of blocked or allowed pages: the browser accepts no more.
const MAX_PATTERNS: usize = 1000;

#[derive(Debug, Error)]
pub enum BrowserError {
    #[error("{}", Requirement::BROWSER.message())]
    NoBrowser,
    #[error("the browser could not be started: {0}")]
    NotSpawned(SpawnError),
    #[error("the browser ended before it answered ({how}){}", told(.said))]
    Ended { how: String, said: String },
    #[error("the browser did not answer within {seconds} s{}", told(.said))]
    TooSlow { seconds: u64, said: String },
    #[error("the browser could not be reached: {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("a list can have {MAX_PATTERNS} patterns")]
    TooManyPatterns,
    #[error(transparent)]
    Cdp(#[from] CdpError),
    #[error(transparent)]
    Desktop(#[from] DesktopError),
}

#[derive(Debug)]
pub struct BrowserService {
    pub(super) runtime: Arc<Runtime>,
    pub(super) desktop: Arc<DesktopService>,
    /// Reads the content of pages.
    pub(super) confined: Arc<Confined>,
    /// Whether the task runs that follows the forward proxy; it starts with the first browser.
    follows_proxy: AtomicBool,
    current: tokio::sync::Mutex<Option<Arc<Browser>>>,
    policy: Mutex<Policy>,
    /// Rules for requests, and the connection that applies them.
    network: Network,
    pub(super) recordings: super::page::Recordings,
}

/// A running browser. It is killed on drop.
#[derive(Debug)]
pub struct Browser {
    process: Kept,
    desktop: Arc<Desktop>,
    client: Mutex<Client>,
    port: u16,
    path: String,
    user_agent: String,
    checked: Mutex<Instant>,
    started: Instant,
    /// Set once its first tab exists: the browser answers slightly earlier.
    opened: OnceCell<()>,
    /// Set once its first window was drawn.
    painted: OnceCell<()>,
    /// The connection for operations in pages, once it was opened.
    automation: tokio::sync::Mutex<Option<Arc<Automation>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BrowserService {
    pub fn new(runtime: Arc<Runtime>, desktop: Arc<DesktopService>, confined: Arc<Confined>) -> Self {
        Self {
            runtime,
            desktop,
            confined,
            follows_proxy: AtomicBool::default(),
            current: tokio::sync::Mutex::default(),
            policy: Mutex::default(),
            network: Network::default(),
            recordings: super::page::Recordings::default(),
        }
    }

    /// Returns the browser, which is started if it is not running. Concurrent callers share one start.
    pub async fn get(self: &Arc<Self>) -> Result<Arc<Browser>, BrowserError> {
        let browser = self.answering().await?;
        browser.first_tab().await?;
        Ok(browser)
    }

    /// Like `get`, but possibly before the browser has a tab.
    async fn answering(self: &Arc<Self>) -> Result<Arc<Browser>, BrowserError> {
        let mut current = self.current.lock().await;
        self.desktop.touch();
        if let Some(browser) = &*current
            && browser.is_fine().await
        {
            // The connection that applies the rules may have broken.
            self.network.ensure(browser.port, &browser.path).await?;
            return Ok(browser.clone());
        }
        if let Some(broken) = current.take() {
            broken.gone().await;
        }
        let browser = Arc::new(self.start().await?);
        *current = Some(browser.clone());
        Ok(browser)
    }

    async fn start(self: &Arc<Self>) -> Result<Browser, BrowserError> {
        let policy = lock(&self.policy).clone();
        // The browser looks for its display only after a while; the X server starts meanwhile.
        let (tell, told) = oneshot::channel::<String>();
        let early = async {
            let display = told.await.ok()?;
            Some((start::start(self, &display, &policy).await.ok()?, display))
        };
        let (desktop, early) = tokio::join!(self.desktop.get_telling(tell), early);
        let desktop = desktop?;
        let Started { process, client, port, path, user_agent } = match early {
            Some((started, display)) if display == desktop.display() => started,
            _ => start::start(self, desktop.display(), &policy).await?,
        };
        let (client, checked) = (Mutex::new(client), Mutex::new(Instant::now()));
        let (started, opened, painted, automation) = (Instant::now(), OnceCell::new(), OnceCell::new(), Default::default());
        self.network.ensure(port, &path).await?;
        Ok(Browser { process, desktop, client, port, path, user_agent, checked, started, opened, painted, automation })
    }

    /// Returns the connection for operations in pages, which the first of them opens.
    pub(super) async fn automation(self: &Arc<Self>) -> Result<Arc<Automation>, BrowserError> {
        let browser = self.answering().await?;
        let mut automation = browser.automation.lock().await;
        if let Some(automation) = automation.as_ref().filter(|automation| !automation.is_closed()) {
            return Ok(automation.clone());
        }
        // A starting browser is slow to answer: both steps run concurrently.
        let made = async { Automation::start(browser.port, &browser.path).await.map_err(BrowserError::from) };
        let (made, ()) = tokio::try_join!(made, browser.first_tab())?;
        *automation = Some(made.clone());
        Ok(made)
    }

    /// Returns the desktop, with the browser's window on it.
    pub async fn shown(self: &Arc<Self>) -> Result<Arc<Desktop>, BrowserError> {
        let browser = self.get().await?;
        browser.painted.get_or_try_init(|| browser.first_window()).await?;
        // The browser may be fine on a desktop without its window manager.
        Ok(self.desktop.get().await?)
    }

    /// Returns the addresses of the browser for DevTools clients and people, and its size.
    pub async fn info(self: &Arc<Self>, address: &Address) -> Result<BrowserInfoResult, BrowserError> {
        let browser = self.get().await?;
        let (width, height) = browser.desktop().run(|screen| screen.size()).await?;
        let (_, path) = browser.endpoint();
        Ok(BrowserInfoResult {
            user_agent: browser.user_agent().to_owned(),
            cdp_url: address.websocket(&format!("/cdp{path}")),
            vnc_url: address.http("/vnc/index.html?autoconnect=true"),
            cdp_ui_url: None,
            viewport: BrowserViewport { width: width.into(), height: height.into() },
            page_viewport: browser.page_viewport().await,
        })
    }

    /// Takes a picture of the whole screen that shows the browser, or of the VM's. Returns it with its file.
    pub async fn picture(self: &Arc<Self>, format: Format) -> Result<(Picture, Vec<u8>), BrowserError> {
        if let Some(vm) = Control::vm(&self.desktop).await? {
            return Ok(vm.picture(View::default(), format).await?);
        }
        let desktop = self.shown().await?;
        let picture = desktop.run(|screen| screen.picture(None)).await?;
        Ok(picture.encoded(format).await?)
    }

    /// The downloads of pages, the oldest first.
    pub async fn downloads(self: &Arc<Self>) -> Result<Vec<Download>, BrowserError> {
        Ok(self.automation().await?.downloads().list())
    }

    /// Whether a recording of a page runs.
    pub fn is_recording(&self) -> bool {
        self.recordings.is_running()
    }

    /// Whether pages still download files.
    pub fn downloads_run(&self) -> bool {
        // If one of the locks is held, a call is running.
        let Ok(current) = self.current.try_lock() else { return false };
        let automation = current.as_ref().and_then(|browser| browser.automation.try_lock().ok()?.clone());
        automation.is_some_and(|automation| automation.downloads().list().iter().any(|one| one.progress == Progress::Running))
    }

    pub(super) fn network(&self) -> &Network {
        &self.network
    }

    /// Notes the port of a starting browser, and follows the forward proxy from now on.
    pub(super) fn note_port(self: &Arc<Self>, port: u16) {
        self.runtime.set_browser_port(port);
        if !self.follows_proxy.swap(true, Ordering::Relaxed) {
            tokio::spawn(follow_proxy(Arc::downgrade(self), self.runtime.proxy_address()));
        }
    }

    /// Ends the browser, if one runs, so that it can write its profile.
    pub async fn stop(&self) {
        if let Some(browser) = self.current.lock().await.take() {
            browser.close().await;
        }
    }

    /// Reconnects, or ends the browser and starts another.
    pub async fn restart(self: &Arc<Self>, request: &RestartRequest) -> Result<(), BrowserError> {
        let lists = [&request.url_blocklist, &request.url_allowlist];
        if lists.into_iter().flatten().any(|list| list.len() > MAX_PATTERNS) {
            return Err(BrowserError::TooManyPatterns);
        }
        if request.mode == RestartMode::Soft {
            return self.get().await?.reconnect().await;
        }
        lock(&self.policy).change(request);
        self.stop().await;
        self.get().await.map(drop)
    }

    /// Performs an action on the screen that shows the browser, or on the screen of the sandbox's VM.
    pub async fn perform(self: &Arc<Self>, action: &Action) -> Result<(), BrowserError> {
        action
            .perform(async {
                Ok(match Control::vm(&self.desktop).await? {
                    Some(vm) => vm,
                    None => Control::over(&self.desktop, self.shown().await?),
                })
            })
            .await
    }
}

/// Writes the browser's policy again when the rules of the forward proxy change: a running browser reads it.
async fn follow_proxy(service: Weak<BrowserService>, mut address: watch::Receiver<Option<String>>) {
    while address.changed().await.is_ok() {
        let Some(service) = service.upgrade() else { return };
        if let Err(error) = lock(&service.policy).write(&service.runtime) {
            tracing::error!(%error, "the browser can't be told of the proxy");
        }
    }
}

#[async_trait]
impl BrowserWindow for BrowserService {
    async fn show(self: Arc<Self>) -> Result<Option<Arc<Desktop>>, ApiError> {
        match self.shown().await {
            Err(BrowserError::NoBrowser) => Ok(None),
            shown => Ok(Some(shown?)),
        }
    }

    async fn stop(&self) {
        BrowserService::stop(self).await;
    }
}

impl Browser {
    /// Our connection to the browser.
    pub fn client(&self) -> Client {
        lock(&self.client).clone()
    }

    pub fn desktop(&self) -> &Arc<Desktop> {
        &self.desktop
    }

    pub fn user_agent(&self) -> &str {
        &self.user_agent
    }

    /// The port on loopback, and the path of its WebSocket.
    pub(super) fn endpoint(&self) -> (u16, &str) {
        (self.port, &self.path)
    }

    /// Cancelled when the browser has ended.
    pub(super) fn ended(&self) -> tokio_util::sync::CancellationToken {
        self.process.ended()
    }

    /// Whether the browser runs and answers.
    async fn is_fine(&self) -> bool {
        if self.process.has_ended() || !self.desktop.is_fine() {
            return false;
        }
        if lock(&self.checked).elapsed() > CHECK || self.client().is_closed() {
            // A connection may break while the browser runs.
            if self.client().is_closed() && self.reconnect().await.is_err() {
                return false;
            }
            let asked: Result<Value, _> = self.client().send(None, "Browser.getVersion", json!({}), ANSWER).await;
            if asked.is_err() {
                return false;
            }
            *lock(&self.checked) = Instant::now();
        }
        true
    }

    async fn reconnect(&self) -> Result<(), BrowserError> {
        let client = Client::connect(self.port, &self.path).await?;
        *lock(&self.client) = client;
        // The next operation in a page opens another.
        *self.automation.lock().await = None;
        Ok(())
    }

    /// Asks the browser to exit, and kills it if it does not.
    async fn close(self: Arc<Self>) {
        let asked: Result<Value, _> = self.client().send(None, "Browser.close", json!({}), END).await;
        if asked.is_ok() {
            drop(timeout(END, self.process.ended().cancelled()).await);
        }
        self.gone().await;
    }

    /// Kills the browser, and waits until it is gone.
    async fn gone(self: Arc<Self>) {
        self.process.kill();
        drop(timeout(END, self.process.ended().cancelled()).await);
    }

    /// Waits for the browser's first tab, unless that was done.
    async fn first_tab(&self) -> Result<(), BrowserError> {
        let wait = async {
            let client = self.client();
            let mut events = client.events();
            let discover = |what: Value| client.call::<IgnoredAny>("Target.setDiscoverTargets", what);
            discover(json!({"discover": true, "filter": [{"type": "page"}]})).await?;
            // A browser without a tab is usable: operations that need a tab open one.
            let _ = timeout(FIRST_WINDOW, async {
                while events.next().await.is_ok_and(|event| event.method != "Target.targetCreated") {}
            })
            .await;
            discover(json!({"discover": false})).await?;
            Ok(())
        };
        self.opened.get_or_try_init(|| wait).await.copied()
    }

    /// Waits until the browser's first window is drawn, so that a first picture shows it.
    async fn first_window(&self) -> Result<(), BrowserError> {
        let deadline = self.started + FIRST_WINDOW;
        // An empty page draws nothing. With another page, the toolbars are drawn too. The rest of the check reads the screen.
        let page = self.client();
        let drawn = async {
            let Some(target) = first_page(&page).await?.filter(|target| target.url != EMPTY) else { return Ok(()) };
            let session = page.attach(&target.target_id).await?;
            // Tabs in the background are not drawn.
            let expression = "document.hidden || new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))";
            let wait = json!({"expression": expression, "awaitPromise": true});
            let _: Value = session.call("Runtime.evaluate", wait).await?;
            session.detach().await
        };
        if let Ok(Err(CdpError::Closed)) = timeout_at(deadline, drawn).await {
            return Err(CdpError::Closed.into());
        }
        let managed = self.desktop.has_manager();
        while Instant::now() < deadline {
            let is_drawn = move |screen: &mut Screen| {
                // A window manager maximizes the window shortly after it appears: both ends of its toolbars are drawn then.
                let last = if managed { i32::from(screen.size()?.0) - BARS.0 as i32 } else { 0 };
                let is_plain =
                    |x| Ok::<_, ScreenError>(screen.picture(Some(Region { x, y: 0, width: BARS.0, height: BARS.1 }))?.is_plain());
                Ok(!is_plain(0)? && !is_plain(last)?)
            };
            if self.desktop.run(is_drawn).await? {
                break;
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// The size of the page in the tab that was opened or shown last.
    pub async fn page_viewport(&self) -> Option<BrowserViewport> {
        let client = self.client();
        let session = client.attach(&first_page(&client).await.ok()??.target_id).await.ok()?;
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metrics {
            css_layout_viewport: Layout,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Layout {
            client_width: u32,
            client_height: u32,
        }
        let metrics: Result<Metrics, _> = session.call_within("Page.getLayoutMetrics", json!({}), ANSWER).await;
        // The session is over either way.
        drop(session.detach().await);
        let Layout { client_width: width, client_height: height } = metrics.ok()?.css_layout_viewport;
        Some(BrowserViewport { width, height })
    }
}

/// The tab that was used last.
async fn first_page(client: &Client) -> Result<Option<Target>, CdpError> {
    Ok(client.targets().await?.into_iter().find(|target| target.r#type == "page"))
}
