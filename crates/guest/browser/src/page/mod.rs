//! AIO's `browser_page` service: operations in the current tab.
//!
//! ```text
//!  routes ─► an operation ─► Work: the tab, ready, and its dialogs answered meanwhile
//!                              ├─ element: found by selector or index in any frame, waited for
//!                              ├─ mouse, keyboard: the browser's own input events, like a person's
//!                              └─ read, evaluate: our world, or the page's
//! ```
//!
//! Selectors are CSS (open shadow trees too), `text=…`, `"…"`, `//xpath`, `role=…[name="…"]`, and chains of them with `>>`. They
//! are searched in the main frame first, then in its frames. Operations wait for what they need.

mod captcha;
mod console;
mod dialog;
mod element;
mod error;
mod evaluate;
mod form;
mod keyboard;
mod keys;
mod mouse;
mod navigate;
mod picture;
mod read;
mod record;
mod routes;
mod types;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::automation::{Automation, Stage, Tab, TabState};
use crate::BrowserService;
use arenite_guest_files::confined::Confined;
pub use element::Target;
pub use error::PageError;
pub use picture::{Format as PageFormat, Picture as PagePicture, Shot};
pub(super) use record::Recordings;
pub use routes::PageApi;
pub(super) use routes::router;
pub use types::{ClickRequest, PageButton, ScrollDirection, WaitUntil};

/// Time to wait for an element to exist and to be usable.
const AUTO_WAIT: Duration = Duration::from_secs(10);
/// Time to wait for a page that an action leads to. The action is done either way.
const SETTLE: Duration = Duration::from_secs(10);

/// The tab's location after an operation.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PageLocation {
    pub url: String,
    pub title: String,
}

/// Reports that calls work in another tab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The tab was closed; otherwise, it opened another.
    closed: bool,
    /// The index of the tab that calls work in now.
    index: usize,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.closed { "the tab was closed" } else { "another tab was opened" };
        write!(f, "{what}: calls work in tab {} now", self.index)
    }
}

/// The number of operations until now.
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// One operation in a tab.
#[derive(Debug)]
pub struct Work {
    /// Numbers operations by arrival. Some then wait for the browser to start, and continue in any order.
    number: u64,
    pub(super) automation: Arc<Automation>,
    pub(super) tab: Arc<Tab>,
    /// Reads the page's content.
    confined: Arc<Confined>,
    /// Whether the operation itself is done, and only its effects are pending.
    done: AtomicBool,
}

/// Runs `operation` in the current tab. A page that crashed before is reloaded first.
pub async fn work<T, F>(service: &Arc<BrowserService>, operation: impl FnOnce(Arc<Work>) -> F) -> Result<T, PageError>
where
    F: Future<Output = Result<T, PageError>>,
{
    let work = begin(service).await?;
    work.tab.serve(operation(work.clone())).await
}

/// The side effects of an operation.
#[derive(Debug)]
pub struct Effects {
    pub moved: Option<Moved>,
    /// Messages about the page's questions that were declined, because no call had set an answer.
    pub declined: Vec<String>,
}

/// Like `work`, for operations that change something. Returns the tab's location afterwards, and the side effects.
pub async fn act<F>(
    service: &Arc<BrowserService>,
    operation: impl FnOnce(Arc<Work>) -> F,
) -> Result<(serde_json::Value, Effects), PageError>
where
    F: Future<Output = Result<serde_json::Value, PageError>>,
{
    let work = begin(service).await?;
    let dialogs = work.tab.state().dialogs().count();
    let value = match work.tab.serve(operation(work.clone())).await {
        // The operation closed the tab.
        Err(PageError::Closed) if work.done.load(Ordering::Relaxed) => json!(work.location()),
        value => value?,
    };
    let declined = work.tab.state().dialogs().defaulted_since(dialogs);
    Ok((value, Effects { moved: work.moved(), declined }))
}

