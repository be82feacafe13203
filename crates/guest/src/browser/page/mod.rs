//! AIO's `browser_page` service: what can be done in the tab that operations work in.
//!
//! ```text
//!  routes ─► an operation ─► Work: the tab, ready, and its dialogs answered meanwhile
//!                              ├─ element: found by selector or index in any frame, waited for
//!                              ├─ mouse, keyboard: the browser's own events, as from hands
//!                              └─ read, evaluate: our world, or the page's
//! ```
//!
//! Selectors are CSS (open shadow trees too), `text=…`, `"…"`, `//xpath`, `role=…[name="…"]`, and chains of them by `>>`.
//! They are looked for in the page first, then in its frames; what is asked for is waited for.

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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::automation::{Automation, Stage, Tab, TabState};
use crate::SharedGuest;
pub(crate) use element::Target;
pub(crate) use error::PageError;
pub(crate) use picture::{Format as PageFormat, Picture as PagePicture, Shot};
pub(super) use record::Recordings;
pub use routes::PageApi;
pub(super) use routes::router;
pub(crate) use types::{ClickRequest, PageButton, ScrollDirection, WaitUntil};

/// How long an element, and its being fit for what is wanted, is waited for.
const AUTO_WAIT: Duration = Duration::from_secs(10);
/// How long a page that an action leads to is waited for. The action has been done either way.
const SETTLE: Duration = Duration::from_secs(10);

/// Where the tab is after an operation.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct PageLocation {
    pub(crate) url: String,
    pub(crate) title: String,
}

/// That calls work in another tab now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The tab was closed; otherwise it opened another.
    closed: bool,
    /// The one that they work in.
    index: usize,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.closed { "the tab was closed" } else { "another tab was opened" };
        write!(f, "{what}: calls work in tab {} now", self.index)
    }
}

/// One operation in the tab.
#[derive(Debug)]
pub(crate) struct Work {
    pub(super) automation: Arc<Automation>,
    pub(super) tab: Arc<Tab>,
    /// Whether what was asked for has been done, and only its effects are waited for.
    done: AtomicBool,
}

/// Does `operation` in the tab that operations work in. A page that crashed before is reloaded first.
pub(crate) async fn work<T, F>(guest: &SharedGuest, operation: impl FnOnce(Arc<Work>) -> F) -> Result<T, PageError>
where
    F: Future<Output = Result<T, PageError>>,
{
    let work = begin(guest).await?;
    work.tab.serve(operation(work.clone())).await
}

/// What an operation has done beside what it was asked for.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) moved: Option<Moved>,
    /// The page's questions that were declined because nobody had said how to answer them, in words.
    pub(crate) declined: Vec<String>,
}

/// The same for what changes something; tells where the tab is after it, and what else happened.
pub(crate) async fn act<F>(
    guest: &SharedGuest,
    operation: impl FnOnce(Arc<Work>) -> F,
) -> Result<(serde_json::Value, Effects), PageError>
where
    F: Future<Output = Result<serde_json::Value, PageError>>,
{
    let work = begin(guest).await?;
    let dialogs = work.tab.state().dialogs().count();
    let value = match work.tab.serve(operation(work.clone())).await {
        // It closed the tab.
        Err(PageError::Closed) if work.done.load(Ordering::Relaxed) => json!(work.location()),
        value => value?,
    };
    let declined = work.tab.state().dialogs().defaulted_since(dialogs);
    Ok((value, Effects { moved: work.moved(), declined }))
}

/// The tab that operations work in, ready for one.
async fn begin(guest: &SharedGuest) -> Result<Arc<Work>, PageError> {
    let mut tries = 0;
    loop {
        let taken = async {
            let automation = guest.browser.automation(guest).await?;
            let tab = automation.tab().await?;
            let work = Work { automation, tab, done: AtomicBool::new(false) };
            if work.tab.state().crashed {
                work.revive().await?;
            }
            Ok::<_, PageError>(work)
        };
        match taken.await {
            Ok(work) => return Ok(Arc::new(work)),
            // It was closed, or the browser ended, while it was taken.
            Err(PageError::Closed | PageError::Crashed | PageError::Cdp(_)) if tries < 3 => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Opens a tab, with a page in it if one is named. One that can't be loaded leaves no tab behind; a slow one may still be on
/// its way.
pub(super) async fn open(automation: &Arc<Automation>, url: Option<&str>) -> Result<Arc<Tab>, PageError> {
    // What can't be an address needs no tab.
    url.map(navigate::address).transpose()?;
    let tab = automation.open("about:blank").await?;
    let Some(url) = url else { return Ok(tab) };
    let work = Work { automation: automation.clone(), tab: tab.clone(), done: AtomicBool::new(false) };
    match tab.serve(work.navigate(url, types::WaitUntil::Load, SETTLE.as_secs_f64())).await {
        Ok(_) | Err(PageError::TooSlow { .. }) => Ok(tab),
        Err(error) => {
            automation.close(&tab).await?;
            Err(error)
        }
    }
}

impl Work {
    /// Loads a page that crashed.
    async fn revive(&self) -> Result<(), PageError> {
        let before = self.tab.state().navigations;
        // The state is the crash's until the new page tells of itself.
        self.tab.note(|state| state.crashed = false);
        self.tab.effect("Page.reload", json!({})).await?;
        let loaded = |state: &mut TabState| {
            let new = state.navigations > before;
            state.main().is_some_and(|main| new && main.stage >= Stage::DomContentLoaded).then_some(())
        };
        self.tab.until(Instant::now() + SETTLE, loaded).await.map(drop)
    }

    pub(crate) fn location(&self) -> PageLocation {
        let state = self.tab.state();
        let url = state.main().map_or_else(|| state.url.clone(), |main| main.unreachable.clone().unwrap_or(main.url.clone()));
        PageLocation { url, title: state.title.clone() }
    }

    /// Lets what an action has set off begin, and a page that it leads to come. Then tells where the tab is.
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
            // A click may close the tab it is in.
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
        let current = self.automation.current().filter(|current| current.target != self.tab.target)?;
        let index = tabs.iter().position(|tab| tab.target == current.target)?;
        Some(Moved { closed: self.tab.state().closed, index })
    }
}
