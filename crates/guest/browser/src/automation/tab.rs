//! One tab: its session, and the recorded state of its content.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep, timeout_at};
use utoipa::ToSchema;

use super::super::page::PageError;
use super::dialogs::Dialogs;
use super::{WORLD, lock};
use arenite_guest_cdp::{CALL_TIME, CdpError, Client, Session};

/// Timeout for attaching to a tab.
const ATTACH: Duration = Duration::from_secs(20);
/// The object group for page objects that calls hold, such as elements.
pub(crate) const HELD: &str = "arenite";
/// Time to wait for an answer after the called document was replaced: the browser loses some of these answers.
const LOST: Duration = Duration::from_secs(1);
/// A timeout that no call reaches.
pub(super) const EVER: Duration = Duration::from_secs(24 * 3600);
/// Maximum console messages that are kept; the oldest are dropped first.
const MAX_MESSAGES: usize = 1000;
/// A page without requests for this long is idle.
const QUIET: Duration = Duration::from_millis(500);
/// Our library, which runs in our world of each frame before any script of the page.
const LIBRARY: &str = concat!(
    "(() => {\n'use strict';\n",
    include_str!("../page/library/find.js"),
    include_str!("../page/library/act.js"),
    include_str!("../page/library/read.js"),
    include_str!("../page/library/mark.js"),
    "globalThis.arenite = { find, visible, ready, hits, written, fill, select, setChecked, files, inputKind, ",
    "elements, numbered, links, mark, unmark, findText, text, main, widgets, storage, setStorage };\n})();"
);

/// The browser's id of a tab, which the protocol calls a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TabId(String);

impl TabId {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Tab {
    pub id: TabId,
    client: Client,
    session: OnceCell<Session>,
    set_up: OnceCell<()>,
    /// The number of calls that work in the tab now.
    served: AtomicUsize,
    state: Mutex<TabState>,
    changed: watch::Sender<()>,
    /// Held while mouse and keyboard are used: a click is three events, a word many.
    pub hands: tokio::sync::Mutex<()>,
    /// The operation that navigated the tab last, by [`crate::page::Work`]'s number. Held while the browser is called.
    pub navigation: tokio::sync::Mutex<u64>,
}

/// The loading stage of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Commit,
    DomContentLoaded,
    Load,
}

/// An execution context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct World {
    pub id: i64,
    pub unique: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub id: String,
    pub parent: Option<String>,
    pub url: String,
    /// The loader id of its document.
    pub loader: String,
    pub stage: Stage,
    /// The URL that could not be loaded, when an error page is shown instead.
    pub unreachable: Option<String>,
    /// Our isolated world in the frame.
    pub world: Option<World>,
}

/// A line of the console.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Message {
    /// `log`, `info`, `warning`, `debug`, …, as in the protocol; `error` also for uncaught exceptions, `dialog` for dialogs.
    #[serde(rename = "type")]
    pub kind: String,
    pub text: String,
    /// Seconds since 1970.
    pub timestamp: f64,
    pub url: Option<String>,
    /// From 0.
    pub line: Option<i64>,
    /// From 0.
    pub column: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct TabState {
    pub url: String,
    pub title: String,
    /// The tab that opened it.
    pub opener: Option<TabId>,
    /// The first is the page's main frame; parents come before their children.
    pub frames: Vec<Frame>,
    pub(super) dialogs: Dialogs,
    pub crashed: bool,
    pub closed: bool,
    pub console: VecDeque<Message>,
    /// The number of documents that the page has loaded.
    pub documents: u64,
    /// The number of navigations of the page, including those within a document.
    pub navigations: u64,
    /// Whether the page is navigating to another document.
    pub leaving: bool,
    /// The page's last documents: loader and HTTP status.
    pub answers: VecDeque<(String, u16)>,
    /// Pending requests by id: the document that each is for, and its method.
    under_way: HashMap<String, (String, String)>,
    quiet_since: Instant,
    /// Elements by index: the world that knows each, and its number there.
    pub numbered: Vec<(World, u64)>,
}

impl TabState {
    pub(crate) fn main(&self) -> Option<&Frame> {
        self.frames.first()
    }

    pub(crate) fn dialogs(&self) -> &Dialogs {
        &self.dialogs
    }

    pub(super) fn frame(&mut self, id: &str) -> Option<&mut Frame> {
        self.frames.iter_mut().find(|frame| frame.id == id)
    }

    pub(super) fn say(&mut self, message: Message) {
        if self.console.len() == MAX_MESSAGES {
            self.console.pop_front();
        }
        self.console.push_back(message);
    }

    pub(super) fn request_began(&mut self, id: String, loader: String, method: String) {
        self.under_way.insert(id, (loader, method));
    }

    /// The methods of the pending requests.
    pub(crate) fn methods(&self) -> HashMap<String, String> {
        self.under_way.iter().map(|(id, (_, method))| (id.clone(), method.clone())).collect()
    }

    pub(super) fn request_ended(&mut self, id: &str) {
        if self.under_way.remove(id).is_some() {
            self.quiet_since = Instant::now();
        }
    }