/// Prepares an operation in the current tab, once it is ready.
async fn begin(service: &Arc<BrowserService>) -> Result<Arc<Work>, PageError> {
    let number = arrived();
    let mut tries = 0;
    loop {
        let taken = async {
            let automation = service.automation().await?;
            let tab = automation.tab().await?;
            let confined = Arc::clone(&service.confined);
            let work = Work { number, automation, tab, confined, done: AtomicBool::new(false) };
            if work.tab.state().crashed {
                work.revive().await?;
            }
            Ok::<_, PageError>(work)
        };
        match taken.await {
            Ok(work) => return Ok(Arc::new(work)),
            // The tab was closed, or the browser ended, meanwhile.
            Err(PageError::Closed | PageError::Crashed | PageError::Cdp(_)) if tries < 3 => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Numbers an operation.
fn arrived() -> u64 {
    OPERATIONS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Opens a tab, with a page if a URL is given. If the page can't be loaded, the tab is closed; a slow page may still be loading.
pub(super) async fn open(
    service: &BrowserService,
    automation: &Arc<Automation>,
    url: Option<&str>,
) -> Result<Arc<Tab>, PageError> {
    // An invalid address needs no tab.
    url.map(navigate::address).transpose()?;
    let tab = automation.open("about:blank").await?;
    let Some(url) = url else { return Ok(tab) };
    let work = Work {
        number: arrived(),
        automation: automation.clone(),
        tab: tab.clone(),
        confined: Arc::clone(&service.confined),
        done: AtomicBool::new(false),
    };
    match tab.serve(work.navigate(url, types::WaitUntil::Load, SETTLE.as_secs_f64())).await {
        Ok(_) | Err(PageError::TooSlow { .. }) => Ok(tab),
        Err(error) => {
            automation.close(&tab).await?;
            Err(error)
        }
    }
}

impl Work {
    /// Reloads a page that crashed.
    async fn revive(&self) -> Result<(), PageError> {
        let before = self.tab.state().navigations;
        // The state is still the crash's until the new page sends events.
        self.tab.note(|state| state.crashed = false);
        self.tab.effect("Page.reload", json!({})).await?;
        let loaded = |state: &mut TabState| {
            let new = state.navigations > before;
            state.main().is_some_and(|main| new && main.stage >= Stage::DomContentLoaded).then_some(())
        };
        self.tab.until(Instant::now() + SETTLE, loaded).await.map(drop)
    }

    pub fn location(&self) -> PageLocation {
        let state = self.tab.state();
        let url = state.main().map_or_else(|| state.url.clone(), |main| main.unreachable.clone().unwrap_or(main.url.clone()));
        PageLocation { url, title: state.title.clone() }
    }

    /// Waits for an action's effects to start, and for a page that it leads to. Returns the tab's location.
    async fn settled(&self) -> Result<PageLocation, PageError> {
        self.done.store(true, Ordering::Relaxed);
        // Events about the action's effect arrive before the answer to this call.
        let turn: Result<Result<IgnoredAny, _>, _> =
            timeout(Duration::from_secs(1), self.tab.call("Runtime.evaluate", json!({"expression": "0", "returnByValue": true})))
                .await;
        drop(turn);
        let arrived = |state: &mut TabState| {
            let there = state.main().is_none_or(|main| main.stage >= Stage::DomContentLoaded);
            (!state.leaving && there).then_some(())
        };
        match self.tab.until(Instant::now() + SETTLE, arrived).await {
            // A click may close its tab.
            Err(PageError::Closed) => {}
            arrived => {
                arrived?;
                self.titled().await;
            }
        }
        Ok(self.location())
    }

    /// Whether the action opened or closed a tab.
    fn moved(&self) -> Option<Moved> {
        let tabs = self.automation.list();
        let current = self.automation.current().filter(|current| current.id != self.tab.id)?;
        let index = tabs.iter().position(|tab| tab.id == current.id)?;
        Some(Moved { closed: self.tab.state().closed, index })
    }
}
