//! A separate connection that tracks the browser's tabs, their content, and their events.
//!
//! ```text
//!  Chromium ──events──► pump ──records──► Tab: frames and their worlds, dialog, console, pending requests
//!                         └─ a new tab ──► attach ──► Tab is ready
//!  operations ──calls──► a Tab's session, and wait for the recorded state
//! ```
//!
//! The first operation in a page opens it; it is reopened when it broke or fell behind. Only tabs of the person's own profile are
//! tracked, not those of contexts that other clients open. Tabs are attached one by one: with the browser's own attachment
//! (`Target.setAutoAttach`), windows that pages open would have to wait.
//!
//! The pump never waits: whatever needs an answer of the browser runs in a separate task.

mod dialogs;
mod downloads;
mod pump;
mod tab;
mod tabs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::watch;

use super::network::Traffic;
use arenite_guest_cdp::{CdpError, Client};
pub(crate) use dialogs::{AnsweredDialog, Dialog, DialogAnswer};
pub use downloads::{Download, Progress};
pub(super) use pump::{described, exception};
pub(super) use tab::{Frame, HELD, Message, Stage, Tab, TabId, TabState, World};
use tabs::Tabs;

/// Our JavaScript's world in every frame, isolated from the page's: pages can't see or change it.
pub(super) const WORLD: &str = "arenite";

/// A connection and the state that is recorded from it.
#[derive(Debug)]
pub(super) struct Automation {
    client: Client,
    /// The browser context of the person's own profile.
    context: String,
    tabs: Mutex<Tabs>,
    downloads: downloads::Downloads,
    traffic: Mutex<Traffic>,
    /// Notified when a tab opens, closes, or is selected.
    changed: watch::Sender<()>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Automation {
    pub(super) async fn start(port: u16, path: &str) -> Result<Arc<Self>, CdpError> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Contexts {
            default_browser_context_id: String,
        }
        let client = Client::connect(port, path).await?;
        let contexts: Contexts = client.call("Target.getBrowserContexts", json!({})).await?;
        let automation = Arc::new(Self {
            context: contexts.default_browser_context_id,
            tabs: Mutex::default(),
            downloads: Default::default(),
            traffic: Mutex::default(),
            changed: watch::Sender::new(()),
            client,
        });
        tokio::spawn(pump::run(automation.client.events(), Arc::downgrade(&automation)));
        // From here on, the browser sends events about tabs, starting with the existing ones.
        let call = |method, params| automation.client.call::<IgnoredAny>(method, params);
        let downloads = json!({"behavior": "default", "eventsEnabled": true});
        tokio::try_join!(
            call("Target.setDiscoverTargets", json!({"discover": true})),
            call("Browser.setDownloadBehavior", downloads)
        )?;
        Ok(automation)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the recorded requests of pages.
    pub(super) fn traffic(&self) -> MutexGuard<'_, Traffic> {
        lock(&self.traffic)
    }

    pub(super) fn downloads(&self) -> &downloads::Downloads {
        &self.downloads
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn tabs(&self) -> MutexGuard<'_, Tabs> {
        lock(&self.tabs)
    }
}