    /// Drops the requests of documents that are gone: the browser does not report how they ended.
    pub(super) fn forget_requests(&mut self) {
        let frames = &self.frames;
        self.under_way.retain(|_, (loader, _)| frames.iter().any(|frame| frame.loader == *loader));
        self.quiet_since = Instant::now();
    }

    /// Returns when the page will have been idle long enough, counted from `since`, if no request is pending.
    pub(crate) fn rest(&self, since: Instant) -> Option<Instant> {
        self.under_way.is_empty().then(|| self.quiet_since.max(since) + QUIET)
    }

    /// HTTP status of the current document; `None` if it did not come over HTTP.
    pub(crate) fn status(&self) -> Option<u16> {
        let loader = &self.main()?.loader;
        self.answers.iter().rev().find(|(of, _)| of == loader).map(|(_, status)| *status)
    }
}

impl Tab {
    pub(super) fn new(client: Client, id: TabId) -> Self {
        let state = TabState {
            url: String::new(),
            title: String::new(),
            opener: None,
            frames: Vec::new(),
            dialogs: Dialogs::default(),
            crashed: false,
            closed: false,
            console: VecDeque::new(),
            documents: 0,
            navigations: 0,
            leaving: false,
            answers: VecDeque::new(),
            under_way: HashMap::new(),
            quiet_since: Instant::now(),
            numbered: Vec::new(),
        };
        Self {
            id,
            client,
            session: OnceCell::new(),
            set_up: OnceCell::new(),
            served: AtomicUsize::new(0),
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
            hands: Default::default(),
            navigation: Default::default(),
        }
    }

    /// Whether a session's events are about this tab.
    pub(super) fn is_session(&self, id: &str) -> bool {
        self.session.get().is_some_and(|session| session.id() == id)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, TabState> {
        lock(&self.state)
    }

    /// Changes the state, and wakes the calls that wait for a change.
    pub(crate) fn note(&self, change: impl FnOnce(&mut TabState)) {
        change(&mut self.state());
        self.changed.send_replace(());
    }

    /// Returns the tab's session, which is attached on the first call.
    pub(crate) async fn session(&self) -> Result<&Session, CdpError> {
        self.session.get_or_try_init(|| self.client.attach(self.id.as_str())).await
    }

    /// Waits until the tab's events are recorded. Concurrent callers share one setup.
    pub(super) async fn ready(&self) -> Result<(), PageError> {
        let ready = self.set_up.get_or_try_init(|| self.set_up());
        tokio::select! {
            ready = ready => ready.copied().map_err(PageError::from),
            // The browser may owe an answer to a tab that is gone.
            over = self.until(Instant::now() + EVER, |state| state.crashed.then_some(())) => over.map(drop),
        }
    }

    /// Attaches, and subscribes to the tab's events.
    async fn set_up(&self) -> Result<(), CdpError> {
        let session = self.session().await?;
        let call = |method, params: Value| session.call_within::<IgnoredAny>(method, params, ATTACH);
        let tree = async {
            let answer = session.call_within::<pump_types::FrameTree>("Page.getFrameTree", json!({}), ATTACH).await;
            answer.map(|answer| self.note(|state| answer.into_state(state)))
        };
        // All are sent at once, in this order.
        tokio::try_join!(call("Page.enable", json!({})), tree, call("Inspector.enable", json!({})))?;
        // From here on, events are about frames that are already recorded.
        let library = json!({"source": LIBRARY, "worldName": WORLD, "runImmediately": true});
        tokio::try_join!(
            call("Page.setLifecycleEventsEnabled", json!({"enabled": true})),
            call("Network.enable", json!({})),
            call("Page.addScriptToEvaluateOnNewDocument", library),
            call("Runtime.enable", json!({})),
            call("Log.enable", json!({})),
            // Tabs in the background are drawn and have the focus too, for operations in them.
            call("Emulation.setFocusEmulationEnabled", json!({"enabled": true})),
        )?;
        Ok(())
    }

    /// Calls a method of the tab.
    pub(crate) async fn call<R: DeserializeOwned>(&self, method: &'static str, params: Value) -> Result<R, CdpError> {
        self.call_within(method, params, CALL_TIME).await
    }

    /// Calls a method of the tab. If another document replaces the page's meanwhile, the answer may be lost; then the call waits
    /// only a little longer.
    ///
    /// # Errors
    /// As [`Client::send`], and [`CdpError::Superseded`].
    pub(crate) async fn call_within<R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
        patience: Duration,
    ) -> Result<R, CdpError> {
        let result = self.exchange(method, params, patience).await?;
        serde_json::from_str(result.get()).map_err(|source| CdpError::Unreadable { method, source })
    }

    async fn exchange(&self, method: &'static str, params: Value, patience: Duration) -> Result<Box<RawValue>, CdpError> {
        let session = self.session().await?;
        let document = self.state().documents;
        tokio::select! {
            biased;
            answer = session.exchange(method, params, patience) => answer,
            () = self.superseded(document) => Err(CdpError::Superseded { method }),
        }
    }

