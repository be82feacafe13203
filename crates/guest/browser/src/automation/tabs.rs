//! The tabs of the person's profile, in order of opening, and the current tab that operations work in.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::super::page::PageError;
use super::pump::TargetInfo;
use super::{Automation, Tab, TabId};
use arenite_guest_cdp::CdpError;

/// Timeout for a tab to open, to close, or to be shown.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum tabs that are attached. Further tabs are ignored until others are closed.
const MAX_TABS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Tabs {
    all: Vec<Arc<Tab>>,
    /// The tabs that operations worked in, the latest last.
    chosen: Vec<TabId>,
}

impl Tabs {
    pub(super) fn of_session(&self, session: &str) -> Option<Arc<Tab>> {
        self.all.iter().find(|tab| tab.is_session(session)).cloned()
    }

    pub(super) fn by_id(&self, id: &TabId) -> Option<Arc<Tab>> {
        self.all.iter().find(|tab| tab.id == *id).cloned()
    }

    fn choose(&mut self, id: &TabId) {
        self.chosen.retain(|chosen| chosen != id);
        self.chosen.push(id.clone());
    }

    fn current(&self) -> Option<Arc<Tab>> {
        self.chosen.last().and_then(|id| self.by_id(id)).or_else(|| self.all.last().cloned())
    }
}

impl Automation {
    /// Handles a tab that was opened, by any client.
    pub(super) fn came(self: &Arc<Self>, info: TargetInfo) {
        let ours = info.browser_context_id.as_ref() == Some(&self.context);
        if info.r#type != "page" || !ours || info.url.starts_with("devtools://") {
            return;
        }
        let mut tabs = self.tabs();
        if tabs.by_id(&info.target_id).is_some() || tabs.all.len() >= MAX_TABS {
            return;
        }
        let tab = Arc::new(Tab::new(self.client.clone(), info.target_id));
        // A window that a page opens becomes the current tab, as it does for a person.
        let current = tabs.current().map(|tab| tab.id.clone());
        if info.opener_id.is_some() && info.opener_id == current {
            tabs.choose(&tab.id);
        }
        tab.note(|state| (state.url, state.title, state.opener) = (info.url, info.title, info.opener_id));
        tabs.all.push(tab.clone());
        drop(tabs);
        self.changed.send_replace(());
        let automation = Arc::downgrade(self);
        tokio::spawn(async move {
            if let Err(error) = tab.ready().await {
                // It may be closed already, or another debugger holds it: the next operation tries again.
                tracing::debug!(%error, target = tab.id.as_str(), "a tab can't be looked into");
            }
            if let Some(automation) = automation.upgrade() {
                automation.changed.send_replace(());
            }
        });
    }

    pub(super) fn went(&self, id: &TabId) {
        let mut tabs = self.tabs();
        let gone = tabs.by_id(id);
        let opener = gone.as_ref().and_then(|tab| tab.state().opener.clone());
        tabs.all.retain(|tab| tab.id != *id);
        let was_current = tabs.chosen.last().is_some_and(|chosen| chosen == id);
        tabs.chosen.retain(|chosen| chosen != id);
        if let Some(opener) = opener.filter(|opener| was_current && tabs.by_id(opener).is_some()) {
            tabs.choose(&opener);
        }
        drop(tabs);
        if let Some(tab) = gone {
            tab.note(|state| state.closed = true);
        }
        self.changed.send_replace(());
    }

    /// Requests the addresses and titles of all tabs: the browser reports title changes late, if at all.
    pub(crate) async fn refresh(&self) -> Result<(), PageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Targets {
            target_infos: Vec<TargetInfo>,
        }
        let Targets { target_infos } = self.client.call("Target.getTargets", json!({})).await?;
        for info in target_infos {
            if let Some(tab) = self.tabs().by_id(&info.target_id) {
                tab.note(|state| (state.url, state.title) = (info.url, info.title));
            }
        }
        Ok(())
    }

    pub(crate) fn list(&self) -> Vec<Arc<Tab>> {
        self.tabs().all.clone()
    }

    /// Returns the current tab, if any. It may not be ready yet.
    pub(crate) fn current(&self) -> Option<Arc<Tab>> {
        self.tabs().current()
    }

    /// Returns the current tab when it is ready. Opens one if there is none.
    pub(crate) async fn tab(&self) -> Result<Arc<Tab>, PageError> {
        let tab = match self.current() {
            Some(tab) => tab,
            None => return self.open("about:blank").await,
        };
        tab.ready().await?;
        self.tabs().choose(&tab.id);
        Ok(tab)
    }

    /// Opens a tab, which becomes the current one. Its page may still be loading.
    pub(crate) async fn open(&self, url: &str) -> Result<Arc<Tab>, PageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Created {
            target_id: TabId,
        }
        let Created { target_id } = self.client.call("Target.createTarget", json!({"url": url})).await?;
        let tab = self.until(|automation| automation.tabs().by_id(&target_id)).await?;
        self.tabs().choose(&target_id);
        tab.ready().await?;
        Ok(tab)
    }

    /// Closes a tab. The last one is replaced by an empty one, because the browser would exit without any.
    pub(crate) async fn close(&self, tab: &Tab) -> Result<(), PageError> {
        if self.list().len() == 1 {
            self.open("about:blank").await?;
        }
        let closed: Result<IgnoredAny, _> = self.client.call("Target.closeTarget", json!({"targetId": tab.id})).await;
        match closed {
            // Another client closed it.
            Ok(_) | Err(CdpError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // A page may ask whether to leave it.
        let gone = self.until(|automation| automation.tabs().by_id(&tab.id).is_none().then_some(()));
        tokio::select! {
            gone = gone => gone,
            failed = tab.answer_dialogs() => Err(failed.into()),
        }
    }

    /// Shows a tab, which becomes the current one.
    pub(crate) async fn activate(&self, tab: &Tab) -> Result<(), PageError> {
        let _: IgnoredAny = self.client.call("Target.activateTarget", json!({"targetId": tab.id})).await?;
        self.tabs().choose(&tab.id);
        Ok(())
    }

    async fn until<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> Result<T, PageError> {
        let deadline = Instant::now() + PATIENCE;
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            tokio::select! {
                changed = timeout_at(deadline, changes.changed()) => match changed {
                    Ok(Ok(())) => {}
                    _ => return Err(PageError::TooSlow { what: "the browser's tab", seconds: PATIENCE.as_secs_f64() }),
                },
                () = self.client.closed() => return Err(CdpError::Closed.into()),
            }
        }
    }
}