    /// Calls a method for its effect. If another document replaces the page's meanwhile, that counts as success.
    pub(crate) async fn effect(&self, method: &'static str, params: Value) -> Result<(), CdpError> {
        match self.call::<IgnoredAny>(method, params).await {
            Ok(_) | Err(CdpError::Superseded { .. }) => Ok(()),
            Err(CdpError::Refused { message, .. }) if message.contains("Inspected target navigated") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the page's document was replaced since the count was `documents`.
    pub(crate) fn is_replaced(&self, documents: u64) -> bool {
        self.state().documents != documents
    }

    /// Returns shortly after the page's document was replaced.
    async fn superseded(&self, documents: u64) {
        match self.until(Instant::now() + EVER, |state| (state.documents != documents).then_some(())).await {
            Ok(Some(())) => sleep(LOST).await,
            // The tab or the browser is gone; the operation gets that error by itself.
            _ => std::future::pending().await,
        }
    }

    /// Waits until `look` finds something in the state. `None` after the deadline.
    ///
    /// # Errors
    /// If the tab was closed or crashed meanwhile, or the browser is gone.
    pub(crate) async fn until<T>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&mut TabState) -> Option<T>,
    ) -> Result<Option<T>, PageError> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let mut state = self.state();
                if let Some(found) = look(&mut state) {
                    return Ok(Some(found));
                }
                if state.closed {
                    return Err(PageError::Closed);
                }
                if state.crashed {
                    return Err(PageError::Crashed);
                }
            }
            if !self.has_changed(&mut changes, deadline).await? {
                return Ok(None);
            }
        }
    }

    /// Waits until the state changes. False after the deadline.
    async fn has_changed(&self, changes: &mut watch::Receiver<()>, deadline: Instant) -> Result<bool, CdpError> {
        tokio::select! {
            changed = timeout_at(deadline, changes.changed()) => Ok(matches!(changed, Ok(Ok(())))),
            () = self.client.closed() => Err(CdpError::Closed),
        }
    }

    /// Runs an operation in the tab. Dialogs that the page shows meanwhile are answered, because they would block everything. It
    /// ends if the tab is closed or the page crashes.
    pub(crate) async fn serve<T>(self: &Arc<Self>, work: impl Future<Output = Result<T, PageError>>) -> Result<T, PageError> {
        let _served = Served::begin(self);
        tokio::select! {
            biased;
            done = work => done,
            error = self.interrupted() => Err(error),
        }
    }

    /// Answers dialogs until no operation is possible any more.
    async fn interrupted(&self) -> PageError {
        tokio::select! {
            biased;
            over = self.until(Instant::now() + EVER, |_| None::<()>) => over.err().unwrap_or(PageError::Closed),
            failed = self.answer_dialogs() => failed.into(),
        }
    }

    /// Our worlds of all frames, the main frame's first.
    pub(crate) fn worlds(&self) -> Vec<World> {
        self.state().frames.iter().filter_map(|frame| frame.world.clone()).collect()
    }
}

/// A call that works in a tab. After the last one, the page's objects that they held are released.
struct Served<'a>(&'a Arc<Tab>);

impl<'a> Served<'a> {
    fn begin(tab: &'a Arc<Tab>) -> Self {
        tab.served.fetch_add(1, Ordering::Relaxed);
        Self(tab)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if self.0.served.fetch_sub(1, Ordering::Relaxed) == 1 && !self.0.state().closed {
            let tab = self.0.clone();
            tokio::spawn(async move {
                let group = json!({"objectGroup": HELD});
                // The page and the held objects may be gone.
                drop(tab.call_within::<IgnoredAny>("Runtime.releaseObjectGroup", group, ATTACH).await);
            });
        }
    }
}

pub(super) mod pump_types {
    //! The protocol's types for frames.

    use serde::Deserialize;

    use super::{Frame, Stage, TabState};

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct FrameTree {
        frame_tree: Tree,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Tree {
        frame: CdpFrame,
        #[serde(default)]
        child_frames: Vec<Tree>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) struct CdpFrame {
        pub id: String,
        pub parent_id: Option<String>,
        pub loader_id: String,
        pub url: String,
        #[serde(default)]
        pub url_fragment: String,
        pub unreachable_url: Option<String>,
    }

    impl CdpFrame {
        pub(crate) fn into_frame(self, stage: Stage) -> Frame {
            Frame {
                id: self.id,
                parent: self.parent_id,
                url: self.url + &self.url_fragment,
                loader: self.loader_id,
                stage,
                unreachable: self.unreachable_url,
                world: None,
            }
        }
    }

    impl FrameTree {
        /// Adds the frames that existed before the first event.
        pub(crate) fn into_state(self, state: &mut TabState) {
            let mut trees = vec![self.frame_tree];
            while let Some(tree) = trees.pop() {
                if !state.frames.iter().any(|frame| frame.id == tree.frame.id) {
                    let at = if tree.frame.parent_id.is_none() { 0 } else { state.frames.len() };
                    state.frames.insert(at, tree.frame.into_frame(Stage::Commit));
                }
                trees.extend(tree.child_frames.into_iter().rev());
            }
        }
    }
}
